"""The fields in the data of znodes, and data that is refused. ``test_golden_bytes.py`` has the exact bytes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.group.topic_patterns import PatternMatch
from kiel_groups.group.znodes.contents import (
    GroupSettings,
    GroupState,
    JavaSubscription,
    MemberAssignment,
    MemberInfo,
    encode_consumer_id,
    encode_offset,
    encode_owner,
    make_member_id,
    parse_broker,
    parse_offset,
    parse_topic,
    whole_number,
)
from kiel_groups.group.znodes.group_settings import DynamicConfig
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

PATH = "/some/path"


def test_an_assignment_is_readable() -> None:
    """The data of an assignment has a generation, a member, and ascending partition numbers by topic."""
    data = MemberAssignment(
        7, "m", frozenset({TopicPartition("u", 0), TopicPartition("t", 10), TopicPartition("t", 2)})
    ).encode()
    assert json.loads(data) == {"generation": 7, "for": "m", "partitions": {"t": [2, 10], "u": [0]}}
    assert b"[2,10]" in data


def test_a_member_describes_itself() -> None:
    """
    The data of a member has its session timeout as granted by the server, its sorted subscription, and fields for
    operators.
    """
    info = MemberInfo(
        member_id="m", session_timeout_ms=4_000, subscription=("u", "t"), host="h", pid=3, started_at_ms=5
    )
    assert json.loads(info.encode()) == {
        "version": 1,
        "instance_id": None,
        "session_timeout_ms": 4_000,
        "subscription": ["t", "u"],
        "host": "h",
        "pid": 3,
        "client": "tornado",
        "started_at": 5,
    }


def test_the_slot_of_a_static_member_is_its_instance_id() -> None:
    """The slot of a static member is its instance id. The slot of a dynamic member is its member id."""
    settings: dict[str, Any] = {"member_id": "m", "session_timeout_ms": 4_000, "subscription": ()}
    assert MemberInfo(**settings, instance_id="i").slot == "i"
    assert MemberInfo(**settings).slot == "m"


@pytest.mark.parametrize("instance_id", ["", "a/b", 7, "x" * 256])
def test_an_illegal_instance_id_is_unreadable(instance_id: object) -> None:
    """A member with an illegal instance id is unreadable, because the id becomes the name of a znode."""
    data = json.dumps({"subscription": [], "session_timeout_ms": 1, "instance_id": instance_id}).encode()
    with pytest.raises(ProtocolError, match="instance_id"):
        MemberInfo.parse("m", data, PATH)


def test_capacity_and_rack_are_stored_only_if_they_were_set() -> None:
    """A member with the defaults has the znode of earlier versions; others say what they were given."""
    plain = MemberInfo(member_id="m", session_timeout_ms=1, subscription=("t",))
    assert not {"capacity", "rack", "settings"} & json.loads(plain.encode()).keys()
    changed = replace(plain, settings=(("autocommit", False), ("debounce.quiet_ms", 5)))
    for member in (plain, replace(plain, capacity=2.5, rack="east"), changed):
        assert MemberInfo.parse("m", member.encode(), "/path") == member


@pytest.mark.parametrize("settings", [7, [], {"static_grace_ms": "60"}, None])
def test_a_member_with_unreadable_settings_counts(settings: object) -> None:
    """Settings in a member znode are for operators only, so other data is no reason to leave the member out."""
    fields = json.loads(MemberInfo(member_id="m", session_timeout_ms=1, subscription=()).encode())
    assert MemberInfo.parse("m", json.dumps(fields | {"settings": settings}).encode(), PATH).settings == ()


@pytest.mark.parametrize("fields", [{"capacity": -1}, {"capacity": "2"}, {"capacity": True}, {"rack": 7}, {"rack": ""}])
def test_an_impossible_capacity_or_rack_is_unreadable(fields: dict[str, object]) -> None:
    """The error names the znode and the field."""
    data = json.dumps(json.loads(MemberInfo(member_id="m", session_timeout_ms=1, subscription=()).encode()) | fields)
    with pytest.raises(ProtocolError, match=f"^/path: {next(iter(fields))}: .* given; expected "):
        MemberInfo.parse("m", data.encode(), "/path")


def test_a_consumer_id_has_the_fields_of_kafkas() -> None:
    """
    The data of a consumer id has Kafka's fields: one stream for each topic, the pattern "static", and the time as a
    string.
    """
    assert json.loads(encode_consumer_id(["u", "t", "t"], 1_700_000_000_123)) == {
        "version": 1,
        "subscription": {"t": 1, "u": 1},
        "pattern": "static",
        "timestamp": "1700000000123",
    }


def test_owner_and_offset_are_plain_text() -> None:
    """The data of owners and offsets is plain text, without quotes and newline."""
    assert encode_owner("g_h-1-ab") == b"g_h-1-ab-0"
    assert encode_offset(0) == b"0"
    assert encode_offset(2**63 - 1) == b"9223372036854775807"


@pytest.mark.parametrize(
    ("host", "session", "expected"),
    [
        ("box-1.example", 0x10A, "g_box-1.example-1700-10a"),
        ("bücher/_:", 1, "g_b-cher-_--1700-1"),
        ("", 1, "g_-1700-1"),
        ("h", -1, "g_h-1700-ffffffffffffffff"),
        ("h", 0x7FFF_0000_0000_0001, "g_h-1700-7fff000000000001"),
    ],
)
def test_member_id(host: str, session: int, expected: str) -> None:
    """A member id has the form and characters of Java's, and ends in the whole session id, even a negative one."""
    member_id = make_member_id("g", host, 1_700, session)
    assert member_id == expected
    assert re.fullmatch(r"[a-zA-Z0-9._-]+", member_id)


NO_OFFSETS = [
    b"",
    b"-1",
    b" 5",
    b"5\n",
    b"5 ",
    b"+5",
    b"5.0",
    b"0x5",
    b"1_000",
    b'"5"',
    b"\xff",
    "٣".encode(),
    "²".encode(),
]


@pytest.mark.parametrize("data", NO_OFFSETS)
def test_an_offset_is_a_plain_decimal(data: bytes) -> None:
    """An offset is read only from plain decimal digits. Other data raises an error with the path."""
    with pytest.raises(ProtocolError, match=PATH):
        parse_offset(data, PATH)


@pytest.mark.parametrize("data", [b"9" * 5_000, b"9223372036854775808"], ids=["5,000 digits", "beyond int64"])
def test_an_offset_is_at_most_an_int64(data: bytes) -> None:
    """
    An offset above int64 is refused: requests to brokers cannot have it, and ``int()`` raises an error for 5,000
    digits.
    """
    with pytest.raises(ProtocolError, match=PATH):
        parse_offset(data, PATH)


def test_offsets_of_other_tools_are_read() -> None:
    """Offsets of other tools are read, even with leading zeros."""
    assert parse_offset(b"0", PATH) == 0
    assert parse_offset(b"007", PATH) == 7
    assert parse_offset(b"9223372036854775807", PATH) == 2**63 - 1


UNREADABLE = {
    "a member without a timeout": (MemberInfo, b'{"subscription":[]}', "session_timeout_ms"),
    "a member with a text for a timeout": (
        MemberInfo,
        b'{"subscription":[],"session_timeout_ms":"1"}',
        "session_timeout_ms",
    ),
    "a member with true for a timeout": (
        MemberInfo,
        b'{"subscription":[],"session_timeout_ms":true}',
        "session_timeout_ms",
    ),
    "a member without a subscription": (MemberInfo, b'{"session_timeout_ms":1}', "subscription"),
    "a member with a number for a topic": (MemberInfo, b'{"session_timeout_ms":1,"subscription":[1]}', "subscription"),
    "an assignment without a member": (MemberAssignment, b'{"generation":1,"partitions":{}}', "for"),
    "an assignment without a generation": (MemberAssignment, b'{"for":"m","partitions":{}}', "generation"),
    "an assignment with a list": (MemberAssignment, b'{"generation":1,"for":"m","partitions":[]}', "partitions"),
    "an assignment with a number": (
        MemberAssignment,
        b'{"generation":1,"for":"m","partitions":{"t":1}}',
        "topic 't'",
    ),
    "an assignment with a negative number": (
        MemberAssignment,
        b'{"generation":1,"for":"m","partitions":{"t":[-1]}}',
        "topic 't'",
    ),
    "an assignment with true": (MemberAssignment, b'{"generation":1,"for":"m","partitions":{"t":[true]}}', "topic 't'"),
    "an assignment with a fraction": (
        MemberAssignment,
        b'{"generation":1,"for":"m","partitions":{"t":[1.0]}}',
        "topic 't'",
    ),
    "a group state with an unknown state": (GroupState, b'{"generation":1,"leader":"m","state":"almost"}', "state"),
    "a group state without a generation": (GroupState, b'{"leader":"m","state":"done"}', "generation"),
    "settings without a mode": (GroupSettings, b'{"store":"zookeeper","auto_offset_reset":"latest"}', "mode"),
    "a list": (MemberAssignment, b"[]", "object"),
    "no JSON": (MemberAssignment, b"{", "JSON"),
    "no text": (MemberAssignment, b"\xff", "JSON"),
    "nothing": (MemberAssignment, b"", "JSON"),
    "deep nesting": (MemberAssignment, b"[" * 100_000, "JSON"),
    "an assignment with a number beyond int32": (
        MemberAssignment,
        b'{"generation":1,"for":"m","partitions":{"t":[2147483648]}}',
        "topic 't'",
    ),
    "an endless number": (MemberAssignment, b'{"generation":' + b"1" * 5_000 + b"}", "JSON"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_data_raises_an_error_with_path_and_reason(case: str) -> None:
    """Unreadable data raises an error with the path and the reason, such as the field."""
    kind, data, reason = UNREADABLE[case]
    with pytest.raises(ProtocolError, match=PATH) as caught:
        kind.parse("m", data, PATH) if kind is MemberInfo else kind.parse(data, PATH)
    assert reason in str(caught.value)


@pytest.mark.parametrize("topic", ["", "a/b", "..", "a\ud800", "a\u0000", "x" * 256])
def test_a_member_with_an_illegal_topic_is_unreadable(topic: str) -> None:
    """
    A member with an illegal topic is unreadable. The topic would become an illegal path, and fail every plan of the
    group.
    """
    data = json.dumps({"session_timeout_ms": 1, "subscription": ["t", topic]}).encode()
    with pytest.raises(ProtocolError, match="subscription"):
        MemberInfo.parse("m", data, PATH)


def test_fields_for_operators_may_be_missing() -> None:
    """
    Fields that only operators read may be missing or invalid, such as the host of a member or the counts of a plan.
    """
    info = MemberInfo.parse("m", b'{"session_timeout_ms":1,"subscription":["t"],"pid":"x","started_at":null}', PATH)
    assert (info.host, info.pid, info.client, info.started_at_ms) == ("", 0, "", 0)
    state = GroupState.parse(b'{"generation":1,"state":"done","leader":"m","unassigned":3,"unassigned_names":3}', PATH)
    assert (dict(state.unassigned), state.unassigned_names, state.cause) == ({}, (), "")


def test_settings_that_differ_are_listed() -> None:
    """Settings that differ are listed with both values. Equal settings are omitted."""
    here = GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="latest")
    there = GroupSettings(store="zookeeper", mode="eager", auto_offset_reset="earliest")
    assert here.differences(there) == [("mode", "cooperative", "eager"), ("auto_offset_reset", "latest", "earliest")]
    assert here.differences(here) == []
    assert GroupSettings.parse(here.encode(), PATH) == here


def test_topics_and_brokers_are_read_as_kafka_registers_them() -> None:
    """
    Topics and brokers are read as Kafka registers them, with partitions in numerical order. Other data raises an error.
    """
    assert parse_topic(b'{"version":1,"partitions":{"10":[1],"2":[1,2],"0":[]}}', PATH) == (0, 2, 10)
    assert parse_broker(b'{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1"}', PATH) == ("h", 9092)
    for data in (b"{}", b'{"partitions":{"x":[]}}', b'{"partitions":[]}', b""):
        with pytest.raises(ProtocolError, match=PATH):
            parse_topic(data, PATH)
    odd = (b'{"host":null,"port":-1}', b'{"host":"","port":1}', b'{"host":"h","port":0}', b'{"host":"h","port":65536}')
    for data in (b"{}", b'{"host":"h"}', b'{"host":"h","port":"9092"}', b"x", *odd):
        with pytest.raises(ProtocolError, match=PATH):
            parse_broker(data, PATH)


def test_a_brokers_listener_is_chosen_by_its_protocol() -> None:
    """Without a listener in plain text, the host is null. Names of listeners are mapped to protocols from 0.10.2 on."""
    endpoints = ["SSL://h:9093", "OUT://[::1]:9094", "SSL://later:9095", "?"]
    document = {"version": 4, "host": None, "port": -1, "endpoints": endpoints}
    data = json.dumps({**document, "listener_security_protocol_map": {"OUT": "SASL_SSL", "SSL": "SSL"}}).encode()
    assert parse_broker(data, PATH, "SSL") == ("h", 9093)
    assert parse_broker(data, PATH, "SASL_SSL") == ("::1", 9094)
    listeners = r"but SSL at h:9093, SASL_SSL at \[::1\]:9094"
    for protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        with pytest.raises(ProtocolError, match=f"{PATH}: the broker has no listener for {protocol}, {listeners}"):
            parse_broker(data, PATH, protocol)
    early = b'{"version":1,"host":"h","port":9092}'
    with pytest.raises(ProtocolError, match="no listener for SSL, but none but plain text"):
        parse_broker(early, PATH, "SSL")
    both = json.dumps({"host": "h", "port": 9092, "endpoints": ["PLAINTEXT://h:9092", "SSL://h:9093"]}).encode()
    assert parse_broker(both, PATH) == ("h", 9092)
    assert parse_broker(both, PATH, "SSL") == ("h", 9093)


@pytest.mark.parametrize("text", ["9" * 5_000, "2147483648", "٣", "²", "", "-1", "+1", "1_0", " 1"])
def test_a_number_of_other_digits_is_none(text: str) -> None:
    """Names of znodes come from any program: ``int()`` accepts some of these, and raises an error for 5,000 digits."""
    assert whole_number(text) is None


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (GroupState.parse, b"[" * 5_000),
        (GroupState.parse, b'{"generation":' + b"9" * 5_000 + b"}"),
        (GroupState.parse, json.dumps({"generation": 1, "state": LONG}).encode()),
        (GroupState.parse, json.dumps({"version": [LONG]}).encode()),
        (MemberAssignment.parse, json.dumps({"generation": LONG}).encode()),
        (MemberAssignment.parse, json.dumps({"generation": 1, "for": "m", "partitions": {LONG: [LONG]}}).encode()),
        (partial(MemberInfo.parse, "m"), json.dumps({"subscription": [f"{LONG}/"]}).encode()),
        (DynamicConfig.parse, json.dumps({"allocator": LONG}).encode()),
        (DynamicConfig.parse, json.dumps({"drained": {LONG: 1}}).encode()),
        (DynamicConfig.parse, json.dumps({"debounce": {LONG: 1}}).encode()),
    ],
)
def test_the_error_about_a_znode_is_short(parse: Callable[[bytes, str], object], data: bytes) -> None:
    """A znode of any program may have a megabyte of garbage. The error, a log line, quotes the start of it."""
    with pytest.raises(ProtocolError) as raised:
        parse(data, PATH)
    assert len(str(raised.value)) < 600


def test_a_pattern_is_a_field_of_its_own_beside_an_empty_subscription() -> None:
    """A version that knows no patterns reads a member without topics. Kafka's tools read a white list."""
    info = MemberInfo(member_id="m", session_timeout_ms=1, subscription=(), pattern="page-é")
    assert MemberInfo.parse("m", info.encode(), PATH) == info
    assert (json.loads(info.encode())["subscription"], info.subscribes) == ([], True)
    plain = replace(info, pattern=None)
    assert ("pattern" in json.loads(plain.encode()), plain.subscribes) == (False, False)
    assert json.loads(encode_consumer_id((), 7, "page-é")) == {
        "version": 1,
        "subscription": {"page-é": 1},
        "pattern": "white_list",
        "timestamp": "7",
    }


@pytest.mark.parametrize("pattern", [7, "", "x" * 1001, ["t"], "t\ud800"])
def test_an_illegal_pattern_of_a_member_is_refused(pattern: object) -> None:
    data = json.dumps({"subscription": [], "session_timeout_ms": 1, "pattern": pattern}).encode()
    with pytest.raises(ProtocolError, match="pattern"):
        MemberInfo.parse("m", data, PATH)


def test_a_group_state_has_what_patterns_match() -> None:
    """Without patterns, the data is as before. Invalid entries are left out."""
    plain = GroupState(generation=1, state="done", leader="m")
    assert "patterns" not in json.loads(plain.encode())
    state = replace(plain, patterns={"t": PatternMatch(("t1", "t2")), "u": PatternMatch((), "too long")})
    assert GroupState.parse(state.encode(), PATH) == state
    fields = json.loads(plain.encode())
    for invalid in [7, {"t": 7}, {"t": {"topics": 7}}, {"t": {"topics": [7]}}]:
        assert GroupState.parse(json.dumps(fields | {"patterns": invalid}).encode(), PATH) == plain


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("pv", ["pv"]),
        ("pv.*", ["pv", "pv-eu", "pv.us"]),
        (r"pv\..+", ["pv.us"]),
        ("pv, orders", ["orders", "pv"]),
        ("'pv|orders'", ["orders", "pv"]),
        ("^(pv|orders)(|-eu)$", None),
        ("^(pv|orders)-?[a-z]*$", ["orders", "pv", "pv-eu"]),
        ("(pv.*|orders|x.*|y.*|z.*)", ["orders", "pv", "pv-eu", "pv.us"]),
        ("[^p].*", ["orders"]),
        (".*", ["orders", "pv", "pv-eu", "pv.us"]),
        ("", []),
        ("(?!pv).*", None),
        (r"\p{Lower}+", None),
        ("p{1,2}v", None),
        ("[a-z&&[^p]]+", None),
        ("[z-a]", None),
        ("(p*)*v", None),
        ("p*p*p*p*v", None),
        ("p?p?p?p?v", None),
        ("(p|p)(p|p)v", None),
        ("pv|" * 200, None),
        ("pv**", None),
        ("(pv", None),
        ("pv\n", ["pv"]),
    ],
)
def test_topics_of_the_pattern_of_a_java_consumer(text: str, topics: list[str] | None) -> None:
    """The pattern matches whole names, with commas between alternatives. What may take long is not evaluated."""
    existing = ["pv", "pv-eu", "pv.us", "orders", "__consumer_offsets"]
    listed, others = (JavaSubscription((text,), kind) for kind in ("white_list", "black_list"))
    assert listed.unevaluated == others.unevaluated == ("" if topics is not None else text[:500])
    assert listed.topics(existing) == tuple(topics or ())
    assert others.topics(existing) == (() if topics is None else tuple(sorted({*existing[:4]} - {*topics})))


def test_several_patterns_of_a_java_consumer_are_not_evaluated() -> None:
    """Java writes one. Another program may write so many that their comparison, or even their text, takes long."""
    many = JavaSubscription(tuple(f"pv{number}" for number in range(100_000)), "white_list")
    assert (many.topics(["pv1"]), many.unevaluated) == ((), "pv0, pv1, pv2")


@pytest.mark.parametrize("text", ["a*a*a*b", ".*(a|a|a|a).*b", "(.*a|.*b|.*a|.*b|.*a)", "|".join(["a*a*[a-c]*b"] * 40)])
def test_the_pattern_of_a_java_consumer_takes_little_time(text: str) -> None:
    """The worst patterns that are evaluated, with the longest name of a topic."""
    began_s = time.process_time()
    JavaSubscription((text,), "white_list").topics(["a" * 249])
    assert time.process_time() - began_s < 5
