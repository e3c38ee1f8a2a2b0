"""Batches that are put back, errors that wait for the next call, and damage that a fetch behind it passes."""

from __future__ import annotations

import pickle

import pytest

from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch
from kiel_groups.errors import BadRecordError, DamagedRecordError, ProtocolError, RecordDeserializationError
from tests.helpers.fake_broker import message_set
from tests.helpers.fetch_bench import T0, T1, FetchBench, fetch_bench, values
from tests.helpers.message_sets import with_flipped_bit
from tests.helpers.reference_codec import message, wrapper
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


async def buffered(bench: FetchBench, *batches: bytes) -> None:
    """Have two partitions buffered: the first with these records, the second with one."""
    bench.broker.append(T0, message_set(*batches))
    bench.broker.append(T1, message_set(b"other"))
    bench.fetcher.assign({T0: 0, T1: 0})
    await eventually(lambda: bench.fetcher.is_buffering(T0) and bench.fetcher.is_buffering(T1), "both are buffered")


def poll(bench: FetchBench, most: int | None = None) -> FetchedBatch:
    """Poll the first partition."""
    found = bench.fetcher.poll(Selection(None, frozenset({T0})), most)
    assert found is not None
    return found


@pytest.mark.parametrize("most", [None, 3])
async def test_a_batch_that_is_put_back_is_the_next_one(most: int | None) -> None:
    """The rest of it comes before other partitions, whether or not it was a part of a batch."""
    async with fetch_bench() as bench:
        await buffered(bench, b"a", b"b", b"c", b"d")
        batch = poll(bench, most)
        bench.fetcher.put_back(batch, 1)
        found = [bench.fetcher.poll(), bench.fetcher.poll(), bench.fetcher.poll()]
        assert [values(each) if each else None for each in found] == [[b"b", b"c", b"d"], [b"other"], None]
        assert bench.fetcher._buffer._bytes == 0


async def test_a_caller_that_waits_is_woken_by_a_batch_that_is_put_back() -> None:
    """Also one that waits for some partitions."""
    async with fetch_bench() as bench:
        await buffered(bench, b"a", b"b")
        batch = poll(bench)
        bench.fetcher.put_back(batch, 1)
        await bench.fetcher.ready.wait(Selection(None, frozenset({T0})))
        assert values(poll(bench)) == [b"b"]


async def test_a_batch_of_a_former_assignment_is_not_put_back() -> None:
    """The partition is fetched from its new position."""
    async with fetch_bench() as bench:
        await buffered(bench, b"a", b"b")
        batch = poll(bench)
        bench.fetcher.assign({T0: 1})
        bench.fetcher.put_back(batch, 0)
        await eventually(lambda: bench.fetcher.is_buffering(T0), "it is fetched again")
        assert values(poll(bench)) == [b"b"]


async def test_the_next_record_of_a_paused_partition_is_skipped() -> None:
    """Only the record at this offset, also if it is the last one of its batch."""
    async with fetch_bench() as bench:
        await buffered(bench, b"a", b"b")
        batch = poll(bench, 1)
        bench.fetcher.pause([T0])
        bench.fetcher.put_back(batch, 0)
        bench.fetcher.skip(T0, 1)
        assert bench.fetcher.position(T0) == 0, "it is not the next one"
        bench.fetcher.skip(T0, 0)
        assert bench.fetcher.position(T0) == 1
        bench.fetcher.skip(T0, 1)
        assert not bench.fetcher.is_buffering(T0)
        bench.fetcher.skip(T0, 2)
        bench.fetcher.resume([T0])
        assert values(await bench.next_batch()) == [b"other"]
        assert bench.fetcher._buffer._bytes == 0


async def test_an_error_waits_for_a_call_that_can_raise_it() -> None:
    """A call that has records already must not lose it, and the next call gets it first."""
    async with fetch_bench() as bench:
        await buffered(bench, b"a")
        state = bench.fetcher._partitions[T1]
        bench.fetcher._buffer.pop(Selection(None, frozenset({T1})))
        bench.fetcher._failed.halt(state, ProtocolError("broken"))
        assert [bench.fetcher.poll(errors=False) for _ in range(3)][-1] is None
        with pytest.raises(ProtocolError, match="broken"):
            bench.fetcher.poll()


def decoded(data: bytes, position: int, high_watermark: int) -> ProtocolError:
    """Return the error of a partition's answer."""
    state = PartitionFetch(T0, 1, position, high_watermark=high_watermark)
    with pytest.raises(ProtocolError) as caught:
        list(state.runs(data, 1 << 20))
    return caught.value


def test_damage_has_the_range_that_is_passed() -> None:
    """A message is passed alone, a wrapper from the position on."""
    plain = message(5, b"key", b"value")
    plain = with_flipped_bit(plain, len(plain) - 1)
    error = decoded(plain, 5, 6)
    assert isinstance(error, DamagedRecordError)
    assert (error.topic_partition, error.offset, error.next_offset, error.value) == (T0, 5, 6, plain)
    assert "t:0 at offset 5: a message that does not match its CRC; to pass it, seek to 6" in str(error)
    whole = with_flipped_bit(wrapper(message(5, None, b"") + message(8, None, b""), 8), 40)
    error = decoded(whole, 6, 9)
    assert isinstance(error, DamagedRecordError)
    assert (error.offset, error.next_offset, error.value) == (6, 9, whole)
    assert "this concerns the offsets 6 to 8; to pass it, seek to 9" in str(error)
    error = decoded(plain, 3, 6)
    assert isinstance(error, DamagedRecordError)
    assert (error.offset, error.next_offset) == (3, 6), "its offset may be damaged, or records are missing"


@pytest.mark.parametrize(("position", "high_watermark"), [(6, 9), (2, 5)])
def test_an_offset_outside_of_the_log_is_not_passed(position: int, high_watermark: int) -> None:
    """No CRC covers the offset: it may be damaged, too."""
    error = decoded(with_flipped_bit(message(5, None, b"value"), 20), position, high_watermark)
    assert not isinstance(error, BadRecordError)
    assert "not plausible" in str(error)


def test_bad_records_can_be_pickled() -> None:
    """All fields survive."""
    error = RecordDeserializationError("text", field="key", topic_partition=T0, offset=3, next_offset=4, key=b"k")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), vars(copied)) == ("text", vars(error))
    assert copied.topic_partition == T0
