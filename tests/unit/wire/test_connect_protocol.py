"""
The "connect" protocol, byte by byte.

The bytes of version 0 are those that the class ConnectProtocol of Java's connect-runtime 1.0.0 serializes for the same
values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.wire.connect_protocol import (
    CONFIG_MISMATCH,
    CONNECTOR_TASK,
    NO_OFFSET,
    ConnectAssignment,
    ConnectMetadata,
    StickyMetadata,
)
from tests.helpers.reference_codec import array, int16, int32, int64, string

pytestmark = pytest.mark.unit

URL = "http://127.0.0.1:8083/"

METADATA: list[tuple[ConnectMetadata, str]] = [
    (ConnectMetadata(URL, 5), "00000016687474703a2f2f3132372e302e302e313a383038332f0000000000000005"),
    (ConnectMetadata("", NO_OFFSET), "00000000ffffffffffffffff"),
    (
        ConnectMetadata("http://m\u00fcnchen:1/", 1 << 40),
        "00000012687474703a2f2f6dc3bc6e6368656e3a312f0000010000000000",
    ),
]

_HEADER = "00036d2d310016687474703a2f2f3132372e302e302e313a383038332f"

ASSIGNMENTS: list[tuple[ConnectAssignment, str]] = [
    (
        ConnectAssignment(0, "m-1", URL, 5, {"a": (CONNECTOR_TASK, 0, 2)}),
        f"00000000{_HEADER}00000000000000050000000100016100000003ffffffff0000000000000002",
    ),
    (
        ConnectAssignment(0, "m-1", URL, 5, {"b": (CONNECTOR_TASK, 0), "a": (1,)}),
        f"00000000{_HEADER}00000000000000050000000200016200000002ffffffff000000000001610000000100000001",
    ),
    (ConnectAssignment(0, "m-1", URL, 5, {}), f"00000000{_HEADER}000000000000000500000000"),
    (ConnectAssignment(CONFIG_MISMATCH, "m-1", URL, 7, {}), f"00000001{_HEADER}000000000000000700000000"),
    (
        ConnectAssignment(0, "m-1", "u", NO_OFFSET, {"a": (CONNECTOR_TASK,), "b": (CONNECTOR_TASK,), "c": (10,)}),
        "0000000000036d2d31000175ffffffffffffffff0000000300016100000001ffffffff00016200000001ffffffff0001630000000100"
        "00000a",
    ),
]

STICKY = StickyMetadata("u", 5, 3, {"a": (CONNECTOR_TASK, 1)})
STICKY_BYTES = (
    int16(0) + string("u") + int64(5) + int32(3) + array(string("a") + array(int32(CONNECTOR_TASK), int32(1)))
)


@pytest.mark.parametrize(("metadata", "expected"), METADATA)
def test_metadata_has_the_bytes_of_java(metadata: ConnectMetadata, expected: str) -> None:
    """A worker's metadata has the bytes of Java, and is read from them."""
    assert metadata.encode().hex() == expected
    assert ConnectMetadata.parse(bytes.fromhex(expected), "the metadata") == metadata


@pytest.mark.parametrize(("assignment", "expected"), ASSIGNMENTS)
def test_an_assignment_has_the_bytes_of_java(assignment: ConnectAssignment, expected: str) -> None:
    """An assignment has the bytes of Java, with the connector itself as task -1, and is read from them."""
    assert assignment.encode().hex() == expected
    parsed = ConnectAssignment.parse(bytes.fromhex(expected), "the assignment")
    assert parsed == assignment
    assert list(parsed.work) == list(assignment.work)
    assert parsed.is_failed == (assignment.error == CONFIG_MISMATCH)


def test_sticky_metadata_appends_the_work_that_the_worker_had() -> None:
    """The metadata of the sticky protocol is that of Java with a generation and the worker's last work."""
    assert STICKY.encode() == STICKY_BYTES
    assert StickyMetadata.parse(STICKY_BYTES, "the metadata") == STICKY


Metadata: TypeAlias = ConnectMetadata | StickyMetadata | ConnectAssignment


@pytest.mark.parametrize(
    ("data", "parse"),
    [
        (ConnectMetadata("u", 5).encode(), ConnectMetadata.parse),
        (STICKY_BYTES, StickyMetadata.parse),
        (ConnectAssignment(0, "m-1", "u", 5, {"a": (0,)}).encode(), ConnectAssignment.parse),
    ],
)
def test_fields_of_a_later_version_are_ignored(data: bytes, parse: Callable[[bytes, str], Metadata]) -> None:
    """Bytes of a later version are read as those of version 0; what follows is ignored."""
    former = parse(data, "the data")
    assert parse(int16(1) + data[2:] + b"more", "the data") == replace(former, version=1)


@pytest.mark.parametrize(
    ("data", "parse", "found"),
    [
        (b"", ConnectMetadata.parse, "URL, configuration offset) of 0 bytes holds a value of 2 bytes"),
        (b"", ConnectAssignment.parse, "error, leader, URL, configuration offset, work) of 0 bytes"),
        (b"", StickyMetadata.parse, "URL, configuration offset, generation, work) of 0 bytes"),
        (int16(-1) + string("u") + int64(5), ConnectMetadata.parse, "version -1 of the connect protocol"),
        (int16(0) + string("u") + int64(5) + b"x", ConnectMetadata.parse, "1 bytes after its end"),
        (int16(0) + string(None) + int64(5), ConnectMetadata.parse, "a length of -1"),
        (int16(0) + int16(1) + b"\xff" + int64(5), ConnectMetadata.parse, "no UTF-8"),
        (STICKY_BYTES[:-1], StickyMetadata.parse, "an array of 2 elements, with 7 bytes left"),
        (STICKY_BYTES + b"x", StickyMetadata.parse, "1 bytes after its end"),
        (STICKY_BYTES[:-4] + int32(-2), StickyMetadata.parse, "task -2"),
        (bytes.fromhex(ASSIGNMENTS[0][1]) + b"x", ConnectAssignment.parse, "1 bytes after its end"),
        (bytes.fromhex(ASSIGNMENTS[0][1])[:-4] + int32(-2), ConnectAssignment.parse, "task -2"),
        (bytes.fromhex(ASSIGNMENTS[2][1])[:-4] + int32(-1), ConnectAssignment.parse, "an array of -1 elements"),
    ],
)
def test_malformed_bytes_are_refused(data: bytes, parse: Callable[[bytes, str], object], found: str) -> None:
    """Malformed bytes raise an error that names the data, what was expected, and what was found."""
    with pytest.raises(ProtocolError, match=r"^the data of m-1 \(expected: version, ") as raised:
        parse(data, "the data of m-1")
    assert found in str(raised.value)


def test_a_task_that_is_named_twice_counts_once() -> None:
    """A connector that occurs twice in an assignment has the tasks of both, each once."""
    twice = array(string("a") + array(int32(1), int32(1)), string("a") + array(int32(0), int32(1)))
    data = int16(0) + int16(0) + string("m-1") + string("u") + int64(5) + twice
    assert ConnectAssignment.parse(data, "the assignment").work == {"a": (1, 0)}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (ConnectMetadata("u", 5, 1), "version 1 of the connect protocol"),
        (ConnectMetadata("u", 1 << 63), "not an int64"),
        (ConnectMetadata("u" * 40_000, 5), "a text of 40000 bytes"),
        (ConnectAssignment(0, "m-1", "u", 5, {"a": (1 << 31,)}), "not an int32"),
    ],
)
def test_what_does_not_fit_is_refused(value: ConnectMetadata | ConnectAssignment, named: str) -> None:
    """A value that the bytes cannot express is refused before it is sent."""
    with pytest.raises(ConfigError, match=named):
        value.encode()
