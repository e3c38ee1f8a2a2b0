"""What a task asks for in one request: enough of a few ranges, and all of those that are short."""

from __future__ import annotations

import logging

import pytest

from kiel_groups.errors import OffsetOutOfRangeError, RetriableBrokerError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange
from kiel_groups.spark.tasks.range_reader import RangeReader, ask_for
from kiel_groups.wire.api.fetch_v0 import FetchedPartition
from kiel_groups.wire.error_codes import NO_ERROR
from tests.helpers.reference_codec import encode

pytestmark = pytest.mark.spark

MIB = 1 << 20


def reading(partition: int, start: int, end: int) -> RangeReader:
    return RangeReader(OffsetRange(TopicPartition("t", partition), start, end), True, 16 * MIB)


def answer(start: int, end: int, value_bytes: int) -> FetchedPartition:
    messages = encode((offset, None, bytes(value_bytes)) for offset in range(start, end))
    return FetchedPartition(NO_ERROR, end, memoryview(messages))


def empty(high_watermark: int) -> FetchedPartition:
    return FetchedPartition(NO_ERROR, high_watermark, memoryview(b""))


def take(each: RangeReader, fetched: FetchedPartition) -> object:
    return each.take(fetched, each.ask(MIB))


def came_empty(each: RangeReader, times: int) -> None:
    """Have so many answers without a message come, each of which is doubted."""
    for _ in range(times):
        with pytest.raises(RetriableBrokerError, match=r"offsets 3 to 10 .* a log of up to 12 and sends no message"):
            take(each, empty(12))
        assert each.position == 3


def test_an_empty_answer_is_doubted() -> None:
    """The watermark may be newer than what was read of the log: the broker is asked again, and nothing is skipped."""
    each = reading(0, 0, 10)
    take(each, answer(0, 3, 100))
    came_empty(each, 4)
    take(each, answer(3, 10, 100))
    assert each.finished
    assert each.read_offsets == 10


def test_answers_are_counted_in_a_row() -> None:
    """A message in between, and the next empty answer is the first one again."""
    each = reading(0, 0, 10)
    for first, end in ((0, 1), (1, 3)):
        take(each, answer(first, end, 100))
        if first:
            came_empty(each, 4)
        else:
            for _ in range(4):
                with pytest.raises(RetriableBrokerError):
                    take(each, empty(12))


def test_empty_answers_in_a_row_are_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    """As any other: an error that says what to do, or a warning where failOnDataLoss is false."""
    strict = reading(0, 3, 10)
    came_empty(strict, 4)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"asked 5 times: they are lost, unless compaction .* failOnDataLoss"
    ):
        take(strict, empty(12))
    assert not strict.finished
    lenient = reading(0, 3, 10)
    lenient.fail_on_data_loss = False
    came_empty(lenient, 4)
    assert take(lenient, empty(12)) is None
    assert lenient.finished
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_empty_answer_below_the_watermark_is_waited_for() -> None:
    """The log does not have the range yet, as far as this broker knows."""
    each = reading(0, 3, 10)
    for _ in range(10):
        assert take(each, empty(9)) is None
    assert each.position == 3


def test_what_compaction_has_taken_is_passed_over() -> None:
    """A later message behind a gap is evidence: the range is finished without a doubt."""
    each = reading(0, 3, 10)
    assert take(each, answer(11, 12, 100)) is None
    assert each.finished


def test_long_ranges_are_read_one_after_the_other() -> None:
    """Each request of a broker's costs it the same search, however little is asked for."""
    lane = [reading(number, 0, 1_000_000) for number in range(10)]
    assert ask_for(lane, MIB) == {lane[0]: (0, MIB)}
    lane[0].position = lane[0].range.end
    assert ask_for(lane, MIB) == {lane[1]: (0, MIB)}


def test_short_ranges_share_one_request() -> None:
    """A micro-batch with a few messages in each partition is one answer."""
    lane = [reading(number, 100, 110) for number in range(25)]
    asked = ask_for(lane, MIB)
    assert list(asked) == lane
    assert sum(position.max_bytes for position in asked.values()) <= MIB


def test_what_is_left_of_an_answer_goes_to_the_next_ranges() -> None:
    """A range whose messages are known asks for what it still needs, and a little more."""
    first, second, third = reading(0, 0, 2_000), reading(1, 0, 500), reading(2, 0, 500)
    first.take(answer(0, 1_000, 100), ask_for([first], MIB)[first])
    asked = ask_for([first, second, third], MIB)
    assert asked[first].offset == 1_000
    assert 126_000 < asked[first].max_bytes < 150_000
    assert list(asked) == [first, second]


def test_finished_ranges_are_not_asked_for() -> None:
    """Nor is anything where all are."""
    done, open_ = reading(0, 5, 5), reading(1, 5, 6)
    assert list(ask_for([done, open_], MIB)) == [open_]
    assert ask_for([done], MIB) == {}


def test_ranges_of_one_partition_follow_one_another() -> None:
    """A request has room for one of them."""
    lane = [reading(0, 0, 10), reading(0, 50, 60), reading(1, 0, 10)]
    assert list(ask_for(lane, MIB)) == [lane[0], lane[2]]


def test_a_large_message_is_asked_for_alone() -> None:
    """However small answers are to be, it comes whole."""
    large, other = reading(0, 0, 10), reading(1, 0, 10)
    large.needed_bytes = 5 * MIB
    assert ask_for([large, other], MIB) == {large: (0, 5 * MIB)}
    assert list(ask_for([other, large], MIB)) == [other]
