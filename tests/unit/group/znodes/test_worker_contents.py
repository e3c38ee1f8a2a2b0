"""
The bytes of the znodes of a group's workers, and what is refused.

Workers of different versions share a group, so each value is written to exactly these bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.worker_contents import (
    LARGEST_TRACE_BYTES,
    LONGEST_KEY,
    MOST_KEYS,
    ConfigChange,
    SourceOffset,
    StoredConnector,
    WorkStatus,
    canonical_json,
    changed_keys,
    check_texts,
    encode_config_offset,
    parse_config_offset,
    partition_digest,
)

pytestmark = pytest.mark.unit

CONNECTOR = StoredConnector(
    name="c", config={"name": "c", "file": "/ä"}, target="PAUSED", tasks=({"file": "/1"}, {}), offset=3
)
CONNECTOR_BYTES = (
    '{"config":{"file":"/ä","name":"c"},"name":"c","offset":3,"target":"PAUSED","tasks":[{"file":"/1"},{}],"version":1}'
).encode()
STATUS = WorkStatus(state="FAILED", worker="h:8083", trace="ValueError", generation=4)
CHANGE = ConfigChange(
    offset=3, what="configured", connector="c", worker="w", at_ms=1_700_000_000_123, keys=("file",), uid="u"
)


def test_a_connector_is_written_to_these_bytes_and_read_back() -> None:
    """A connector without a task set differs from one without tasks."""
    assert CONNECTOR.encode() == CONNECTOR_BYTES
    assert StoredConnector.parse("c", CONNECTOR_BYTES, "p") == CONNECTOR
    fresh = StoredConnector(name="c", config={})
    assert b'"tasks":null' in fresh.encode()
    assert StoredConnector.parse("c", fresh.encode(), "p") == fresh


def test_the_configuration_offset_is_written_to_these_bytes() -> None:
    """An empty znode, as it is created with its folders, has the offset 0."""
    assert encode_config_offset(7) == b'{"offset":7,"version":1}'
    assert parse_config_offset(b'{"offset":7,"version":1}', "p") == 7
    assert parse_config_offset(b"", "p") == 0
    with pytest.raises(ProtocolError, match=r'^p: .*; to repair it, write \{"version":1,"offset":N\} to this znode'):
        parse_config_offset(b'{"version":1}', "p")


def test_a_status_is_written_to_these_bytes_and_read_back() -> None:
    """The address of the owner has the name that Kafka Connect gives it."""
    written = b'{"generation":4,"state":"FAILED","trace":"ValueError","version":1,"worker_id":"h:8083"}'
    assert STATUS.encode() == written
    assert WorkStatus.parse(written, "p") == STATUS


def test_a_change_is_written_to_these_bytes_and_read_back() -> None:
    """An entry of the history has names of settings."""
    written = (
        b'{"connector":"c","keys":["file"],"offset":3,"uid":"u","version":1,"what":"configured",'
        b'"when":1700000000123,"worker":"w"}'
    )
    assert CHANGE.encode() == written
    assert ConfigChange.parse(written, "p") == CHANGE


def test_a_source_offset_is_written_to_canonical_json() -> None:
    """Equal partitions have one znode, whatever the order of their keys."""
    stored = SourceOffset({"b": [1, None], "a": "ü"}, {"position": 2.5})
    assert stored.encode() == '{"offset":{"position":2.5},"partition":{"a":"ü","b":[1,null]}}'.encode()
    digest = partition_digest({"a": "ü", "b": (1, None)})
    assert digest == "d1f6fabe14116ec390f75d9e52db94c94ee143a8"
    assert SourceOffset.parse(stored.encode(), f"/x/{digest}") == stored


def test_an_offset_in_the_znode_of_another_partition_is_refused() -> None:
    """A znode whose name is not the digest of its partition was not written by a worker."""
    with pytest.raises(ProtocolError, match=r"^/x/0: the source partition in it belongs into the znode [0-9a-f]{40}$"):
        SourceOffset.parse(SourceOffset({}, {}).encode(), "/x/0")


@pytest.mark.parametrize(
    "value",
    [{1: "x"}, {"x": float("nan")}, {"x": {"y": {2}}}, {"x": "\ud800"}, {"x": b""}, [], "x", {"x": 10**5000}],
)
def test_values_without_a_form_in_json_are_refused(value: Mapping[str, object]) -> None:
    """A partition or an offset that would be read back as another value is refused."""
    with pytest.raises(ConfigError, match=r"^source offset: "):
        canonical_json(value, "source offset")


def test_a_value_of_too_many_levels_is_refused() -> None:
    """A value that refers to itself ends with a ConfigError, too."""
    value: dict[str, object] = {}
    value["x"] = value
    with pytest.raises(ConfigError, match="no form in JSON"):
        canonical_json(value, "source offset")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b'{"version":2}',
        CONNECTOR_BYTES.replace(b'"name":"c","offset"', b'"name":"d","offset"'),
        CONNECTOR_BYTES.replace(b"PAUSED", b"GONE"),
        CONNECTOR_BYTES.replace(b"[{", b"[7,{"),
        CONNECTOR_BYTES.replace(b'"/1"', b"1"),
        CONNECTOR_BYTES.replace(b'"/1"', rb'"\ud800"'),
        CONNECTOR_BYTES.replace(b":3", b":-3"),
        CONNECTOR_BYTES.replace(b":3", b":true"),
        CONNECTOR_BYTES.replace(b'"tasks":[', b'"tasks":"x","x":['),
    ],
)
def test_garbage_in_a_connectors_znode(data: bytes) -> None:
    """Anything but a connector of this name is refused, with the path."""
    with pytest.raises(ProtocolError, match=r"^/the/path: "):
        StoredConnector.parse("c", data, "/the/path")


def test_errors_do_not_show_values_of_settings() -> None:
    """A setting may be a password, so the error about a wrong type does not have its value."""
    for data in (
        CONNECTOR_BYTES.replace(b'"/1"', b"[4711]"),
        CONNECTOR_BYTES.replace(b'[{"file":"/1"},{}]', b'"4711"'),
    ):
        with pytest.raises(ProtocolError) as refused:
            StoredConnector.parse("c", data, "p")
        assert "4711" not in str(refused.value)
    with pytest.raises(ConfigError) as wrong:
        check_texts({"port": 4711}, "connector 'c'")  # type: ignore[dict-item]
    assert "4711" not in str(wrong.value)
    assert "'port'" in str(wrong.value)


def test_the_end_of_a_long_trace_is_stored() -> None:
    """A trace is cut to 8 KiB, within a character too, and its end stays: there is the error."""
    trace = "ä" * 10_000 + "ValueError: x"
    stored = WorkStatus.parse(WorkStatus(state="FAILED", worker="", trace=trace).encode(), "p").trace
    assert stored.startswith("...\n")
    assert stored.endswith("äValueError: x")
    assert LARGEST_TRACE_BYTES - 2 <= len(stored.encode()) <= LARGEST_TRACE_BYTES


def test_a_trace_that_is_no_text_is_stored() -> None:
    """Half of a surrogate pair, as in the names of some files, does not keep a status from being stored."""
    status = WorkStatus(state="FAILED", worker="", trace="no file \udcff")
    assert WorkStatus.parse(status.encode(), "p").trace == r"no file \udcff"


def test_a_history_entry_names_changed_settings() -> None:
    """Added, removed and changed settings are named; there are limits for their number and their length."""
    assert changed_keys({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == ("b", "c", "d")
    many = changed_keys({}, {f"{number:03d}" + "x" * 200: "" for number in range(200)})
    assert len(many) == MOST_KEYS
    assert {len(key) for key in many} == {LONGEST_KEY}


def test_a_problem_of_work_that_runs_is_stored() -> None:
    """Without one, the status has no such field, as those of earlier versions. A long one is cut to 1 KiB."""
    status = WorkStatus(state="RUNNING", worker="h:8083", problem="no topic")
    written = b'{"generation":0,"problem":"no topic","state":"RUNNING","trace":"","version":1,"worker_id":"h:8083"}'
    assert status.encode() == written
    assert WorkStatus.parse(written, "p") == status
    assert WorkStatus.parse(STATUS.encode(), "p").problem == ""
    measured = WorkStatus(state="RUNNING", worker="", metrics=(("lag", (("topic", "a"),), 5.0), ("records", (), 7)))
    assert b'"metrics":[["lag",{"topic":"a"},5.0],["records",{},7]]' in measured.encode()
    assert repr(WorkStatus.parse(measured.encode(), "p").metrics) == repr(measured.metrics)
    for garbage in (b'["a-b",{},1]', b'["a",{"b-c":"d"},1]', b'["a",{"b":1},1]', b'["a",{},"1"]', b"7"):
        with pytest.raises(ProtocolError, match="p: field 'metrics' should have "):
            WorkStatus.parse(measured.encode().replace(b'["records",{},7]', garbage), "p")
    long = WorkStatus(state="RUNNING", worker="", problem="x" + "ä" * 1_000)
    assert WorkStatus.parse(long.encode(), "p").problem == "x" + "ä" * 511
    with pytest.raises(ProtocolError, match="'problem'"):
        WorkStatus.parse(written.replace(b'"no topic"', b"1"), "p")
