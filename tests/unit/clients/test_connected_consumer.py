"""The calls of a connected consumer that wait for records or values, its subscription, its start and its close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kiel_groups.clients import connected_consumer
from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.coordination import ZooKeeperCoordination
from kiel_groups.clients.delivery import in_flight as values_in_flight
from kiel_groups.clients.delivery import record_reader
from kiel_groups.clients.delivery.in_flight import Span, ValuesInFlight
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.config import BrokerConfig, FetchConfig, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.errors import ConfigError, NoOffsetsError, NoZooKeeperError, ProtocolError, SessionLostError
from kiel_groups.group.partition_offsets import PartitionOffsets, StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import Batch, PartitionBatch, Record, TopicPartition
from kiel_groups.zookeeper.tasks import CloseLimit
from tests.helpers.delivery_bench import next_values, open_gate
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit

P0 = TopicPartition("t", 0)
VALUES = Batch([PartitionBatch(P0, 1, [1], [])])


@asynccontextmanager
async def consumer_without_servers(max_wait_ms: int = 3_600_000) -> AsyncIterator[ConnectedConsumer]:
    """Yield a consumer of the topic t that has not joined its group, but whose gate is open."""
    subscription = SubscriptionState()
    subscription.subscribe(["t"])
    settings = ConsumerSettings(
        brokers=BrokerConfig(hosts=(HostPort("127.0.0.1", 1),)),
        fetching=FetchConfig(max_wait_ms=max_wait_ms),
        group=GroupConfig(group="g"),
        coordination=ZooKeeperCoordination(ZooKeeperConfig(hosts="127.0.0.1:1")),
    )
    connected = ConnectedConsumer(settings, subscription)
    connected.member._handler.gate_changed(open_gate())
    try:
        yield connected
    finally:
        connected.reader.fetcher.close()
        connected.reader.cluster.close()


def claim(connected: ConnectedConsumer) -> PartitionOffsets:
    """Own partition 0 of topic t at offset 10, with its assigned hook ended, and return its state."""
    connected._subscription.offsets.open({P0: StartPosition(10, 1, 1)})
    connected.reader.owned.ready._ready.add(P0)
    state = connected.reader.owned.claim_of(P0)
    assert state is not None
    return state


def deliver_value(connected: ConnectedConsumer, state: PartitionOffsets) -> ConsumeCall:
    """Put the value at offset 10 in flight, and return its call, which has not received it yet."""
    call, values = ConsumeCall(), ValuesInFlight()
    values.add({P0: Span(state, 10, 11)}, call, connected.reader.owned.boot_time_s())
    connected.reader.owned.in_flight.topics["t"] = values
    state.position = 11
    return call


# The waits


@pytest.mark.parametrize("error", [None, SessionLostError("over")])
async def test_the_end_of_the_consumer_ends_each_wait(error: SessionLostError | None) -> None:
    """When the consumer ends, each waiting call returns None, or raises the error that has ended the consumer."""
    async with consumer_without_servers() as connected:
        calls = asyncio.gather(
            connected.reader.records.next_record(), next_values(connected.reader, ConsumeCall()), return_exceptions=True
        )
        await run_ready_tasks()
        assert not calls.done()
        connected.reader.end(error)
        async with asyncio.timeout(5):
            assert [repr(outcome) for outcome in await calls] == [repr(error)] * 2


async def test_a_record_that_arrives_is_delivered_by_the_next_step_of_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other task works between the arrival and the delivery: each would add to the latency of each record."""
    async with consumer_without_servers() as connected:
        arrived: list[Record] = []
        monkeypatch.setattr(connected.reader.records, "take", lambda: arrived.pop() if arrived else None)
        waiting = asyncio.ensure_future(connected.reader.records.next_record())
        await run_ready_tasks()
        arrived.append(Record("t", 0, 10, None, b"x"))
        connected.reader.fetcher.ready.notify("t")
        # This task is queued behind the one that waits.
        await asyncio.sleep(0)
        assert waiting.done()


async def test_an_error_that_ends_the_consumer_keeps_no_loop_active() -> None:
    """The next loop raises the error, too, with its cause."""
    error, cause = SessionLostError("over"), ValueError("why")
    error.__cause__ = cause
    async with consumer_without_servers() as connected:
        connected.reader.end(error)
        for _ in range(2):
            connected.reader.records.begin_loop()
            causes = []
            try:
                await anext(RecordLoop(connected.reader.records))
            except SessionLostError as raised:
                causes.append(raised.__cause__)
            assert causes == [cause]


async def test_a_call_returns_no_values_when_its_time_is_over() -> None:
    """A call for values returns an empty batch after ``max_wait_ms``."""
    async with consumer_without_servers(max_wait_ms=1) as connected, asyncio.timeout(5):
        assert await next_values(connected.reader, ConsumeCall()) == []


async def test_only_the_newest_call_of_a_topic_takes_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several calls for a topic, the newest one gets the values, since the caller of another may have given up."""
    async with consumer_without_servers() as connected:
        fetched: list[Batch] = []
        monkeypatch.setattr(connected.reader.values, "take", lambda *_: fetched.pop() if fetched else Batch())
        older, newer = ConsumeCall(), ConsumeCall()
        waiting = [asyncio.ensure_future(next_values(connected.reader, call)) for call in (older, newer)]
        await run_ready_tasks()
        fetched.append(VALUES)
        connected.reader.fetcher.ready.notify("t")
        async with asyncio.timeout(5):
            assert await waiting[1] == [1]
        connected.reader.end(None)
        assert await waiting[0] is None


async def test_a_call_ends_when_its_coroutine_calls_again() -> None:
    """A call whose coroutine has called again returns an empty batch at its next wake-up."""
    async with consumer_without_servers() as connected:
        call = ConsumeCall()
        waiting = asyncio.ensure_future(next_values(connected.reader, call))
        await run_ready_tasks()
        call.superseded = True
        connected.reader.fetcher.ready.notify("t")
        async with asyncio.timeout(5):
            assert await waiting == []


async def test_a_refused_topic_is_raised_by_a_waiting_loop() -> None:
    """The error of a topic whose start position is unknown ends the wait of a loop."""
    async with consumer_without_servers() as connected:
        waiting = asyncio.ensure_future(connected.reader.records.next_record())
        await run_ready_tasks()
        connected.member._handler.start_unknown("t", NoOffsetsError("no offsets of t"))
        async with asyncio.timeout(5):
            with pytest.raises(NoOffsetsError, match="no offsets of t"):
                await waiting


async def test_a_loop_finishes_its_record_when_the_consumer_ends() -> None:
    """
    The last record of a loop is finished when the loop asks for the next one, even if the consumer has ended. The close
    waits for that record.
    """
    async with consumer_without_servers() as connected:
        state = claim(connected)
        records = [Record("t", 0, offset, None, b"") for offset in (10, 11)]
        connected.reader.owned.batch.start(FetchedBatch(P0, records, 1, 100), state, records)
        connected.reader.records.begin_loop()
        loop = RecordLoop(connected.reader.records)
        assert (await anext(loop)).offset == 10
        connected.reader.end(None)
        assert connected.reader.owned.in_flight.in_flight_of([P0]) == {P0}
        with pytest.raises(StopAsyncIteration):
            await anext(loop)
        assert connected.reader.owned.in_flight.in_flight_of([P0]) == frozenset()
        assert state.finished == 11


async def test_a_waiting_call_has_unclaimed_values_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A call that waits while another caller may still receive values checks after ``UNCLAIMED_S`` whether it has. If it
    has not, the values are fetched again, long before the waiting call's own time is over.
    """
    monkeypatch.setattr(record_reader, "UNCLAIMED_S", 0.01)
    monkeypatch.setattr(values_in_flight, "UNCLAIMED_S", 0.01)
    async with consumer_without_servers() as connected:
        state, fetched = claim(connected), list[int]()
        monkeypatch.setattr(connected.reader.owned, "fetch", lambda _: fetched.append(state.position))
        deliver_value(connected, state)
        waiting = asyncio.ensure_future(next_values(connected.reader, ConsumeCall()))
        await eventually(lambda: fetched, "the values are fetched again", timeout_s=5.0)
        assert fetched == [10]
        connected.reader.end(None)
        assert await waiting is None


async def test_a_call_that_raises_an_error_lets_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that repeats a call whose error is buffered does not starve the event loop's other tasks."""

    def unreadable(*_: object) -> Batch:
        raise ProtocolError("broken")

    async with consumer_without_servers() as connected:
        monkeypatch.setattr(connected.reader.values, "take", unreadable)
        other = asyncio.ensure_future(asyncio.sleep(0))
        for _ in range(3):
            with pytest.raises(ProtocolError, match="broken"):
                await next_values(connected.reader, ConsumeCall())
        assert other.done()


# The subscription


async def test_a_subscription_that_cannot_be_registered_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the member cannot register the topics, the previous subscription remains, and its topics are delivered."""

    def refuse(_: object) -> None:
        raise ConfigError("too many topics")

    async with consumer_without_servers() as connected:
        monkeypatch.setattr(connected.member, "check_subscription", refuse)
        with pytest.raises(ConfigError, match="too many topics"):
            connected.subscribe(["u"], lambda: connected._subscription.subscribe(["u"]))
        assert connected._subscription.topics == {"t"}
        connected.member._handler.start_unknown("t", NoOffsetsError("no offsets of t"))
        with pytest.raises(NoOffsetsError):
            await connected.reader.records.next_record()


# The start and the close


async def test_a_failed_start_stops_the_fetcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If a member fails after it has claimed its first partitions, the fetcher stops. Nothing would end its tasks later.
    """
    async with consumer_without_servers() as connected:

        async def refresh(*_: object) -> None:
            """Find no leader."""

        async def start() -> None:
            connected.reader.fetcher.assign({P0: 10})
            raise NoZooKeeperError("no answer")

        monkeypatch.setattr(connected.reader.cluster, "refresh", refresh)
        monkeypatch.setattr(connected.member, "start", start)
        with pytest.raises(NoZooKeeperError, match="no answer"):
            await connected.start()
        assert connected.reader.fetcher.assignment == frozenset()


async def test_a_close_gives_up_values_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A close waits for values in flight for ``VALUES_PATIENCE_S``. After that, they are dropped before the member leaves,
    because the release of their partition would wait for them without a limit.
    """
    monkeypatch.setattr(connected_consumer, "VALUES_PATIENCE_S", 0.01)
    async with consumer_without_servers() as connected:
        deliver_value(connected, claim(connected)).received = True
        in_flight: list[frozenset[TopicPartition]] = []

        async def leave(_: float | None) -> None:
            in_flight.append(connected.reader.owned.in_flight.in_flight_of([P0]))

        monkeypatch.setattr(connected.member, "close", leave)
        async with asyncio.timeout(5):
            await connected.close(CloseLimit())
        assert in_flight == [frozenset()]
