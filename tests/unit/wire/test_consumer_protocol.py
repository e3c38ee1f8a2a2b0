"""
The "consumer" protocol, byte by byte.

The bytes of version 0 are those that kafka-python 2.0.6 and, where they are marked so, Java's client 0.9.0.1 encode for
the same values. Those of version 1 are of Java's client 2.8.2.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE, ConsumerAssignment, ConsumerSubscription
from tests.helpers.reference_codec import array, blob, int16, int32, string

pytestmark = pytest.mark.unit

SUBSCRIPTIONS: list[tuple[ConsumerSubscription, str]] = [
    # These three are also Java's.
    (ConsumerSubscription(("b", "a"), b""), "00000000000200016200016100000000"),
    (ConsumerSubscription(("b", "a"), None), "000000000002000162000161ffffffff"),
    (ConsumerSubscription(("clicks",), b"\1\2"), "0000000000010006636c69636b73000000020102"),
    (ConsumerSubscription((), b""), "00000000000000000000"),
]

ASSIGNMENTS: list[tuple[ConsumerAssignment, str]] = [
    (
        ConsumerAssignment({"b": (2, 0), "a": (1,)}, b""),
        "000000000002000162000000020000000200000000000161000000010000000100000000",
    ),
    (
        ConsumerAssignment({"b": (2, 0), "a": (1,)}, None),
        "0000000000020001620000000200000002000000000001610000000100000001ffffffff",
    ),
    (ConsumerAssignment({"a": (1,)}, b"\1\2"), "0000000000010001610000000100000001000000020102"),
    (ConsumerAssignment({}, b""), "00000000000000000000"),
    # These three are Java's, whose leaders list topics in the order of a hash table.
    (
        ConsumerAssignment({"a": (1,), "b": (2, 0)}, b""),
        "000000000002000161000000010000000100016200000002000000020000000000000000",
    ),
    (
        ConsumerAssignment({"a": (1,), "b": (2, 0)}, b"\1\2"),
        "0000000000020001610000000100000001000162000000020000000200000000000000020102",
    ),
    (
        ConsumerAssignment({"a": (1,), "b": (2, 0)}, None),
        "0000000000020001610000000100000001000162000000020000000200000000ffffffff",
    ),
]

NEWER_SUBSCRIPTIONS: list[tuple[ConsumerSubscription, str]] = [
    # Owns a:1, b:0 and b:2.
    (
        ConsumerSubscription(("a", "b"), None, 1),
        "000100000002000161000162ffffffff000000020001610000000100000001000162000000020000000000000002",
    ),
    # Owns nothing.
    (ConsumerSubscription(("a", "b"), b"\1\2", 1), "00010000000200016100016200000002010200000000"),
]

NEWER_ASSIGNMENTS: list[tuple[ConsumerAssignment, str]] = [
    (
        ConsumerAssignment({"a": (1,), "b": (2, 0)}, None, 1),
        "0001000000020001610000000100000001000162000000020000000200000000ffffffff",
    ),
    (
        ConsumerAssignment({"a": (1,), "b": (2, 0)}, b"\1\2", 1),
        "0001000000020001610000000100000001000162000000020000000200000000000000020102",
    ),
]


@pytest.mark.parametrize(("subscription", "expected"), SUBSCRIPTIONS)
def test_a_subscription_has_the_bytes_of_other_clients(subscription: ConsumerSubscription, expected: str) -> None:
    """A subscription has the bytes of other clients, with its topics in the given order, and is read from them."""
    assert subscription.encode().hex() == expected
    assert ConsumerSubscription.parse(bytes.fromhex(expected), "a subscription") == subscription


@pytest.mark.parametrize(("assignment", "expected"), ASSIGNMENTS)
def test_an_assignment_has_the_bytes_of_other_clients(assignment: ConsumerAssignment, expected: str) -> None:
    """An assignment has the bytes of other clients, with its partitions in the given order, and is read from them."""
    assert assignment.encode().hex() == expected
    parsed = ConsumerAssignment.parse(bytes.fromhex(expected), "an assignment")
    assert parsed == assignment
    assert list(parsed.partitions) == list(assignment.partitions)


def test_subscription_of_a_newer_client_is_read() -> None:
    """A subscription of version 1 is read without the owned partitions at its end, as is any later version."""
    for subscription, data in NEWER_SUBSCRIPTIONS:
        assert ConsumerSubscription.parse(bytes.fromhex(data), "a subscription") == subscription
    later = int16(9) + array(string("a")) + blob(None) + b"fields of a later version"
    assert ConsumerSubscription.parse(later, "a subscription") == ConsumerSubscription(("a",), None, 9)


def test_assignment_of_a_newer_leader_is_read() -> None:
    """An assignment of version 1 is read, as is any later version, whose appended fields are ignored."""
    for assignment, data in NEWER_ASSIGNMENTS:
        assert ConsumerAssignment.parse(bytes.fromhex(data), "an assignment") == assignment
    later = int16(9) + array(string("a") + array(int32(1))) + blob(b"") + b"fields of a later version"
    assert ConsumerAssignment.parse(later, "an assignment") == ConsumerAssignment({"a": (1,)}, b"", 9)


def test_no_bytes_are_an_assignment_without_partitions() -> None:
    """A member that the leader has not named gets no bytes at all, which means no partitions."""
    for nothing in (b"", memoryview(b"")):
        assert ConsumerAssignment.parse(nothing, "an assignment") == ConsumerAssignment({})
    with pytest.raises(ProtocolError, match="a subscription of 0 bytes"):
        ConsumerSubscription.parse(b"", "a subscription")


def test_repeated_topics_and_partitions_of_an_assignment_count_once() -> None:
    """Partitions of a topic that is named twice belong together, and a repeated partition counts once."""
    data = int16(0) + array(*(string("a") + array(*map(int32, ids)) for ids in ((3, 1), (1, 2)))) + blob(None)
    assert ConsumerAssignment.parse(data, "an assignment") == ConsumerAssignment({"a": (3, 1, 2)})


@pytest.mark.parametrize("parse", [ConsumerSubscription.parse, ConsumerAssignment.parse])
def test_a_negative_version_is_refused(parse: Callable[[bytes, str], object]) -> None:
    """A negative version is refused, and the error names the data."""
    with pytest.raises(ProtocolError, match="the data of m-1 of 10 bytes holds version -1 of the consumer protocol"):
        parse(int16(-1) + array() + blob(b""), "the data of m-1")


@pytest.mark.parametrize("number", [-1, -(2**31)])
def test_a_negative_partition_is_refused(number: int) -> None:
    """A negative partition is refused."""
    with pytest.raises(ProtocolError, match=f"holds partition {number}"):
        ConsumerAssignment.parse(int16(0) + array(string("a") + array(int32(number))) + blob(b""), "an assignment")


def test_truncated_data_is_refused() -> None:
    """No prefix of version 0 is valid, except no bytes, which are an assignment; nor are bytes after its end."""
    for _, data in SUBSCRIPTIONS:
        refuse_changed_lengths(ConsumerSubscription, bytes.fromhex(data), 0)
    for _, assigned in ASSIGNMENTS:
        refuse_changed_lengths(ConsumerAssignment, bytes.fromhex(assigned), 1)


def refuse_changed_lengths(
    kind: type[ConsumerSubscription] | type[ConsumerAssignment], data: bytes, least: int
) -> None:
    for changed in [*(data[:end] for end in range(least, len(data))), data + b"\0"]:
        with pytest.raises(ProtocolError):
            kind.parse(changed, "data")


def test_only_version_0_is_encoded() -> None:
    """A later version is not encoded, because its other fields are not kept."""
    for value in (ConsumerSubscription((), version=1), ConsumerAssignment({}, version=1)):
        with pytest.raises(ConfigError, match="version 1 of the consumer protocol cannot be encoded"):
            value.encode()


def test_topic_that_does_not_fit_is_the_callers_error() -> None:
    """A topic or a partition that does not fit into its type raises a ConfigError."""
    with pytest.raises(ConfigError, match="at most 32767 bytes"):
        ConsumerSubscription(("t" * 40_000,)).encode()
    with pytest.raises(ConfigError, match="not an int32"):
        ConsumerAssignment({"t": (1 << 31,)}).encode()


def test_parsed_user_data_is_a_copy() -> None:
    """User data is a copy, because a leader keeps it longer than the buffer of the response."""
    data = bytearray(ConsumerSubscription(("a",), b"x").encode())
    parsed = ConsumerSubscription.parse(data, "a subscription")
    data[-1] = ord("y")
    assert parsed.user_data == b"x"
    assert type(parsed.user_data) is bytes


def test_the_protocol_type_is_that_of_all_consumers() -> None:
    """The protocol type is the one of Java's and kafka-python's consumers."""
    assert PROTOCOL_TYPE == "consumer"
