"""Position resets with a scripted broker, from the fetch that is out of range to the first record after the reset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.connected_consumer import DeliveryHandler
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.position_reset import PositionReset, ResetBrokers
from kiel_groups.clients.delivery.record_loop import RecordDelivery
from kiel_groups.clients.delivery.record_reader import VALUES, RecordReader, ValueDelivery
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import FetchConfig, ResetPolicy
from kiel_groups.errors import CommitFailedError, OffsetOutOfRangeError, SessionLostError
from kiel_groups.group.partition_offsets import PartitionOffsets, PendingReset, StartPosition, StoredOffset
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.delivery_bench import open_gate
from tests.helpers.fake_broker import FETCH, LIST_OFFSETS, FakeBroker, message_set
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.unit, pytest.mark.failures]

T0 = TopicPartition("t", 0)


class ResetBench:
    """
    The parts of a consumer for one partition. ``store_reset`` raises the errors in ``failures``, and then appends each
    reset's offset to ``stored``. If ``answer`` is set, it returns after this event only.
    """

    def __init__(self, broker: FakeBroker, policy: ResetPolicy, deserializer: Callable[[bytes], Any] | None) -> None:
        self.broker = broker
        self.metrics = Metrics()
        self.gate = open_gate()
        runtime = Runtime()
        self.stored: list[int] = []
        self.failures: list[Exception] = []
        self.failed = asyncio.Event()
        self.answer: asyncio.Event | None = None
        self.subscription = SubscriptionState()
        self.subscription.subscribe("t")
        self.cluster = ClusterMetadata(broker.config(), self.metrics)
        self.fetcher = Fetcher(
            self.cluster, FetchConfig(max_wait_ms=1_000), self.metrics, reset=self._reset, runtime=Runtime()
        )
        self.calls = ListenerCalls(None, self.metrics)
        deserializing = Deserializer(deserializer, self.metrics, runtime.boot_time_s, on_bad_record="skip")
        self.owned = OwnedRecords(self.fetcher, self.subscription, self.calls, deserializing, runtime, self.metrics)
        self.records = RecordDelivery(self.owned)
        self.values = ValueDelivery(self.owned, self.metrics)
        self.handler = DeliveryHandler(cast(RecordReader, self), "g", self.metrics)
        self.handler.gate_changed(self.gate)
        self.reset = PositionReset(
            policy, ResetBrokers.of(self.cluster), self.subscription, self.owned, self, self.metrics
        )

    async def _reset(self, partition: TopicPartition, position: int) -> int | None:
        return await self.reset(partition, position)

    async def confirm_leaders(self) -> None:
        """Change no leader, because ZooKeeper names the same leader as the broker."""

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        await asyncio.sleep(0)
        if self.failures:
            self.failed.set()
            raise self.failures.pop(0)
        state = self.state
        if state.reset is not reset:
            return None
        self.stored.append(reset.offset_after(state.finished))
        self.subscription.offsets.seek(partition, self.stored[-1])
        if self.answer is not None:
            await self.answer.wait()
        return state.position

    @property
    def state(self) -> PartitionOffsets:
        found = self.subscription.offsets.of(T0)
        assert found is not None
        return found

    @property
    def committed(self) -> int | None:
        """The offset that a commit would store now."""
        commit = self.subscription.offsets.commits().get(T0)
        return None if commit is None else commit.offset

    async def claim(self, offset: int) -> None:
        self.subscription.offsets.open({T0: StartPosition(offset, 1, 1)})
        await self.handler.assigned([T0])

    def produce(self, count: int) -> None:
        self.broker.append(T0, message_set(*(b"%d" % n for n in range(count))))

    def truncate(self, start: int, end: int) -> None:
        """Keep only the log's records from ``start`` to before ``end``."""
        log = self.broker.logs[T0]
        log.entries = [entry for entry in log.entries if start <= entry[0] < end]
        log.start, log.end = start, end

    async def next(self) -> int:
        async with asyncio.timeout(5):
            while (record := self.records.take()) is None:
                await self.records.wait()
            return record.offset

    async def wait_for_reset(self) -> None:
        """End the long poll in flight, and wait until the consumer has chosen a reset."""
        self.broker.drop_connections()
        await eventually(lambda: self.state.reset is not None, "a reset is chosen")


@asynccontextmanager
async def reset_bench(
    policy: ResetPolicy = "latest", deserializer: Callable[[bytes], Any] | None = None
) -> AsyncIterator[ResetBench]:
    async with FakeBroker({"t": 1}) as broker:
        bench = ResetBench(broker, policy, deserializer)
        await bench.cluster.refresh(["t"], "test")
        try:
            yield bench
        finally:
            bench.fetcher.close()
            bench.cluster.close()


async def test_a_reset_is_stored_at_once_if_nothing_older_is_buffered() -> None:
    """If no older record is buffered, a reset is stored at once, before any record from its offset on is fetched."""
    async with reset_bench() as bench:
        bench.produce(10)
        await bench.claim(1_000)
        await eventually(lambda: bench.stored, "the reset is stored")
        assert bench.stored == [10]
        bench.produce(1)
        assert await bench.next() == 10
        assert bench.metrics.counter("offset_resets") == 1


@pytest.mark.parametrize(("policy", "stored", "following"), [("latest", 4, 4), ("earliest", 0, 0)])
async def test_records_that_are_still_in_the_log_are_delivered_before_a_reset(
    policy: ResetPolicy, stored: int, following: int
) -> None:
    """
    After a truncation of the log, buffered records that the log still has are delivered before the reset. When the last
    one is finished, the reset is stored, and fetching continues.
    """
    async with reset_bench(policy) as bench:
        bench.produce(8)
        await bench.claim(0)
        assert await bench.next() == 0
        bench.truncate(0, 4)
        await bench.wait_for_reset()
        assert bench.metrics.counter("records_cut_off") == 4
        fetches = bench.broker.count(FETCH)
        bench.produce(1)
        assert [await bench.next() for _ in range(3)] == [1, 2, 3]
        assert bench.committed == 3
        assert bench.stored == []
        assert bench.broker.count(FETCH) == fetches
        assert bench.state.position == 4
        assert await bench.next() == following
        assert bench.stored == [stored]


async def test_a_record_in_flight_beyond_the_end_of_the_log_is_not_committed() -> None:
    """Finishing a record in flight beyond the end of the log commits nothing. The reset is stored after it."""
    async with reset_bench() as bench:
        bench.produce(8)
        await bench.claim(0)
        assert [await bench.next() for _ in range(7)] == list(range(7))
        bench.truncate(0, 4)
        await bench.wait_for_reset()
        assert bench.committed is None, "6 is finished, and the log ends at 4"
        assert bench.metrics.counter("records_cut_off") == 1, "only 7 was not delivered"
        assert bench.stored == []
        assert bench.records.take() is None
        await eventually(lambda: bench.stored, "the reset is stored")
        assert bench.stored == [4]
        assert bench.state.finished == 4


async def test_values_in_flight_are_committed_up_to_the_end_of_the_log() -> None:
    """
    If the log still has some of the values of a ``consume()`` call, finishing the values commits the end of the log.
    """
    async with reset_bench() as bench:
        bench.produce(8)
        await bench.claim(0)
        await eventually(lambda: bench.fetcher.is_buffering(T0), "a batch is buffered")
        call = ConsumeCall()
        assert len(bench.values.take(Selection("t"), VALUES, call, most_bytes=1_000)) == 8
        call.received = True
        bench.truncate(0, 4)
        await bench.wait_for_reset()
        assert bench.stored == []
        bench.values.finish(["t"])
        assert bench.committed == 4
        await eventually(lambda: bench.stored, "the reset is stored")
        assert bench.stored == [4]


async def test_values_in_flight_beyond_the_end_of_the_log_are_not_committed() -> None:
    """Values of two calls beyond the end of the log are not committed. The reset stores the end of the log."""
    async with reset_bench() as bench:
        bench.produce(4)
        await bench.claim(0)
        await eventually(lambda: bench.fetcher.is_buffering(T0), "a batch is buffered")
        first, second = ConsumeCall(), ConsumeCall()
        bench.values.take(Selection("t"), VALUES, first, most_bytes=1_000)
        bench.produce(4)
        await eventually(lambda: bench.fetcher.is_buffering(T0), "a batch is buffered")
        bench.values.take(Selection("t"), VALUES, second, most_bytes=1_000)
        first.received = second.received = True
        bench.truncate(0, 2)
        await bench.wait_for_reset()
        bench.values.finish(["t"])
        await eventually(lambda: bench.stored, "the reset is stored")
        assert (bench.stored, bench.state.finished) == ([2], 2)


async def test_unclaimed_values_cancel_the_reset() -> None:
    """Unclaimed values that the log still has cancel the reset: they are fetched again from their own offset."""
    async with reset_bench() as bench:
        bench.produce(4)
        await bench.claim(0)
        await eventually(lambda: bench.fetcher.is_buffering(T0), "a batch is buffered")
        call = ConsumeCall()
        bench.values.take(Selection("t"), VALUES, call, most_bytes=1_000)
        bench.truncate(0, 2)
        await bench.wait_for_reset()
        call.superseded = True
        bench.values.finish(["t"])
        bench.produce(1)
        offsets: list[int] = []

        def arrived() -> bool:
            other = ConsumeCall()
            other.received = True
            offsets.extend(
                r.offset
                for part in bench.values.take(Selection("t"), VALUES, other, most_bytes=1_000).parts
                for r in part.records
            )
            return len(offsets) == 3

        await eventually(arrived, "the values arrived")
        assert offsets == [0, 1, 2]
        assert bench.stored == []
        assert bench.state.reset is None


@pytest.mark.parametrize(
    ("policy", "cut", "following"),
    [("latest", (0, 4), 4), ("earliest", (0, 4), 0), ("latest", (12, 12), 12), ("earliest", (12, 12), 12)],
)
async def test_a_topic_that_is_unsubscribed_during_a_reset(
    policy: ResetPolicy, cut: tuple[int, int], following: int
) -> None:
    """
    A reset is kept while its topic is unsubscribed, even if the log has the lost position again meanwhile. No record
    written in between is skipped.
    """
    async with reset_bench(policy) as bench:
        bench.produce(8)
        await bench.claim(0)
        for _ in range(8):
            await bench.next()
        bench.truncate(*cut)
        await bench.wait_for_reset()
        bench.produce(6)
        for topic in ("u", "t"):
            bench.subscription.subscribe(topic)
            bench.owned.follow_subscription()
        bench.records.take()
        offsets = [await bench.next() for _ in range(bench.broker.logs[T0].end - following)]
        assert offsets == list(range(following, bench.broker.logs[T0].end))
        assert bench.stored == [following]


async def test_records_that_cannot_be_deserialized_delay_no_reset() -> None:
    """Records that cannot be deserialized are skipped, so they do not delay a reset."""

    def refuse(value: bytes) -> Any:
        raise ValueError(value)

    async with reset_bench(deserializer=refuse) as bench:
        bench.produce(4)
        await bench.claim(0)
        await eventually(lambda: bench.fetcher.is_buffering(T0), "a batch is buffered")
        bench.truncate(2, 3)
        await bench.wait_for_reset()
        assert bench.records.take() is None
        await eventually(lambda: bench.stored, "the reset is stored")
        assert bench.stored == [3]


async def test_a_record_that_was_put_back_is_delivered_before_the_reset() -> None:
    """
    A record that was put back, because an exception ended the loop, is delivered by the next loop before the reset is
    stored.
    """
    async with reset_bench() as bench:
        bench.produce(4)
        await bench.claim(0)
        bench.records.begin_loop()
        assert [await bench.next(), await bench.next()] == [0, 1]
        bench.truncate(0, 2)
        await bench.wait_for_reset()
        bench.records.end_loop(finished=False)
        bench.records.begin_loop()
        assert await bench.next() == 1
        assert bench.stored == []
        assert bench.records.take() is None
        await eventually(lambda: bench.stored, "the reset is stored")
        assert bench.stored == [2]


async def test_a_position_that_is_in_the_log_after_all_is_kept() -> None:
    """
    No reset is made if the log has the position after all. The broker that answered "out of range" may have been
    behind.
    """
    async with reset_bench() as bench:
        bench.produce(4)
        bench.broker.fail_next(FETCH, T0, 1)
        await bench.claim(2)
        assert await bench.next() == 2
        assert bench.stored == []
        assert bench.metrics.counter("offset_resets") == 0
        assert bench.metrics.counter("fetch_retries") == 1


async def test_an_operators_offset_during_the_look_up_is_kept() -> None:
    """
    If an operator sets the offset while the log's range is looked up, no reset is chosen, because the lookup was for
    the lost position.
    """
    async with reset_bench() as bench:
        bench.produce(10)
        bench.broker.gates[LIST_OFFSETS] = asyncio.Event()
        await bench.claim(1_000)
        await bench.broker.wait_for_requests(LIST_OFFSETS, 1)
        (resetting,) = (task for task in bench.fetcher._tasks if "reset" in task.get_name())
        bench.subscription.offsets.read(T0, StoredOffset(3, 2))
        bench.handler.offset_changed(T0, 3)
        bench.broker.gates[LIST_OFFSETS].set()
        await asyncio.wait({resetting})
        assert bench.state.reset is None
        assert bench.state.reset_offset(autocommit=True) is None
        assert await bench.next() == 3
        assert bench.stored == []


@pytest.mark.parametrize("code", [1, 17, 99])
async def test_a_look_up_of_the_logs_range_that_fails_is_repeated(code: int, caplog: pytest.LogCaptureFixture) -> None:
    """
    A failed lookup of the log's range is repeated, whatever the broker's error is. Code 1 in this answer does not mean
    that the policy forbids a reset.
    """
    async with reset_bench() as bench:
        bench.produce(4)
        bench.broker.fail_next(LIST_OFFSETS, T0, *[code] * 12)
        await bench.claim(1_000)
        await eventually(lambda: bench.stored, "the reset is stored")
        assert bench.stored == [4]
        assert bench.metrics.counter("fetch_retries") >= 5
        assert f"({code})" in caplog.text


@pytest.mark.parametrize("error", [SessionLostError("no session"), CommitFailedError("refused")])
async def test_a_reset_that_cannot_be_stored_is_tried_again(error: Exception) -> None:
    """
    A reset that cannot be stored is tried again after a pause, also if the brokers have refused it. Its offset is
    chosen once, so records written between the tries are delivered.
    """
    async with reset_bench() as bench:
        bench.produce(4)
        bench.failures = [error, error]
        await bench.claim(5)
        await asyncio.wait_for(bench.failed.wait(), 5)
        bench.produce(6)
        await eventually(lambda: bench.stored, "the reset is stored")
        assert bench.stored == [4]
        assert bench.metrics.counter("resets_put_off") == 2
        assert bench.broker.count(LIST_OFFSETS) == 2
        assert [await bench.next() for _ in range(6)] == list(range(4, 10))
        bench.records.finish()
        assert bench.committed == 10


async def test_a_stored_reset_is_counted_although_the_consumer_closes_before_the_answer() -> None:
    """A reset whose position the server has stored is counted, also if the consumer never gets the server's answer."""
    async with reset_bench() as bench:
        bench.answer = asyncio.Event()
        await bench.claim(1_000)
        await eventually(lambda: bench.stored, "the reset is stored")
        bench.fetcher.close()
        assert bench.metrics.counter("offset_resets") == 1


async def test_with_the_policy_none_an_error_is_raised() -> None:
    """
    With the policy "none", a position outside of the log raises an error with the log's range, and no reset is stored.
    """
    async with reset_bench("none") as bench:
        await bench.claim(1_000)
        with pytest.raises(OffsetOutOfRangeError, match="t:0: offset 1000 is not in the log, which has 0 to 0"):
            await bench.next()
        assert bench.stored == []


@pytest.mark.parametrize("event", ["lost", "stop", "moved"])
async def test_a_reset_ends_when_its_partition_is_lost_stopped_or_reset(event: str) -> None:
    """
    A reset ends without being stored when its partition is lost, revoked or reset by an operator. The operator's offset
    replaces the reset; after a revocation, the release stores it. The reset is counted all the same.
    """
    async with reset_bench() as bench:
        bench.produce(4)
        await bench.claim(0)
        await eventually(lambda: bench.fetcher.is_buffering(T0), "a batch is buffered")
        bench.truncate(0, 2)
        await bench.wait_for_reset()
        if event == "moved":
            bench.subscription.offsets.seek(T0, 1)
            bench.handler.offset_changed(T0, 1)
        elif event == "lost":
            bench.handler.lost([T0])
        else:
            bench.handler.stop([T0])
        await eventually(
            lambda: not any("reset" in task.get_name() for task in bench.fetcher._tasks), "no reset is running"
        )
        assert bench.stored == []
        assert bench.metrics.counter("offset_resets") == 1
        assert (bench.state.reset is None) == (event == "moved")
        if event == "moved":
            assert await bench.next() == 1
