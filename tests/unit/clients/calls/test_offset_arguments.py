"""Partitions and offsets as applications pass them."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups import GroupedConsumer, OffsetAndMetadata, SingleConsumer, TopicPartition
from kiel_groups.clients.calls.arguments import is_partition, offsets_of, partition_of, partitions_of, times_of
from kiel_groups.errors import ArgumentTypeError, ConfigError

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("given", "offset"),
    [
        (7, OffsetAndMetadata(7, "")),
        (0, OffsetAndMetadata(0, "")),
        ((7, "x"), OffsetAndMetadata(7, "x")),
        ((7, None), OffsetAndMetadata(7, "")),
        (OffsetAndMetadata(7), OffsetAndMetadata(7, "")),
    ],
)
@pytest.mark.parametrize("partition", [T0, ("t", 0)])
def test_the_forms_of_an_offset(given: Any, offset: OffsetAndMetadata, partition: Any) -> None:
    """kafka-python's classes are tuples, and so are these; a number alone is accepted, too."""
    found = offsets_of({partition: given}, "commit()")
    assert found == {T0: offset}
    assert [type(each) for each in found] == [TopicPartition]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([T0], r"commit\(\): \[.*\] given; expected a dict of TopicPartition"),
        (7, r"commit\(\): 7 given; expected a dict"),
        ({"t": 7}, r"commit\(\): 't' given; expected TopicPartition"),
        ({("t", "0"): 7}, r"commit\(\): \('t', '0'\) given; expected TopicPartition"),
        ({("t", -1): 7}, r"expected TopicPartition\(topic, number of at least 0\)"),
        ({("t", True): 7}, "expected TopicPartition"),
        ({("not/legal", 0): 7}, "'not/legal' is not a legal name"),
        ({T0: -1}, r"commit\(\): t:0: -1 given; expected the next offset to read"),
        ({T0: 1 << 63}, "expected the next offset to read"),
        ({T0: True}, "True given; expected the next offset"),
        ({T0: "7"}, "'7' given; expected the next offset"),
        ({T0: None}, "None given; expected the next offset"),
        ({T0: (7, 8)}, r"t:0: \(7, 8\) given; expected OffsetAndMetadata"),
        ({T0: (7, "x", 1)}, "expected OffsetAndMetadata"),
    ],
)
def test_malformed_offsets_are_refused(given: Any, text: str) -> None:
    """The error names the call, the partition, what was given, and what was expected."""
    with pytest.raises(ConfigError, match=text):
        offsets_of(given, "commit()")


def test_one_partition_or_several() -> None:
    """A TopicPartition is a tuple itself, so it must not be taken for a list of partitions."""
    assert is_partition(T0)
    assert is_partition(("t", 0))
    assert not is_partition((T0, TopicPartition("t", 1)))
    assert not is_partition([T0])
    assert partition_of(("t", 3), "committed()") == ("t", 3)
    assert partitions_of([("t", 1), T0, ("t", 0)], "committed()") == [("t", 1), T0]
    for wrong in (3, "t", None, b"t", T0):
        with pytest.raises(ConfigError, match=r"committed\(\): .* given; expected a list of partitions"):
            partitions_of(wrong, "committed()")


def test_the_forms_of_a_time() -> None:
    """kafka-python drops fractions of a millisecond, too; the earlier millisecond misses nothing."""
    found = times_of({T0: 7, ("t", 1): 7.9}, "offsets_for_times()")
    assert found == {T0: 7, TopicPartition("t", 1): 7}
    assert [type(time) for time in found.values()] == [int, int]


_A_LIST = r"given; expected a list of partitions, \[TopicPartition\(topic, number\)\]"
_A_PARTITION = r"given; expected TopicPartition\(topic, number of at least 0\)"
_A_TIME = "given; expected milliseconds since 1970"


@pytest.mark.parametrize(
    ("call", "argument", "error", "text"),
    [
        ("end_offsets", T0, ArgumentTypeError, _A_LIST),
        ("end_offsets", "t", ArgumentTypeError, _A_LIST),
        ("end_offsets", None, ArgumentTypeError, _A_LIST),
        ("end_offsets", [("t", "0")], ArgumentTypeError, _A_PARTITION),
        ("end_offsets", ["t"], ArgumentTypeError, _A_PARTITION),
        ("end_offsets", [("t", -1)], ConfigError, _A_PARTITION),
        ("beginning_offsets", T0, ArgumentTypeError, _A_LIST),
        ("beginning_offsets", None, ArgumentTypeError, _A_LIST),
        ("offsets_for_times", [T0], ArgumentTypeError, "given; expected a dict of TopicPartition"),
        ("offsets_for_times", T0, ArgumentTypeError, "given; expected a dict of TopicPartition"),
        ("offsets_for_times", {"t": 5}, ArgumentTypeError, _A_PARTITION),
        ("offsets_for_times", {T0: None}, ArgumentTypeError, f"t:0: None {_A_TIME}"),
        ("offsets_for_times", {T0: "5"}, ArgumentTypeError, f"t:0: '5' {_A_TIME}"),
        ("offsets_for_times", {T0: True}, ArgumentTypeError, _A_TIME),
        ("offsets_for_times", {T0: -1}, ConfigError, f"{_A_TIME}; beginning_offsets and end_offsets"),
        ("offsets_for_times", {T0: float("nan")}, ConfigError, _A_TIME),
        ("offsets_for_times", {T0: 1 << 63}, ConfigError, _A_TIME),
        ("assign", None, ArgumentTypeError, _A_LIST),
        ("assign", T0, ArgumentTypeError, _A_LIST),
        ("assign", ["t"], ArgumentTypeError, _A_PARTITION),
        ("seek_to_end", [T0], ArgumentTypeError, _A_PARTITION),
        ("pause", [T0], ArgumentTypeError, _A_PARTITION),
        ("resume", "t", ArgumentTypeError, _A_PARTITION),
        ("position", None, ArgumentTypeError, _A_PARTITION),
        ("highwater", "t", ArgumentTypeError, _A_PARTITION),
        ("lag", "t", ArgumentTypeError, _A_PARTITION),
        ("getmany", [T0], ArgumentTypeError, _A_PARTITION),
    ],
)
async def test_likely_mistakes_are_named(call: str, argument: object, error: type[ConfigError], text: str) -> None:
    """Each error names the call, what was given, and what was expected; both consumers check alike."""
    single = SingleConsumer("localhost")
    for consumer in (single, GroupedConsumer("localhost", "group", "localhost")):
        with pytest.raises(error, match=rf"^{call}\(\): .*{text}") as refused:
            await getattr(consumer, call)(argument)
        assert refused.type is error
    await single.close()
