"""The fetch requests of a task: a few ranges with enough bytes each, or many short ranges together."""

from __future__ import annotations

import logging

import pytest

from kiel_groups.errors import DamagedRecordError, OffsetOutOfRangeError, ProtocolError, RetriableBrokerError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import OffsetRange
from kiel_groups.spark.read_task import RangeReader, ask_for
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.fetch import FetchedPartition
from tests.helpers.message_sets import WAYS, WRAPPED, filler, with_flipped_bit
from tests.helpers.message_sets import reading as decoding
from tests.helpers.reference_codec import encode, message, wrapper

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


def take_empty_answers(each: RangeReader, times: int) -> None:
    """Pass ``times`` answers without a message, and assert that each one causes a retry."""
    for _ in range(times):
        with pytest.raises(RetriableBrokerError, match=r"offsets 3 to 10 .* a log of up to 12 and sends no message"):
            take(each, empty(12))
        assert each.position == 3


def test_an_empty_answer_is_retried() -> None:
    """
    A request with an empty answer is repeated, because the high watermark may be newer than the broker's read of the
    log. So no record is skipped.
    """
    each = reading(0, 0, 10)
    take(each, answer(0, 3, 100))
    take_empty_answers(each, 4)
    take(each, answer(3, 10, 100))
    assert each.finished
    assert each.sizes.read_offsets == 10


def test_offsets_without_messages_are_passed() -> None:
    """
    Where a newer broker sends only filler, the next offset is read, with a larger fetch: the log has no message there.
    The range may end with such an offset.
    """
    each = reading(0, 3, 6)
    asked = each.ask(MIB)
    assert each.take(FetchedPartition(NO_ERROR, 6, memoryview(filler(12))), asked) is None
    assert each.ask(MIB) == (4, 2 * asked.max_bytes)
    assert take(each, answer(4, 5, 100)) is not None
    take(each, FetchedPartition(NO_ERROR, 6, memoryview(filler(30))))
    assert each.finished


def test_an_empty_answer_enlarges_the_fetch() -> None:
    """After an empty answer, the largest fetch is sent: a newer broker sends nothing of a message that is larger."""
    each = reading(0, 3, 10)
    take_empty_answers(each, 1)
    assert each.ask(MIB) == (3, 16 * MIB)
    take(each, answer(3, 4, 100))
    assert each.ask(MIB).max_bytes < MIB


def test_only_consecutive_empty_answers_count() -> None:
    """After a message the count of empty answers starts again at 0."""
    each = reading(0, 0, 10)
    for first, end in ((0, 1), (1, 3)):
        take(each, answer(first, end, 100))
        if first:
            take_empty_answers(each, 4)
        else:
            for _ in range(4):
                with pytest.raises(RetriableBrokerError):
                    take(each, empty(12))


def test_consecutive_empty_answers_are_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    """The fifth empty answer is an error with the remedy, or a warning with failOnDataLoss=false."""
    strict = reading(0, 3, 10)
    take_empty_answers(strict, 4)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"asked 5 times: they are lost, unless compaction .* failOnDataLoss"
    ):
        take(strict, empty(12))
    assert not strict.finished
    lenient = reading(0, 3, 10)
    lenient.fail_on_data_loss = False
    take_empty_answers(lenient, 4)
    assert take(lenient, empty(12)) is None
    assert lenient.finished
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_empty_answer_below_the_range_is_not_counted() -> None:
    """If the broker's log does not reach the range yet, the task waits, and empty answers do not count."""
    each = reading(0, 3, 10)
    for _ in range(10):
        assert take(each, empty(9)) is None
    assert each.position == 3


def test_compacted_offsets_are_skipped() -> None:
    """A message after a gap proves that the broker has read past the gap, so the range is finished without a retry."""
    each = reading(0, 3, 10)
    assert take(each, answer(11, 12, 100)) is None
    assert each.finished


@pytest.mark.parametrize("way", WAYS)
def test_damage_is_returned_with_its_range(way: str) -> None:
    """
    Messages before the damage are read first. A damaged wrapper concerns all its offsets, but none outside of the
    range, which may end within it.
    """
    plain, packed = message(5, None, b"five"), with_flipped_bit(wrapper(WRAPPED, 12), 40)
    fetched = FetchedPartition(NO_ERROR, 20, memoryview(plain + packed))
    each = reading(0, 5, 11)
    with decoding(way):
        assert take(each, fetched) is not None
        fetched = FetchedPartition(NO_ERROR, 20, memoryview(packed))
        assert take(each, fetched) is None, "the network may have damaged it"
        bad = take(each, fetched)
    assert isinstance(bad, DamagedRecordError)
    assert (bad.offset, bad.next_offset, bad.value, each.finished) == (6, 11, packed, True)
    assert "t:0 at offset 12: " in str(bad)
    assert str(bad).endswith("; this concerns the offsets 6 to 12")


def test_damage_by_the_network_is_read_again() -> None:
    """A message that is damaged in one answer, and then in another way, is not bad."""
    each = reading(0, 5, 6)
    whole = message(5, None, b"five")
    for position in (29, 28):
        assert take(each, FetchedPartition(NO_ERROR, 6, memoryview(with_flipped_bit(whole, position)))) is None
    assert take(each, FetchedPartition(NO_ERROR, 6, memoryview(whole))) is not None
    assert each.finished


def test_damage_without_a_certain_end_is_an_error() -> None:
    """Nothing is skipped by an offset that the log does not have, or that may be damaged itself."""
    each = reading(0, 5, 11)
    far = FetchedPartition(NO_ERROR, 20, memoryview(with_flipped_bit(message(99, None, b"far"), 28)))
    with pytest.raises(ProtocolError, match=r"t:0 at offset 99: .* its offset is not plausible"):
        take(each, far)
    assert each.position == 5


def test_long_ranges_are_read_one_after_the_other() -> None:
    """
    Long ranges are read one after the other, because each partition in a request costs the broker the same search,
    however few bytes the request asks for.
    """
    lane = [reading(number, 0, 1_000_000) for number in range(10)]
    assert ask_for(lane, MIB) == {lane[0]: (0, MIB)}
    lane[0].position = lane[0].range.end
    assert ask_for(lane, MIB) == {lane[1]: (0, MIB)}


def test_short_ranges_share_one_request() -> None:
    """A micro-batch with a few messages in each partition needs only one answer."""
    lane = [reading(number, 100, 110) for number in range(25)]
    asked = ask_for(lane, MIB)
    assert list(asked) == lane
    assert sum(position.max_bytes for position in asked.values()) <= MIB


def test_the_rest_of_an_answer_goes_to_the_next_ranges() -> None:
    """
    A range with a known message size requests the bytes that it still needs, and a few more. The next ranges get the
    rest of the answer.
    """
    first, second, third = reading(0, 0, 2_000), reading(1, 0, 500), reading(2, 0, 500)
    first.take(answer(0, 1_000, 100), ask_for([first], MIB)[first])
    asked = ask_for([first, second, third], MIB)
    assert asked[first].offset == 1_000
    assert 126_000 < asked[first].max_bytes < 150_000
    assert list(asked) == [first, second]


def test_finished_ranges_are_not_asked_for() -> None:
    """If all ranges are finished, no request is sent."""
    done, open_ = reading(0, 5, 5), reading(1, 5, 6)
    assert list(ask_for([done, open_], MIB)) == [open_]
    assert ask_for([done], MIB) == {}


def test_ranges_of_one_partition_are_read_one_after_the_other() -> None:
    """Ranges of one partition are read one after the other, because a request can contain each partition only once."""
    lane = [reading(0, 0, 10), reading(0, 50, 60), reading(1, 0, 10)]
    assert list(ask_for(lane, MIB)) == [lane[0], lane[2]]


def test_a_large_message_is_requested_alone() -> None:
    """A large message is fetched whole, however small the limit of an answer is."""
    large, other = reading(0, 0, 10), reading(1, 0, 10)
    large.needed_bytes = 5 * MIB
    assert ask_for([large, other], MIB) == {large: (0, 5 * MIB)}
    assert list(ask_for([other, large], MIB)) == [other]
