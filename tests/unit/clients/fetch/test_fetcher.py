"""The fetcher against a scripted broker: order, lanes, growing shares, healing, and what is raised."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from kiel_groups.clients.fetch.fetcher import TRIES_UNREADABLE, FetchedBatch, Fetcher
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import FetchConfig
from kiel_groups.errors import MessageTooLargeError, OffsetOutOfRangeError, ProtocolError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.fetch_v0 import FetchPosition, FetchRequest
from kiel_groups.wire.message_sets.encoder import encode_message_set
from tests.helpers.fake_broker import FETCH, METADATA, Asked, FakeBroker, Fault

pytestmark = pytest.mark.unit

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))


def messages(*values: bytes) -> bytes:
    return encode_message_set([(None, value) for value in values])


@dataclass
class Bench:
    """A fetcher at a broker, and what it asked ``reset``."""

    broker: FakeBroker
    fetcher: Fetcher
    metrics: Metrics
    resets: list[tuple[TopicPartition, int]]
    cluster: ClusterMetadata

    async def next_batch(self) -> FetchedBatch:
        async with asyncio.timeout(5):
            while (batch := self.fetcher.poll()) is None:
                await self.fetcher.wait_for_batch()
            return batch

    async def next_error(self) -> Exception:
        with pytest.raises(Exception) as caught:
            await self.next_batch()
        return caught.value


@asynccontextmanager
async def bench(
    broker: FakeBroker | None = None, reset_to: int | Exception = 0, **settings: int
) -> AsyncIterator[Bench]:
    """A fetcher at ``broker`` (by default one with topic t of three partitions) that resets to ``reset_to``."""
    resets: list[tuple[TopicPartition, int]] = []

    async def reset(tp: TopicPartition, position: int) -> int:
        resets.append((tp, position))
        if isinstance(reset_to, Exception):
            raise reset_to
        return reset_to

    async with broker or FakeBroker({"t": 3}) as running:
        metrics = Metrics()
        cluster = ClusterMetadata(running.config(), metrics)
        await cluster.refresh(["t"], "test")
        fetcher = Fetcher(cluster, FetchConfig(**{"max_wait_ms": 1_000, **settings}), metrics, reset=reset)
        try:
            yield Bench(running, fetcher, metrics, resets, cluster)
        finally:
            fetcher.close()
            cluster.close()


def values(batch: FetchedBatch) -> list[bytes]:
    return [record.value for record in batch.records]


async def test_records_come_in_order_from_the_position() -> None:
    """The first record is the one at the position, the following ones without a gap."""
    async with bench() as b:
        b.broker.append(T0, messages(*(b"%d" % n for n in range(10))))
        b.fetcher.assign({T0: 4})
        batch = await b.next_batch()
        assert [r.offset for r in batch.records] == [4, 5, 6, 7, 8, 9]
        assert values(batch) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert (batch.topic_partition, batch.high_watermark) == (T0, 10)
        assert (b.fetcher.position(T0), b.fetcher.high_watermark(T0), b.fetcher.lag(T0)) == (10, 10, 0)
        b.broker.append(T0, messages(b"more"))
        assert values(await b.next_batch()) == [b"more"]


async def test_partitions_are_served_in_turn() -> None:
    """Batches of several partitions alternate, however much one of them has."""
    async with bench(max_bytes=12_288) as b:
        for tp in (T0, T1, T2):
            b.broker.append(tp, messages(*[b"x" * 2_000] * 6))
        b.fetcher.assign({T0: 0, T1: 0, T2: 0})
        await settle()  # until each has two batches
        order = [(await b.next_batch()).topic_partition for _ in range(6)]
        assert sorted(order[:3]) == sorted(order[3:]) == [T0, T1, T2]


async def test_at_most_two_batches_of_a_partition_are_buffered() -> None:
    """Nobody polls: fetching stops at two batches, and goes on when one was taken."""
    async with bench(max_bytes=4_096) as b:
        b.broker.append(T0, messages(*[b"x" * 3_000] * 6))
        b.fetcher.assign({T0: 0})
        await b.fetcher.wait_for_batch()
        await settle()
        assert b.broker.count(FETCH) == 2
        await b.next_batch()
        await settle()
        assert b.broker.count(FETCH) == 3
        assert b.fetcher.lag(T0) == 5, "what is buffered counts as lag"


async def settle(seconds: float = 0.05) -> None:
    """Give a wrong request the time to come; used only to show that none does."""
    await asyncio.sleep(seconds)


async def test_a_new_partition_does_not_wait_behind_a_long_poll() -> None:
    """With a request for idle partitions at the broker, a new partition's records come at once."""
    async with bench(max_wait_ms=30_000) as b:
        b.broker.append(T1, messages(b"here"))
        b.fetcher.assign({T0: 0})
        await b.broker.until_asked(FETCH, 1)
        b.fetcher.assign({T1: 0})
        assert values(await b.next_batch()) == [b"here"]
        assert len({a.connection for a in b.broker.asked if a.api_key == FETCH}) == 2


async def test_another_new_partition_waits_for_a_short_poll_at_most() -> None:
    """Both lanes busy with idle partitions: a third one is fetched within the short wait."""
    async with bench(max_wait_ms=30_000) as b:
        b.broker.append(T2, messages(b"here"))
        b.fetcher.assign({T0: 0})
        await b.broker.until_asked(FETCH, 1)
        b.fetcher.assign({T1: 0})
        await b.broker.until_asked(FETCH, 2)
        b.fetcher.assign({T2: 0})
        assert values(await b.next_batch()) == [b"here"]


async def test_idle_lanes_merge() -> None:
    """When everything is quiet, one long poll for all partitions remains instead of two."""
    async with bench(max_wait_ms=300) as b:
        b.fetcher.assign({T0: 0})
        await b.broker.until_asked(FETCH, 1)
        b.fetcher.assign({T1: 0})
        await settle(0.6)
        before = b.broker.count(FETCH)
        await settle(0.65)
        assert b.broker.count(FETCH) - before <= 3
        assert len(b.broker.asked[-1].body) == len(two_partitions())


def two_partitions() -> bytes:
    return FetchRequest(1, 1, {T0: FetchPosition(0, 1), T1: FetchPosition(0, 1)}).encode_body()


async def test_unassigning_drops_what_is_buffered_and_what_is_on_its_way() -> None:
    """Not one record of a partition is handed out after it was taken away."""
    async with bench() as b:
        b.broker.append(T0, messages(b"old"))
        b.fetcher.assign({T0: 0, T1: 0})
        await b.fetcher.wait_for_batch()
        await b.broker.until_asked(FETCH, 2)
        b.fetcher.unassign([T0])
        b.broker.append(T0, messages(b"late"))
        b.broker.append(T1, messages(b"other"))
        assert values(await b.next_batch()) == [b"other"]
        await settle()
        assert b.fetcher.poll() is None
        assert b.fetcher.assignment == {T1}
        assert b.metrics.counter("records_fetched") == 2, "the late one was not even looked at"
        assert b.fetcher.position(T0) is None


async def test_an_answer_for_an_earlier_assignment_is_ignored() -> None:
    """Taken away and given back while a request is in flight: its answer must not count for the new assignment."""
    async with bench(max_wait_ms=2_000) as b:
        b.broker.append(T0, messages(b"0", b"1", b"2"))
        b.fetcher.assign({T0: 3})
        await b.broker.until_asked(FETCH, 1)
        b.fetcher.unassign([T0])
        b.fetcher.assign({T0: 1})
        first = await b.next_batch()
        assert values(first) == [b"1", b"2"]
        b.broker.append(T0, messages(b"3"))
        second = await b.next_batch()
        assert (values(second), first.epoch) == ([b"3"], second.epoch)
        await settle()
        assert b.fetcher.poll() is None


async def test_a_partition_that_an_answer_leaves_out_is_fetched_again() -> None:
    """After a refresh of the metadata, as if its leader had moved."""
    answers = [struct.pack(">i", 0)]
    async with bench() as b:
        b.broker.script = lambda asked: answers.pop() if asked.api_key == FETCH and answers else None
        b.broker.append(T0, messages(b"kept"))
        b.fetcher.assign({T0: 0})
        assert values(await b.next_batch()) == [b"kept"]
        assert b.metrics.counter("fetch_retries") == 1


async def test_closing_wakes_a_caller_that_waits_for_a_batch() -> None:
    """It finds none."""
    async with bench() as b:
        b.fetcher.assign({T0: 0})
        waiting = asyncio.ensure_future(b.fetcher.wait_for_batch())
        await asyncio.sleep(0)
        b.fetcher.close()
        await asyncio.wait_for(waiting, 5)
        assert b.fetcher.poll() is None


async def test_seek_starts_over() -> None:
    """A seek drops what is buffered, and goes on from the new offset under a new epoch."""
    async with bench() as b:
        b.broker.append(T0, messages(b"0", b"1", b"2"))
        b.fetcher.assign({T0: 0})
        first = await b.next_batch()
        b.fetcher.seek(T0, 2)
        second = await b.next_batch()
        assert values(second) == [b"2"]
        assert second.epoch > first.epoch
        with pytest.raises(KeyError, match="t:1 is not assigned"):
            b.fetcher.seek(T1, 0)


async def test_a_message_larger_than_its_share_is_fetched_all_the_same() -> None:
    """The share of that partition grows; the others, and what follows, go on with ordinary shares."""
    async with bench(max_bytes=8_192) as b:
        b.broker.append(T0, messages(b"small", b"L" * 300_000, b"next"))
        b.broker.append(T1, messages(b"other"))
        b.fetcher.assign({T0: 0, T1: 0})
        got = []
        while len(got) < 4:
            got += [value[:5] for value in values(await b.next_batch())]
        assert sorted(got) == [b"LLLLL", b"next", b"other", b"small"]
        assert b.metrics.counter("fetch_share_grown") == 1, "the size stands in the header: one more try is enough"
        await b.broker.until_asked(FETCH, b.broker.count(FETCH) + 1)
        shares = [asked_bytes(asked) for asked in b.broker.asked if asked.api_key == FETCH]
        assert [share[0] for share in shares if 0 in share][-1] <= 8_192, "an ordinary share again"


def asked_bytes(asked: Asked) -> dict[int, int]:
    """How many bytes a fetch request for topic t asks of each partition."""
    rows = struct.iter_unpack(">iqi", asked.body[12 + 4 + 3 + 4 :])
    return {partition: max_bytes for partition, _, max_bytes in rows}


async def test_a_message_over_the_bound_is_raised_after_what_came_before() -> None:
    """The error names topic, partition, offset and size, comes again until sought past, and hides no record."""
    async with bench(max_bytes=4_096, max_message_bytes=10_000) as b:
        b.broker.append(T0, messages(b"before", b"L" * 20_000, b"after"))
        b.broker.append(T1, messages(b"other"))
        b.fetcher.assign({T0: 0})
        assert values(await b.next_batch()) == [b"before"]
        error = await b.next_error()
        assert isinstance(error, MessageTooLargeError)
        for words in ("t:0 at offset 1", "20026 bytes", "max_message_bytes is 10000"):
            assert words in str(error)
        b.fetcher.assign({T1: 0})
        while (again := await next_item(b)) == str(error):
            pass
        assert again == [b"other"], "the others keep flowing"
        assert await next_item(b) == str(error)
        b.fetcher.seek(T0, 2)
        assert values(await b.next_batch()) == [b"after"]


async def next_item(b: Bench) -> object:
    """The values of the next batch, or the text of the error in its place."""
    await asyncio.sleep(0)  # an error that stands first is raised without waiting for anything
    try:
        return values(await b.next_batch())
    except MessageTooLargeError as error:
        return str(error)


async def test_damaged_messages_are_raised_with_their_place() -> None:
    """A message that does not match its CRC stops its partition with an error that says where."""
    async with bench() as b:
        damaged = bytearray(messages(b"value"))
        damaged[-1] ^= 1
        b.broker.append(T0, bytes(damaged))
        b.fetcher.assign({T0: 0})
        error = await b.next_error()
        assert isinstance(error, ProtocolError)
        assert "t:0 at offset 0" in str(error)


async def test_a_broker_that_sends_older_messages_only_is_not_asked_for_ever() -> None:
    """An answer that never reaches the position is an error, not an endless loop."""
    async with bench() as b:
        b.broker.append(T0, messages(b"0", b"1"))
        log = b.broker.logs[T0]
        log.read = lambda offset, max_bytes: log.entries[0][1]  # type: ignore[method-assign]
        b.fetcher.assign({T0: 1})
        assert "older messages only" in str(await b.next_error())
        await settle()
        assert b.broker.count(FETCH) == TRIES_UNREADABLE + 1, "once more after each time that it was raised"


async def test_out_of_range_asks_for_a_new_position() -> None:
    """The reset callback gets the lost position, and its answer is where fetching goes on."""
    async with bench(reset_to=3) as b:
        b.broker.append(T0, messages(*(b"%d" % n for n in range(5))))
        b.fetcher.assign({T0: 99})
        assert values(await b.next_batch()) == [b"3", b"4"]
        assert b.resets == [(T0, 99)]
        assert b.metrics.counter("offset_resets") == 1


async def test_what_is_cut_off_is_not_handed_out() -> None:
    """From an offset on, also where nothing is left: then there is nothing to wait for."""
    async with bench() as b:
        b.broker.append(T0, messages(*(b"%d" % n for n in range(5))))
        b.broker.append(T1, messages(b"other"))
        b.fetcher.assign({T0: 0, T1: 0})
        async with asyncio.timeout(5):
            while not (b.fetcher.is_buffering(T0) and b.fetcher.is_buffering(T1)):  # noqa: ASYNC110 -- of many parts
                await asyncio.sleep(0.001)
        assert b.fetcher.cut(T0, 3) == 2
        assert b.fetcher.is_buffering(T0)
        assert b.fetcher.cut(T0, 0) == 3
        assert not b.fetcher.is_buffering(T0)
        assert b.fetcher.cut(T0, 0) == 0
        assert values(await b.next_batch()) == [b"other"]
        assert b.fetcher.poll() is None
        b.fetcher.seek(T0, 4)
        assert values(await b.next_batch()) == [b"4"]


@pytest.mark.parametrize("refusal", [OffsetOutOfRangeError("no reset allowed", code=1), ZeroDivisionError("a bug")])
async def test_a_reset_that_fails_is_raised(refusal: Exception) -> None:
    """A policy of none, and a callback with a bug, reach whoever polls."""
    async with bench(reset_to=refusal) as b:
        b.fetcher.assign({T0: 99})
        assert await b.next_error() is refusal


@pytest.mark.parametrize("code", [4, 10, 11, 17, 29, 99])
async def test_a_code_that_looks_final_is_told_and_asked_about_again(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition does not stand still for good over one answer: logged, counted, and fetched again."""
    async with bench() as b:
        b.broker.append(T0, messages(b"0"))
        b.broker.fail_next(FETCH, T0, code, code)
        b.fetcher.assign({T0: 0})
        assert values(await b.next_batch()) == [b"0"]
        assert b.metrics.counter("fetch_failures") == 2
        told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(told) == 2
        assert "fetching t:0 at offset 0" in told[0]
        assert f"({code})" in told[0]


async def test_a_broker_that_refuses_for_good_is_asked_ever_more_seldom() -> None:
    """Nothing is raised, and nothing spins."""
    async with bench() as b:
        b.broker.fail_next(FETCH, T0, *[29] * 1_000)
        b.fetcher.assign({T0: 0})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await b.next_batch()
        # 2, 4, 8, 16, 20, 20 … ms, less jitter
        assert 5 <= b.broker.count(FETCH) <= 0.3 / 0.014 + 8


async def test_an_error_that_stays_is_raised_with_pauses() -> None:
    """A program that logs errors and goes on does not spin: they double, from 2 to 20 ms here."""
    async with bench(max_bytes=4_096, max_message_bytes=10_000) as b:
        b.broker.append(T0, messages(b"L" * 20_000))
        b.fetcher.assign({T0: 0})
        raised, ends_s = 0, asyncio.get_running_loop().time() + 0.3
        while asyncio.get_running_loop().time() < ends_s:
            assert isinstance(await b.next_error(), MessageTooLargeError)
            raised += 1
        assert 5 <= raised <= 0.3 / 0.014 + 8


@pytest.mark.parametrize("settings", [{"max_wait_ms": 0}, {"min_bytes": 0}])
async def test_idle_fetches_are_paced_where_brokers_do_not_wait(settings: dict[str, int]) -> None:
    """1, 2, 4 … 100 ms apart, while there is nothing; what comes then is fetched within that."""
    async with bench(**settings) as b:
        b.fetcher.assign({T0: 0, T1: 0})
        await b.broker.until_asked(FETCH, 8)
        before = b.broker.count(FETCH)
        await asyncio.sleep(0.5)
        assert b.broker.count(FETCH) - before <= 8
        b.broker.append(T0, messages(b"0"))
        async with asyncio.timeout(0.5):
            assert values(await b.next_batch()) == [b"0"]


async def test_retriable_errors_heal() -> None:
    """Not leader, leader not available, unknown for a while: the metadata is asked again, and the records come."""
    async with bench() as b:
        b.broker.append(T0, messages(b"0"))
        b.broker.fail_next(FETCH, T0, 6, 5, 3, -1)
        b.fetcher.assign({T0: 0})
        assert values(await b.next_batch()) == [b"0"]
        assert b.broker.count(METADATA) == 5
        assert b.metrics.counter("fetch_retries") == 4


async def test_fetching_follows_a_leader_that_moves() -> None:
    """When another broker leads, the partition is fetched from there, from the same position on."""
    async with FakeBroker({"t": 3}, node_id=1) as other, bench() as b:
        b.broker.append(T0, messages(b"0"))
        b.fetcher.assign({T0: 0})
        assert values(await b.next_batch()) == [b"0"]
        other.append(T0, messages(b"0", b"1"))
        for broker in (b.broker, other):
            broker.peers = [b.broker, other]
            broker.leaders = {T0: 1, T1: 0, T2: 0}
        b.broker.append(T0, messages(b"wakes the long poll up, and is not to be seen"))
        assert values(await b.next_batch()) == [b"1"]


async def test_a_broken_connection_heals() -> None:
    """Connections that break under a long poll are opened anew, and nothing is lost or repeated."""
    async with bench(max_wait_ms=30_000) as b:
        b.broker.append(T0, messages(b"0"))
        b.fetcher.assign({T0: 0})
        assert values(await b.next_batch()) == [b"0"]
        await b.broker.until_asked(FETCH, 2)
        b.broker.drop_connections()
        b.broker.append(T0, messages(b"1"))
        assert values(await b.next_batch()) == [b"1"]


async def test_a_broker_that_does_not_answer_is_given_up() -> None:
    """A silent broker costs its timeout; the next try on a new connection succeeds."""
    silent = True

    def script(asked: Asked) -> Fault | None:
        return Fault.SILENT if silent and asked.api_key == FETCH else None

    async with bench(FakeBroker({"t": 3}, script=script), max_wait_ms=10) as b:
        object.__setattr__(b.cluster.config, "request_timeout_ms", 50)
        b.broker.append(T0, messages(b"0"))
        b.fetcher.assign({T0: 0})
        await b.broker.until_asked(FETCH, 2)
        silent = False
        assert values(await b.next_batch()) == [b"0"]


async def test_retries_back_off() -> None:
    """A partition that stays without a leader is not asked for in a tight loop."""
    async with bench() as b:
        b.broker.leaders = {T0: -1}
        await b.cluster.refresh(["t"], "test")
        before = b.broker.count(METADATA)
        b.fetcher.assign({T0: 0, T1: 0})
        b.broker.append(T1, messages(b"1"))
        assert values(await b.next_batch()) == [b"1"], "the others keep flowing"
        await settle(0.2)
        assert 4 <= b.broker.count(METADATA) - before <= 30
        b.broker.leaders = {}
        b.broker.append(T0, messages(b"0"))
        assert values(await b.next_batch()) == [b"0"]


async def test_one_topic_is_polled_by_itself() -> None:
    """What is there of other topics stays, in its order, and does not wake who waits for this one."""
    async with bench(FakeBroker({"t": 2, "u": 1})) as b:
        other = TopicPartition("u", 0)
        for tp in (T0, T1):
            b.broker.logs[tp].append(messages(b"t"))
        b.fetcher.assign({T0: 0, T1: 0, other: 0})
        await asyncio.wait_for(b.fetcher.wait_for_batch("t"), 5)
        assert b.fetcher.poll("u") is None
        waiting = asyncio.ensure_future(b.fetcher.wait_for_batch("u"))
        first, second = await b.next_batch(), await b.next_batch()
        assert {first.topic_partition, second.topic_partition} == {T0, T1}
        assert not waiting.done()
        b.broker.logs[other].append(messages(b"u"))
        await asyncio.wait_for(waiting, 5)
        batch = b.fetcher.poll("u")
        assert batch is not None
        assert batch.topic_partition == other
