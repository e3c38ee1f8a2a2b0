"""
The golden bytes of every znode that a group writes or reads.

Members of different versions share a group, and Kafka's own tools read its znodes. So each value is written to exactly
these bytes, and each version reads them. Change a byte in this file only with a change that every earlier version
understands.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kiel_groups.group.candidate import sequence
from kiel_groups.group.znodes.contents import (
    GroupSettings,
    GroupState,
    MemberAssignment,
    MemberInfo,
    encode_consumer_id,
    encode_offset,
    encode_owner,
    parse_broker,
    parse_leader,
    parse_object,
    parse_offset,
    parse_owner,
    parse_topic,
)
from kiel_groups.group.znodes.group_settings import (
    DynamicConfig,
    HistoryEntry,
    encode_weights,
    generation_of,
    parse_weights,
    record,
)
from kiel_groups.group.znodes.layout import GroupLayout, partition_state_path, topic_path
from kiel_groups.group.znodes.transactions import Create
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
ID = "g_box-1700000000123-10a"
T2, T10, U0 = TopicPartition("t", 2), TopicPartition("t", 10), TopicPartition("u", 0)

MEMBER = MemberInfo(
    member_id=ID,
    session_timeout_ms=6_000,
    subscription=("t", "u"),
    host="bücher",
    pid=17,
    client="tornado",
    started_at_ms=1_700_000_000_123,
)
STATIC_MEMBER = MemberInfo(member_id=ID, session_timeout_ms=6_000, subscription=(), instance_id="shelf-1")
STATE = GroupState(
    generation=7,
    state="publishing",
    leader=ID,
    allocator="sticky",
    cause="join of b, new topic t",
    members=2,
    partitions=3,
    unassigned={"no subscriber": 1},
    unassigned_names=("t:3",),
    fallback="last plan kept: it raised",
    created_at_ms=1_700_000_000_456,
)
ENTRY = HistoryEntry(
    generation=7,
    cause="join of b",
    leader=ID,
    moved=2,
    members=2,
    partitions=3,
    took_ms=12,
    created_at_ms=1_700_000_000_456,
)


@dataclass(frozen=True)
class Golden:
    """The data of a znode. ``written`` encodes ``value``, and ``read`` parses the bytes."""

    path: str
    data: bytes
    written: bytes
    value: object
    read: Callable[[bytes, str], object]


def read_member(data: bytes, path: str) -> MemberInfo:
    return MemberInfo.parse(ID, data, path)


#: Znodes that this package writes and reads.
WRITTEN = {
    "member": Golden(
        "/kiel-groups/g/members/g_box-1700000000123-10a",
        '{"client":"tornado","host":"bücher","instance_id":null,"pid":17,"session_timeout_ms":6000,'
        '"started_at":1700000000123,"subscription":["t","u"],"version":1}'.encode(),
        MEMBER.encode(),
        MEMBER,
        read_member,
    ),
    "static member": Golden(
        "/kiel-groups/g/members/g_box-1700000000123-10a",
        b'{"client":"tornado","host":"","instance_id":"shelf-1","pid":0,"session_timeout_ms":6000,'
        b'"started_at":0,"subscription":[],"version":1}',
        STATIC_MEMBER.encode(),
        STATIC_MEMBER,
        read_member,
    ),
    "group state": Golden(
        "/kiel-groups/g/allocation",
        b'{"allocator":"sticky","cause":"join of b, new topic t","created_at":1700000000456,'
        b'"fallback":"last plan kept: it raised","generation":7,"leader":"g_box-1700000000123-10a","members":2,'
        b'"partitions":3,"state":"publishing","unassigned":{"no subscriber":1},"unassigned_names":["t:3"],"version":1}',
        STATE.encode(),
        STATE,
        GroupState.parse,
    ),
    "group state of a finished publication": Golden(
        "/kiel-groups/g/allocation",
        b'{"allocator":"","cause":"","created_at":0,"fallback":"","generation":1,"leader":"m","members":0,'
        b'"partitions":0,"state":"done","unassigned":{},"unassigned_names":[],"version":1}',
        GroupState(generation=1, state="done", leader="m").encode(),
        GroupState(generation=1, state="done", leader="m"),
        GroupState.parse,
    ),
    "group state that answers an operator's request": Golden(
        "/kiel-groups/g/allocation",
        b'{"allocator":"","cause":"","created_at":0,"fallback":"","generation":1,"leader":"m","members":0,'
        b'"partitions":0,"rebalance":7,"state":"done","unassigned":{},"unassigned_names":[],"version":1}',
        GroupState(generation=1, state="done", leader="m", request_ms=7).encode(),
        GroupState(generation=1, state="done", leader="m", request_ms=7),
        GroupState.parse,
    ),
    "member assignment": Golden(
        "/kiel-groups/g/allocation/g_box-1700000000123-10a",
        b'{"for":"g_box-1700000000123-10a","generation":7,"partitions":{"t":[2,10],"u":[0]}}',
        MemberAssignment(7, ID, frozenset({T10, U0, T2})).encode(),
        MemberAssignment(7, ID, frozenset({T10, U0, T2})),
        MemberAssignment.parse,
    ),
    "empty member assignment": Golden(
        "/kiel-groups/g/allocation/g_box-1700000000123-10a",
        b'{"for":"g_box-1700000000123-10a","generation":7,"partitions":{}}',
        MemberAssignment(7, ID, frozenset()).encode(),
        MemberAssignment(7, ID, frozenset()),
        MemberAssignment.parse,
    ),
    "assignment of a static member that is away": Golden(
        "/kiel-groups/g/allocation/shelf-1",
        b'{"away_since":1700000000789,"for":"g_box-1700000000123-10a","generation":7,"partitions":{"t":[2]}}',
        MemberAssignment(7, ID, frozenset({T2}), away_since_ms=1_700_000_000_789).encode(),
        MemberAssignment(7, ID, frozenset({T2}), away_since_ms=1_700_000_000_789),
        MemberAssignment.parse,
    ),
    "group settings": Golden(
        "/kiel-groups/g/config",
        b'{"auto_offset_reset":"latest","mode":"cooperative","store":"zookeeper","version":1}',
        GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="latest").encode(),
        GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="latest"),
        GroupSettings.parse,
    ),
    "history entry": Golden(
        "/kiel-groups/g/history/0000000007",
        b'{"cause":"join of b","created_at_ms":1700000000456,"generation":7,"leader":"g_box-1700000000123-10a",'
        b'"members":2,"moved":2,"partitions":3,"took_ms":12}',
        ENTRY.encode(),
        ENTRY,
        HistoryEntry.parse,
    ),
    "consumer id": Golden(
        "/consumers/g/ids/g_box-1700000000123-10a",
        b'{"pattern":"static","subscription":{"t":1,"u":1},"timestamp":"1700000000123","version":1}',
        encode_consumer_id(["u", "t"], 1_700_000_000_123),
        {"pattern": "static", "subscription": {"t": 1, "u": 1}, "timestamp": "1700000000123", "version": 1},
        parse_object,
    ),
    "owner": Golden("/consumers/g/owners/t/10", b"g_box-1700000000123-10a-0", encode_owner(ID), ID, parse_owner),
    "offset": Golden("/consumers/g/offsets/t/10", b"42", encode_offset(42), 42, parse_offset),
}

#: Data that other programs write and a group reads: bytes, value and parser.
FOREIGN: dict[str, tuple[bytes, object, Callable[[bytes, str], Any]]] = {
    "topic of Kafka": (b'{"version":1,"partitions":{"1":[1,2],"0":[2,1],"10":[1,2]}}', (0, 1, 10), parse_topic),
    "broker of Kafka": (
        b'{"jmx_port":-1,"timestamp":"1700000000123","host":"kafka-1","version":1,"port":9092}',
        ("kafka-1", 9092),
        parse_broker,
    ),
    "partition state of Kafka": (
        b'{"controller_epoch":3,"leader":2,"version":1,"leader_epoch":5,"isr":[2,1]}',
        2,
        parse_leader,
    ),
    "partition state of Kafka without a leader": (
        b'{"controller_epoch":3,"leader":-1,"version":1,"leader_epoch":6,"isr":[]}',
        -1,
        parse_leader,
    ),
    "owner of Java": (b"g_box-1700000000123-4be51e11-1", "g_box-1700000000123-4be51e11", parse_owner),
    "offset of Kafka's tools": (b"9223372036854775807", 2**63 - 1, parse_offset),
    "fields of operators in the config znode": (
        b'{"auto_offset_reset":"latest","mode":"cooperative","store":"zookeeper","version":1,"allocator":"sticky",'
        b'"debounce":{"bound_ms":2000,"quiet_ms":50},"static_grace_ms":60000,"drained":["shelf-1"]}',
        DynamicConfig(
            allocator="sticky",
            debounce=(("bound_ms", 2_000), ("quiet_ms", 50)),
            static_grace_ms=60_000,
            drained=frozenset({"shelf-1"}),
        ),
        DynamicConfig.parse,
    ),
    "member of a version without static members": (
        '{"client":"tornado","host":"bücher","pid":17,"session_timeout_ms":6000,"started_at":1700000000123,'
        '"subscription":["t","u"],"version":1}'.encode(),
        MEMBER,
        read_member,
    ),
}

PATHS = {
    "member": LAYOUT.member(ID),
    "static member": LAYOUT.member(ID),
    "group state": LAYOUT.group_state,
    "group state of a finished publication": LAYOUT.group_state,
    "group state that answers an operator's request": LAYOUT.group_state,
    "member assignment": LAYOUT.assignment(ID),
    "empty member assignment": LAYOUT.assignment(ID),
    "assignment of a static member that is away": LAYOUT.assignment("shelf-1"),
    "group settings": LAYOUT.config,
    "history entry": f"{LAYOUT.history}/0000000007",
    "consumer id": LAYOUT.consumer_id(ID),
    "owner": LAYOUT.owner(T10),
    "offset": LAYOUT.offset(T10),
}

JSON = [name for name, golden in WRITTEN.items() if golden.data.startswith(b"{")]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_value_is_written_to_its_golden_bytes(name: str) -> None:
    """Each value is written to its golden bytes, at its golden path."""
    golden = WRITTEN[name]
    assert (PATHS[name], golden.written) == (golden.path, golden.data)


@pytest.mark.parametrize("name", WRITTEN)
def test_golden_bytes_are_read_back(name: str) -> None:
    """Golden bytes are parsed into the value from which they were written."""
    golden = WRITTEN[name]
    assert golden.read(golden.data, golden.path) == golden.value


@pytest.mark.parametrize("name", JSON)
def test_a_later_version_may_add_fields(name: str) -> None:
    """A later version may add fields: unknown fields, blanks, and the order of the fields are ignored."""
    golden = WRITTEN[name]
    fields = {"of_a_later_version": [1], **dict(reversed(json.loads(golden.data).items()))}
    later = golden.read(json.dumps(fields, indent=1).encode(), golden.path)
    if isinstance(later, dict):
        assert later.pop("of_a_later_version") == [1]
    assert later == golden.value


@pytest.mark.parametrize("name", FOREIGN)
def test_data_of_other_programs_is_read(name: str) -> None:
    """Data that Kafka, Java consumers, operators and earlier versions write is read."""
    data, value, read = FOREIGN[name]
    assert read(data, "/path") == value


def test_paths_of_kafka() -> None:
    """Topics and partition states are read at Kafka's paths."""
    assert topic_path("t") == "/brokers/topics/t"
    assert partition_state_path(T10) == "/brokers/topics/t/partitions/10/state"


#: The weights of two partitions, compressed by zlib 1.2.13. Other versions may return other bytes.
PACKED = bytes.fromhex(
    "789cab562a4b2d2acecccf53b232d4512a4fcd4ccf282956b2aa562ab1323450b232d201328c94ac0cf44c6b6b013edb0d27"
)
WEIGHTS = {T10: 2.0, T2: 0.5}


def test_weights_are_written_to_their_golden_json_and_compressed() -> None:
    """
    Weights are written to their golden JSON, and compressed. The compressed bytes are not golden, because they may
    differ between versions of zlib.
    """
    assert LAYOUT.weights == "/kiel-groups/g/weights"
    assert zlib.decompress(encode_weights(WEIGHTS)) == b'{"version":1,"weights":{"t:10":2,"t:2":0.5}}'


def test_golden_weights_are_read_back() -> None:
    """Golden weights are read back, whether an earlier version compressed them, or a later version added a field."""
    assert parse_weights(PACKED, LAYOUT.weights) == WEIGHTS
    later = zlib.compress(b'{"version":1,"weights":{"t:10":2,"t:2":0.5},"unit":"bytes"}')
    assert parse_weights(later, LAYOUT.weights) == WEIGHTS


def test_a_history_entry_is_written_to_its_golden_path() -> None:
    """The name of a history entry has ten digits, so that a listing is in the order of the generations."""
    (operation,) = record(LAYOUT, ENTRY, kept=())
    assert operation == Create("/kiel-groups/g/history/0000000007", WRITTEN["history entry"].data)
    assert generation_of("0000000007") == 7


def test_an_election_znode_has_its_golden_name() -> None:
    """
    An election znode has its golden prefix, to which ZooKeeper appends ten digits. The lowest number decides which
    candidate leads.
    """
    assert LAYOUT.candidate_prefix("0f3a") == "/kiel-groups/g/election/0f3a-n_"
    assert sequence("0f3a-n_0000000012") == 12
