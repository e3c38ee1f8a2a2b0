"""A reset from the fetch that is out of range to the first record after it, at a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.position_reset import PositionReset
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import log_range
from kiel_groups.config import FetchConfig, ResetPolicy
from kiel_groups.coordination.session.delivery_gate import DeliveryGate
from kiel_groups.coordination.zookeeper.runtime import boot_time_s
from kiel_groups.errors import OffsetOutOfRangeError, SessionLostError
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import PartitionState, StartPosition, SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.encoder import encode_message_set
from tests.helpers.fake_broker import FETCH, LIST_OFFSETS, FakeBroker

pytestmark = [pytest.mark.unit, pytest.mark.failures]

T0 = TopicPartition("t", 0)


class Bench:
    """A consumer's parts around one partition; its member stores resets in ``stored``, after ``failures``."""

    def __init__(self, broker: FakeBroker, policy: ResetPolicy, deserializer: Callable[[bytes], Any] | None) -> None:
        self.broker = broker
        self.metrics = Metrics()
        self.gate = DeliveryGate()
        self.gate.grant(3_600_000)
        self.gate.renew(boot_time_s())
        self.stored: list[int] = []
        self.failures: list[Exception] = []
        self.subscription = SubscriptionState()
        self.subscription.subscribe("t")
        self.cluster = ClusterMetadata(broker.config(), self.metrics)
        self.fetcher = Fetcher(self.cluster, FetchConfig(max_wait_ms=1_000), self.metrics, reset=self._reset)
        calls = ListenerCalls(None, self.metrics)
        self.out = RecordDelivery(self.fetcher, self.subscription, calls, self, deserializer, self.metrics)
        self.reset = PositionReset(
            policy, self.cluster, partial(log_range, self.cluster), self.subscription, self.out, self, self.metrics
        )

    async def _reset(self, partition: TopicPartition, position: int) -> int | None:
        return await self.reset(partition, position)

    async def confirm_leaders(self) -> None:
        """ZooKeeper names the same leader as the broker."""

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        state = self.state
        if state.reset is not reset:
            return None
        self.stored.append(reset.offset_after(state.finished))
        self.subscription.seek(partition, self.stored[-1])
        return state.position

    @property
    def state(self) -> PartitionState:
        found = self.subscription.state(T0)
        assert found is not None
        return found

    @property
    def committed(self) -> int | None:
        """What a commit would store at this moment."""
        return self.subscription.all_consumed_offsets().get(T0)

    async def claim(self, offset: int) -> None:
        self.subscription.assign_from_subscribed({T0: StartPosition(offset, 1, 1)})
        await self.out.assigned([T0])

    def produce(self, count: int) -> None:
        self.broker.append(T0, encode_message_set([(None, b"%d" % n) for n in range(count)]))

    def cut(self, start: int, end: int) -> None:
        """The log has only these offsets from now on."""
        log = self.broker.logs[T0]
        log.entries = [entry for entry in log.entries if start <= entry[0] < end]
        log.start, log.end = start, end

    async def next(self) -> int:
        async with asyncio.timeout(5):
            while (record := self.out.take()) is None:
                await self.out.wait()
            return record.offset

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 -- of many parts
                await asyncio.sleep(0.001)

    async def out_of_range(self) -> None:
        """Wait until a reset is chosen; the fetch that waits for new records is answered at once."""
        self.broker.drop_connections()
        await self.until(lambda: self.state.reset is not None)


@asynccontextmanager
async def bench(
    policy: ResetPolicy = "latest", deserializer: Callable[[bytes], Any] | None = None
) -> AsyncIterator[Bench]:
    async with FakeBroker({"t": 1}) as broker:
        made = Bench(broker, policy, deserializer)
        await made.cluster.refresh(["t"], "test")
        try:
            yield made
        finally:
            made.fetcher.close()
            made.cluster.close()


async def test_with_nothing_older_the_position_is_stored_at_once() -> None:
    """Before any record from there is fetched."""
    async with bench() as b:
        b.produce(10)
        await b.claim(1_000)
        await b.until(lambda: b.stored)
        assert b.stored == [10]
        b.produce(1)
        assert await b.next() == 10
        assert b.metrics.counter("offset_resets") == 1


@pytest.mark.parametrize(("policy", "stored", "following"), [("latest", 4, 4), ("earliest", 0, 0)])
async def test_a_log_that_is_cut_under_a_reader(policy: ResetPolicy, stored: int, following: int) -> None:
    """
    What is fetched and still in the log is delivered first; what is not is dropped.

    Only when the last of the former is finished the position is stored, and only then fetching continues.
    """
    async with bench(policy) as b:
        b.produce(8)
        await b.claim(0)
        assert await b.next() == 0
        b.cut(0, 4)
        await b.out_of_range()
        assert b.metrics.counter("records_cut_off") == 4
        fetches = b.broker.count(FETCH)
        b.produce(1)
        assert [await b.next() for _ in range(3)] == [1, 2, 3]
        assert b.committed == 3
        assert b.stored == []
        assert b.broker.count(FETCH) == fetches
        assert b.state.position == 4
        assert await b.next() == following
        assert b.stored == [stored]


async def test_a_record_in_flight_that_is_cut_off_does_not_count() -> None:
    """Its end moves no offset, and the position is stored when the application is done with it."""
    async with bench() as b:
        b.produce(8)
        await b.claim(0)
        assert [await b.next() for _ in range(7)] == list(range(7))
        b.cut(0, 4)
        await b.out_of_range()
        assert b.committed is None, "6 is finished, and the log ends at 4"
        assert b.stored == []
        assert b.out.take() is None
        await b.until(lambda: b.stored)
        assert b.stored == [4]
        assert b.state.finished == 4


async def test_values_in_flight_count_up_to_the_cut() -> None:
    """Of what one call of consume() returned, a part may still be in the log."""
    async with bench() as b:
        b.produce(8)
        await b.claim(0)
        await b.until(lambda: b.fetcher.is_buffering(T0))
        taker = ConsumeCall()
        assert len(b.out.take_topic("t", 1_000, taker)) == 8
        taker.got = True
        b.cut(0, 4)
        await b.out_of_range()
        assert b.stored == []
        b.out.finish_topics(["t"])
        assert b.committed == 4
        await b.until(lambda: b.stored)
        assert b.stored == [4]


async def test_values_in_flight_beyond_the_cut_do_not_count() -> None:
    """Nor do they come again."""
    async with bench() as b:
        b.produce(4)
        await b.claim(0)
        await b.until(lambda: b.fetcher.is_buffering(T0))
        first, second = ConsumeCall(), ConsumeCall()
        b.out.take_topic("t", 1_000, first)
        b.produce(4)
        await b.until(lambda: b.fetcher.is_buffering(T0))
        b.out.take_topic("t", 1_000, second)
        first.got = second.got = True
        b.cut(0, 2)
        await b.out_of_range()
        b.out.finish_topics(["t"])
        await b.until(lambda: b.stored)
        assert (b.stored, b.state.finished) == ([2], 2)


async def test_values_that_come_again_undo_the_reset() -> None:
    """What nobody got is fetched again, and what follows it as well: the log has that, and no reset is due."""
    async with bench() as b:
        b.produce(4)
        await b.claim(0)
        await b.until(lambda: b.fetcher.is_buffering(T0))
        taker = ConsumeCall()
        b.out.take_topic("t", 1_000, taker)
        b.cut(0, 2)
        await b.out_of_range()
        taker.passed = True
        b.out.finish_topics(["t"])
        b.produce(1)
        offsets: list[int] = []

        def came() -> bool:
            other = ConsumeCall()
            other.got = True
            offsets.extend(r.offset for part in b.out.take_topic("t", 1_000, other).parts for r in part.records)
            return len(offsets) == 3

        await b.until(came)
        assert offsets == [0, 1, 2]
        assert b.stored == []
        assert b.state.reset is None


@pytest.mark.parametrize(
    ("policy", "cut", "following"),
    [("latest", (0, 4), 4), ("earliest", (0, 4), 0), ("latest", (12, 12), 12), ("earliest", (12, 12), 12)],
)
async def test_a_topic_that_is_unsubscribed_during_a_reset(
    policy: ResetPolicy, cut: tuple[int, int], following: int
) -> None:
    """It comes back when the log has the lost position again: the choice stands, and skips nothing written since."""
    async with bench(policy) as b:
        b.produce(8)
        await b.claim(0)
        for _ in range(8):
            await b.next()
        b.cut(*cut)
        await b.out_of_range()
        b.produce(6)
        for topic in ("u", "t"):
            b.subscription.subscribe(topic)
            b.out.follow_subscription()
        b.out.take()
        offsets = [await b.next() for _ in range(b.broker.logs[T0].end - following)]
        assert offsets == list(range(following, b.broker.logs[T0].end))
        assert b.stored == [following]


async def test_records_that_cannot_be_deserialized_hold_up_no_reset() -> None:
    """They are passed over, and nothing is in flight then."""

    def refuse(value: bytes) -> Any:
        raise ValueError(value)

    async with bench(deserializer=refuse) as b:
        b.produce(4)
        await b.claim(0)
        await b.until(lambda: b.fetcher.is_buffering(T0))
        b.cut(2, 3)
        await b.out_of_range()
        assert b.out.take() is None
        await b.until(lambda: b.stored)
        assert b.stored == [3]


async def test_what_is_put_back_is_handed_out_before_the_reset() -> None:
    """A loop that was left by an exception: its record is buffered again, and owed to whoever asks next."""
    async with bench() as b:
        b.produce(4)
        await b.claim(0)
        b.out.enter()
        assert [await b.next(), await b.next()] == [0, 1]
        b.cut(0, 2)
        await b.out_of_range()
        b.out.leave(finished=False)
        b.out.enter()
        assert await b.next() == 1
        assert b.stored == []
        assert b.out.take() is None
        await b.until(lambda: b.stored)
        assert b.stored == [2]


async def test_a_position_that_is_in_the_log_again_is_kept() -> None:
    """The broker that refused was behind: its own word on the log's range tells, and nothing is reset."""
    async with bench() as b:
        b.produce(4)
        b.broker.fail_next(FETCH, T0, 1)
        await b.claim(2)
        assert await b.next() == 2
        assert b.stored == []
        assert b.metrics.counter("offset_resets") == 0
        assert b.metrics.counter("fetch_retries") == 1


async def test_an_offset_that_an_operator_sets_during_the_look_up_is_kept() -> None:
    """The log's range is of no use for it: nothing is chosen, so that a release stores the operator's offset."""
    async with bench() as b:
        b.produce(10)
        b.broker.gates[LIST_OFFSETS] = asyncio.Event()
        await b.claim(1_000)
        await b.broker.wait_for_requests(LIST_OFFSETS, 1)
        (looking,) = (task for task in b.fetcher._tasks if "reset" in task.get_name())
        b.subscription.adopt(T0, 3, 2)
        b.out.moved(T0, 3)
        b.broker.gates[LIST_OFFSETS].set()
        await asyncio.wait({looking})
        assert b.state.reset is None
        assert b.state.reset_offset(autocommit=True) is None
        assert await b.next() == 3
        assert b.stored == []


@pytest.mark.parametrize("code", [1, 17, 99])
async def test_a_look_up_that_fails_is_repeated(code: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever brokers say about the log's range: error 1 is no word of the policy's."""
    async with bench() as b:
        b.produce(4)
        b.broker.fail_next(LIST_OFFSETS, T0, *[code] * 12)
        await b.claim(1_000)
        await b.until(lambda: b.stored)
        assert b.stored == [4]
        assert b.metrics.counter("fetch_retries") >= 5
        assert f"({code})" in caplog.text


async def test_a_reset_that_cannot_be_stored_is_tried_again() -> None:
    """It is chosen once: what is written between the tries is delivered, and its end is committed."""
    async with bench() as b:
        b.produce(4)
        b.failures = [SessionLostError("no session"), SessionLostError("no session")]
        await b.claim(5)
        await b.until(lambda: b.metrics.counter("resets_put_off") == 1)
        b.produce(6)
        await b.until(lambda: b.stored)
        assert b.stored == [4]
        assert b.broker.count(LIST_OFFSETS) == 2
        assert [await b.next() for _ in range(6)] == list(range(4, 10))
        b.out.finish()
        assert b.committed == 10


async def test_without_a_policy_nothing_is_stored() -> None:
    """The error reaches the application, with the range that the log has."""
    async with bench("none") as b:
        await b.claim(1_000)
        with pytest.raises(OffsetOutOfRangeError, match="t:0: offset 1000 is not in the log, which has 0 to 0"):
            await b.next()
        assert b.stored == []


@pytest.mark.parametrize("event", ["lost", "stop", "moved"])
async def test_a_partition_that_goes_ends_the_wait(event: str) -> None:
    """A loss forgets the reset, an operator's offset takes its place, a hand-over leaves it to the release."""
    async with bench() as b:
        b.produce(4)
        await b.claim(0)
        await b.until(lambda: b.fetcher.is_buffering(T0))
        b.cut(0, 2)
        await b.out_of_range()
        if event == "moved":
            b.subscription.seek(T0, 1)
            b.out.moved(T0, 1)
        elif event == "lost":
            b.out.lost([T0])
        else:
            b.out.stop([T0])
        await b.until(lambda: not any("reset" in task.get_name() for task in b.fetcher._tasks))
        assert b.stored == []
        assert (b.state.reset is None) == (event == "moved")
        if event == "moved":
            assert await b.next() == 1
