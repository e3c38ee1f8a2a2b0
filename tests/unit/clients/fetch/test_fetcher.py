"""The fetcher with a scripted broker: order, lanes, buffers, and the partitions' shares of a request."""

from __future__ import annotations

import asyncio
import struct

import pytest

from kiel_groups.clients.fetch.fetch_buffer import TRIES_UNREADABLE
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.fetch import FetchPosition, FetchRequest
from tests.helpers.fake_broker import FETCH, FakeBroker, Request, message_set
from tests.helpers.fetch_bench import T0, T1, T2, FetchBench, fetch_bench, values
from tests.helpers.raw_requests import body_of
from tests.helpers.waiting import eventually, run_ready_tasks, throughout

pytestmark = pytest.mark.unit


async def test_records_are_fetched_in_order_from_the_position() -> None:
    """Fetching starts with the record at the position, and the next records follow without a gap."""
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(*(b"%d" % n for n in range(10))))
        bench.fetcher.assign({T0: 4})
        batch = await bench.next_batch()
        assert [r.offset for r in batch.records] == [4, 5, 6, 7, 8, 9]
        assert values(batch) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert batch.topic_partition == T0
        assert (bench.fetcher.position(T0), bench.lag(T0)) == (10, 0)
        bench.broker.append(T0, message_set(b"more"))
        assert values(await bench.next_batch()) == [b"more"]


async def test_batches_of_partitions_alternate() -> None:
    """Batches of several partitions alternate, although each partition has several batches."""
    async with fetch_bench(max_bytes=12_288) as bench:
        for tp in (T0, T1, T2):
            bench.broker.append(tp, message_set(*[b"x" * 2_000] * 6))
        bench.fetcher.assign({T0: 0, T1: 0, T2: 0})
        await eventually(lambda: all(p.full for p in bench.fetcher._partitions.values()), "two batches of each")
        order = [(await bench.next_batch()).topic_partition for _ in range(6)]
        assert sorted(order[:3]) == sorted(order[3:]) == [T0, T1, T2]


async def test_at_most_two_batches_of_a_partition_are_buffered() -> None:
    """Fetching of a partition stops while two of its batches are buffered, and continues when one of them is polled."""
    async with fetch_bench(max_bytes=4_096) as bench:
        bench.broker.append(T0, message_set(*[b"x" * 3_000] * 6))
        bench.fetcher.assign({T0: 0})
        await bench.fetcher.ready.wait()
        await bench.broker.wait_for_requests(FETCH, 2)
        await throughout(lambda: bench.broker.count(FETCH) == 2, "no third batch is requested", 0.05)
        await bench.next_batch()
        await bench.broker.wait_for_requests(FETCH, 3)
        await throughout(lambda: bench.broker.count(FETCH) == 3, "one more batch is requested", 0.05)
        assert bench.lag(T0) == 5, "buffered records count as lag"


async def test_a_new_partition_does_not_wait_behind_a_long_poll() -> None:
    """The records of a new partition arrive at once, while a long poll for idle partitions is in flight."""
    async with fetch_bench(max_wait_ms=30_000) as bench:
        bench.broker.append(T1, message_set(b"here"))
        bench.fetcher.assign({T0: 0})
        await bench.broker.wait_for_requests(FETCH, 2)
        bench.fetcher.assign({T1: 0})
        assert values(await bench.next_batch()) == [b"here"]
        _, polling, asking = [request.connection for request in bench.broker.received(FETCH)][:3]
        assert asking != polling


async def test_another_new_partition_does_not_wait_for_a_short_poll_either() -> None:
    """Polls of partitions that have caught up may occupy both of their lanes."""
    async with fetch_bench(max_wait_ms=30_000) as bench:
        bench.broker.append(T2, message_set(b"here"))
        bench.fetcher.assign({T0: 0})
        await bench.broker.wait_for_requests(FETCH, 1)
        bench.fetcher.assign({T1: 0})
        await bench.broker.wait_for_requests(FETCH, 2)
        bench.fetcher.assign({T2: 0})
        assert values(await bench.next_batch()) == [b"here"]


async def test_idle_lanes_merge() -> None:
    """If no partition has new records, the polls of the two lanes become one long poll for all partitions."""
    async with fetch_bench(max_wait_ms=300) as bench:
        bench.fetcher.assign({T0: 0})
        await bench.broker.wait_for_requests(FETCH, 1)
        bench.fetcher.assign({T1: 0})
        merged = len(two_partitions())
        await eventually(lambda: len(bench.broker.requests[-1].body) == merged, "one poll has both partitions", 5)
        before = bench.broker.count(FETCH)
        await throughout(lambda: bench.broker.count(FETCH) - before <= 3, "there is one poll at a time", 0.65)
        assert len(bench.broker.requests[-1].body) == merged


def two_partitions() -> bytes:
    """Return an encoded fetch request for two partitions."""
    return body_of(FetchRequest(1, 1, {T0: FetchPosition(0, 1), T1: FetchPosition(0, 1)}))


async def test_unassigning_drops_buffered_and_requested_records() -> None:
    """Records of an unassigned partition are not delivered, neither buffered nor requested ones."""
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"old"))
        bench.fetcher.assign({T0: 0, T1: 0})
        await bench.fetcher.ready.wait()
        await bench.broker.wait_for_requests(FETCH, 2)
        bench.fetcher.unassign([T0])
        bench.broker.append(T0, message_set(b"late"))
        bench.broker.append(T1, message_set(b"other"))
        assert values(await bench.next_batch()) == [b"other"]
        await throughout(lambda: bench.fetcher.poll() is None, "no other batch is delivered", 0.05)
        assert bench.fetcher.assignment == {T1}
        assert bench.metrics.counter("records_fetched") == 2, "the late one was not decoded"
        assert bench.fetcher.position(T0) is None


async def test_an_answer_for_an_earlier_assignment_is_ignored() -> None:
    """
    If a partition is unassigned and assigned again during a request, the answer is not used for the new assignment.
    """
    async with fetch_bench(max_wait_ms=2_000) as bench:
        bench.broker.append(T0, message_set(b"0", b"1", b"2"))
        bench.fetcher.assign({T0: 3})
        await bench.broker.wait_for_requests(FETCH, 1)
        bench.fetcher.unassign([T0])
        bench.fetcher.assign({T0: 1})
        first = await bench.next_batch()
        assert values(first) == [b"1", b"2"]
        bench.broker.append(T0, message_set(b"3"))
        second = await bench.next_batch()
        assert (values(second), first.epoch) == ([b"3"], second.epoch)
        await throughout(lambda: bench.fetcher.poll() is None, "no other batch is delivered", 0.05)


async def test_an_error_of_an_earlier_assignment_is_ignored() -> None:
    """The partition was unassigned during the request: its refusal is neither reported nor followed by another try."""
    async with fetch_bench() as bench:
        answered = bench.broker.gates[FETCH] = asyncio.Event()
        bench.broker.fail_next(FETCH, T0, 29)
        bench.fetcher.assign({T0: 0, T1: 0})
        await bench.broker.wait_for_requests(FETCH, 1)
        bench.fetcher.unassign([T0])
        answered.set()
        bench.broker.append(T1, message_set(b"other"))
        assert values(await bench.next_batch()) == [b"other"]
        assert bench.metrics.counter("fetch_failures") == 0


async def test_a_partition_that_an_answer_lacks_is_fetched_again() -> None:
    """A partition that an answer lacks is fetched again."""
    answers = [struct.pack(">i", 0)]
    async with fetch_bench() as bench:
        bench.broker.script = lambda request: answers.pop() if request.api_key == FETCH and answers else None
        bench.broker.append(T0, message_set(b"kept"))
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"kept"]
        assert bench.metrics.counter("fetch_retries") == 1


async def test_a_close_wakes_a_caller_that_waits_for_a_batch() -> None:
    """A close wakes a caller that waits for a batch. The caller gets no batch."""
    async with fetch_bench() as bench:
        bench.fetcher.assign({T0: 0})
        waiting = asyncio.ensure_future(bench.fetcher.ready.wait())
        await run_ready_tasks()
        bench.fetcher.close()
        await asyncio.wait_for(waiting, 5)
        assert bench.fetcher.poll() is None


async def test_a_seek_drops_buffered_records() -> None:
    """
    A seek drops buffered records, and fetching continues at the new offset, in a new epoch. A seek of a partition that
    is not assigned raises KeyError.
    """
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0", b"1", b"2"))
        bench.fetcher.assign({T0: 0})
        first = await bench.next_batch()
        bench.fetcher.assign({T0: 2})
        second = await bench.next_batch()
        assert values(second) == [b"2"]
        assert second.epoch > first.epoch


async def test_a_message_larger_than_its_share_is_fetched() -> None:
    """
    If a message is larger than its partition's share, the share grows until the message was fetched. Later requests
    have ordinary shares again.
    """
    async with fetch_bench(max_bytes=8_192) as bench:
        bench.broker.append(T0, message_set(b"small", b"L" * 300_000, b"next"))
        bench.broker.append(T1, message_set(b"other"))
        bench.fetcher.assign({T0: 0, T1: 0})
        fetched = []
        while len(fetched) < 4:
            fetched += [value[:5] for value in values(await bench.next_batch())]
        assert sorted(fetched) == [b"LLLLL", b"next", b"other", b"small"]
        assert bench.metrics.counter("fetch_share_grown") == 1, "the header has the size: one more try is enough"
        await bench.broker.wait_for_requests(FETCH, bench.broker.count(FETCH) + 1)
        shares = [requested_bytes(request) for request in bench.broker.received(FETCH)]
        assert [share[0] for share in shares if 0 in share][-1] <= 4 * 8_192, "an ordinary share again"


def requested_bytes(request: Request) -> dict[int, int]:
    """Return the bytes that a fetch request for topic t asks for, by partition."""
    rows = struct.iter_unpack(">iqi", request.body[12 + 4 + 3 + 4 :])
    return {partition: max_bytes for partition, _, max_bytes in rows}


async def test_a_message_over_the_bound_is_an_error_after_the_records_before_it() -> None:
    """
    A message over the bound raises an error with topic, partition, offset and size, after the records before it. The
    error is raised again until a seek skips the message.
    """
    async with fetch_bench(max_bytes=4_096, max_message_bytes=10_000) as bench:
        bench.broker.append(T0, message_set(b"before", b"L" * 20_000, b"after"))
        bench.broker.append(T1, message_set(b"other"))
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"before"]
        error = await bench.next_error()
        assert isinstance(error, MessageTooLargeError)
        for words in ("t:0 at offset 1", "20026 bytes", "max_message_bytes is 10000"):
            assert words in str(error)
        bench.fetcher.assign({T1: 0})
        while (again := await next_values_or_error(bench)) == str(error):
            pass
        assert again == [b"other"], "other partitions continue"
        assert await next_values_or_error(bench) == str(error)
        bench.fetcher.assign({T0: 2})
        assert values(await bench.next_batch()) == [b"after"]


async def next_values_or_error(bench: FetchBench) -> object:
    """Return the values of the next batch, or the error's text if an error is raised instead."""
    await asyncio.sleep(0)  # the next batch may be an error, which is raised without a wait
    try:
        return values(await bench.next_batch())
    except MessageTooLargeError as error:
        return str(error)


async def test_a_damaged_message_is_an_error_with_its_position() -> None:
    """A message with a wrong CRC raises an error with the message's offset."""
    async with fetch_bench() as bench:
        damaged = bytearray(message_set(b"value"))
        damaged[-1] ^= 1
        bench.broker.append(T0, bytes(damaged))
        bench.fetcher.assign({T0: 0})
        error = await bench.next_error()
        assert isinstance(error, ProtocolError)
        assert "t:0 at offset 0" in str(error)


async def test_answers_with_older_messages_only_become_an_error() -> None:
    """Answers that never reach the position raise an error instead of causing an endless loop."""
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0", b"1"))
        log = bench.broker.logs[T0]
        log.read = lambda offset, max_bytes: log.entries[0][1]  # type: ignore[method-assign]
        bench.fetcher.assign({T0: 1})
        assert "older messages only" in str(await bench.next_error())
        tries = TRIES_UNREADABLE + 1
        await bench.broker.wait_for_requests(FETCH, tries)
        await throughout(lambda: bench.broker.count(FETCH) == tries, "one more try after each raised error", 0.05)


async def test_records_that_are_cut_off_are_not_delivered() -> None:
    """
    ``truncate()`` drops all buffered records at and after the given offset, removes batches that become empty, and
    returns the number of dropped records.
    """
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(*(b"%d" % n for n in range(5))))
        bench.broker.append(T1, message_set(b"other"))
        bench.fetcher.assign({T0: 0, T1: 0})
        await eventually(lambda: bench.fetcher.is_buffering(T0) and bench.fetcher.is_buffering(T1), "both buffered")
        assert bench.fetcher.truncate(T0, 3) == 2
        assert bench.fetcher.is_buffering(T0)
        assert bench.fetcher.truncate(T0, 0) == 3
        assert not bench.fetcher.is_buffering(T0)
        assert bench.fetcher.truncate(T0, 0) == 0
        assert values(await bench.next_batch()) == [b"other"]
        assert bench.fetcher.poll() is None
        bench.fetcher.assign({T0: 4})
        assert values(await bench.next_batch()) == [b"4"]


@pytest.mark.parametrize("settings", [{"max_wait_ms": 0}, {"min_bytes": 0}])
async def test_idle_fetches_are_paced_if_brokers_do_not_wait(settings: dict[str, int]) -> None:
    """If brokers do not wait for new records, idle requests are 1, 2, 4 … 100 ms apart."""
    async with fetch_bench(**settings) as bench:
        bench.fetcher.assign({T0: 0, T1: 0})
        await bench.broker.wait_for_requests(FETCH, 8)
        before = bench.broker.count(FETCH)
        await throughout(lambda: bench.broker.count(FETCH) - before <= 8, "the requests are paced", 0.5)
        bench.broker.append(T0, message_set(b"0"))
        async with asyncio.timeout(5.0):
            assert values(await bench.next_batch()) == [b"0"]


async def test_a_poll_for_one_topic_leaves_the_others() -> None:
    """
    A poll for one topic leaves the batches of other topics. Their arrival does not wake a caller that waits for this
    topic.
    """
    async with fetch_bench(FakeBroker({"t": 2, "u": 1})) as bench:
        other = TopicPartition("u", 0)
        for tp in (T0, T1):
            bench.broker.logs[tp].append(message_set(b"t"))
        bench.fetcher.assign({T0: 0, T1: 0, other: 0})
        await asyncio.wait_for(bench.fetcher.ready.wait(Selection("t")), 5)
        assert bench.fetcher.poll(Selection("u")) is None
        waiting = asyncio.ensure_future(bench.fetcher.ready.wait(Selection("u")))
        first, second = await bench.next_batch(), await bench.next_batch()
        assert {first.topic_partition, second.topic_partition} == {T0, T1}
        assert not waiting.done()
        bench.broker.logs[other].append(message_set(b"u"))
        await asyncio.wait_for(waiting, 5)
        batch = bench.fetcher.poll(Selection("u"))
        assert batch is not None
        assert batch.topic_partition == other


async def test_a_waiting_caller_takes_its_records_before_the_next_poll_is_planned() -> None:
    """At a low rate, the latency of a record has the steps from the socket to the caller, and no others."""
    async with fetch_bench() as bench:
        bench.fetcher.assign({T0: 0, T1: 0, T2: 0})
        await bench.broker.wait_for_requests(FETCH, 2)
        (lanes,) = bench.fetcher._lanes.values()
        bench.broker.append(T1, message_set(b"x"))
        await bench.fetcher.ready.wait()
        assert lanes.in_flight == {}
        assert values(await bench.next_batch()) == [b"x"]
        await bench.broker.wait_for_requests(FETCH, 3)


@pytest.mark.parametrize("selection", [Selection(), Selection("t"), Selection(partitions=frozenset({T0}))])
async def test_a_caller_that_may_not_take_what_is_there_lets_other_tasks_run(selection: Selection) -> None:
    """A wait for what is there ends at once, but not in the same iteration of the event loop."""
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"x"))
        bench.fetcher.assign({T0: 0})
        await bench.fetcher.ready.wait()
        others = 0

        def count() -> None:
            nonlocal others
            others += 1

        for _ in range(3):
            asyncio.get_running_loop().call_soon(count)
            await bench.fetcher.ready.wait(selection)
        assert others == 3
