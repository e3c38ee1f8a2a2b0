"""Partitions that the application assigns, with a scripted broker: where they start, and what a change keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tornado.ioloop import IOLoop

from kiel_groups import GroupedConsumer
from kiel_groups.clients import BEGINNING, SingleConsumer
from kiel_groups.clients.connected_consumer import AssignedConsumer
from kiel_groups.clients.delivery.record_reader import ReaderSettings
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import FetchConfig, GroupConfig
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError, KielGroupsError, NoOffsetsError
from kiel_groups.errors import RetriableBrokerError as Passing
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import Record, TopicPartition
from kiel_groups.zookeeper.tasks import CloseLimit
from tests.helpers.fake_broker import LIST_OFFSETS, FakeBroker, message_set
from tests.helpers.single_consumers import T0, T1, consuming
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


class Bench:
    """An assigned consumer on a broker; ``offsets`` are the stored ones, given out when ``answer`` is set."""

    def __init__(self, broker: FakeBroker, policy: Any) -> None:
        self.broker = broker
        self.offsets: dict[TopicPartition, int] = {}
        self.failures: list[KielGroupsError] = []
        self.asked: list[Collection[TopicPartition]] = []
        self.answer = asyncio.Event()
        self.answer.set()
        self.state = SubscriptionState(GroupConfig(group="g", auto_offset_reset=policy))
        self.settings = ReaderSettings(
            brokers=broker.config(), fetching=FetchConfig(max_wait_ms=500, auto_offset_reset=policy)
        )
        self.consumer = AssignedConsumer(self.settings, self.state, self._stored, policy)

    async def _stored(self, _: ClusterMetadata, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.asked.append(partitions)
        await self.answer.wait()
        if self.failures:
            raise self.failures.pop(0)
        return {partition: self.offsets[partition] for partition in partitions if partition in self.offsets}

    def assign(self, *partitions: TopicPartition) -> None:
        self.state.assign_from_user(partitions)
        self.consumer.follow()

    async def next(self) -> Record:
        async with asyncio.timeout(5):
            record = await self.consumer.reader.records.next_record()
        assert record is not None
        return record

    async def positions(self, *partitions: TopicPartition) -> list[int | None]:
        async with asyncio.timeout(5):
            for partition in partitions:
                await self.consumer.await_position(partition)
        return [self.state.position(partition) for partition in partitions]


@asynccontextmanager
async def bench(policy: str = "earliest") -> AsyncIterator[Bench]:
    async with FakeBroker({"t": 2}) as broker:
        for partition in (T0, T1):
            broker.append(partition, message_set(b"0", b"1", b"2"))
        found = Bench(broker, policy)
        await found.consumer.start()
        yield found
        await found.consumer.close(CloseLimit())


async def test_a_partition_starts_at_its_stored_offset_or_by_the_policy() -> None:
    async with bench("latest") as it:
        it.offsets = {T0: 1}
        it.assign(T0, T1)
        assert await it.positions(T0, T1) == [1, 3]
        assert (await it.next()).offset == 1


async def test_a_seek_wins_over_the_look_up_that_runs() -> None:
    async with bench() as it:
        it.answer.clear()
        it.offsets = {T0: 0}
        it.assign(T0)
        await eventually(lambda: bool(it.asked), "the stored offset is asked for")
        it.state.seek(T0, 2)
        it.consumer.reader.owned.resume_at(T0, 2)
        it.answer.set()
        assert (await it.next()).offset == 2
        assert await it.positions(T0) == [3]


async def test_a_change_keeps_the_partitions_that_stay() -> None:
    """What stays is not fetched again; what leaves is looked up anew when it comes back."""
    async with bench() as it:
        it.assign(T0, T1)
        await it.positions(T0, T1)
        fetcher = it.consumer.reader.fetcher
        epoch = fetcher.epoch(T0)
        it.assign(T0)
        assert (fetcher.assignment, fetcher.epoch(T0)) == ({T0}, epoch)
        it.offsets = {T1: 2}
        it.assign(T0, T1)
        assert await it.positions(T1) == [2]
        assert fetcher.epoch(T0) == epoch
        it.state.unsubscribe()
        it.consumer.follow()
        assert fetcher.assignment == frozenset()


async def test_a_failed_look_up_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """A cause that may pass is logged once and counted, and the application waits."""
    async with bench() as it:
        it.offsets, it.failures = {T0: 1}, [Passing("moved"), Passing("moved")]
        it.assign(T0)
        assert await it.positions(T0) == [1]
        assert it.settings.metrics.total("start_lookups_failed") == 2
    assert "t:0 cannot be read yet: moved; trying again" in caplog.text


@pytest.mark.parametrize("policy", ["none", "earliest"])
async def test_a_start_that_only_the_application_can_choose_is_an_error(policy: str) -> None:
    """Its next request raises, and so does the wait for the position, until it seeks."""
    async with bench(policy) as it:
        if policy == "earliest":
            it.failures = [ConfigError("old brokers")] * 1_000
        it.assign(T0)
        for _ in range(2):
            with pytest.raises((NoOffsetsError, ConfigError)):
                await it.next()
        with pytest.raises((NoOffsetsError, ConfigError)):
            await it.positions(T0)
        it.state.seek(T0, 1)
        it.consumer.reader.owned.resume_at(T0, 1)
        assert (await it.next()).offset == 1


async def test_a_seek_withdraws_the_error_about_a_start() -> None:
    """An application that seeks before it asks for a record gets no error."""
    async with bench("none") as it:
        it.assign(T0)
        await eventually(lambda: it.settings.metrics.total("start_lookups_failed") > 0, "there is no start")
        it.state.seek(T0, 1)
        it.consumer.reader.owned.resume_at(T0, 1)
        assert (await it.next()).offset == 1


async def test_a_start_is_not_looked_up_for_a_partition_that_has_left() -> None:
    async with bench() as it:
        it.broker.leaders = {T0: -1}
        it.assign(T0)
        await eventually(lambda: T0 in it.consumer.start_lookup, "its leader is asked for")
        it.assign(T1)
        assert T0 not in it.consumer.start_lookup
        it.broker.leaders = {}
        assert await it.positions(T1) == [0]
        await eventually(
            lambda: ("partitions_unopened", (), 0.0) in it.settings.metrics.samples(), "nothing is missing"
        )


async def test_a_close_ends_the_wait_for_a_position() -> None:
    async with bench() as it:
        it.answer.clear()
        it.assign(T0)
        waiting = asyncio.ensure_future(it.positions(T0))
        await eventually(lambda: bool(it.asked), "the stored offset is asked for")
        await it.consumer.close(CloseLimit())
        with pytest.raises(ClosedError):
            await waiting


async def test_a_seek_that_waits_survives_the_look_up_of_the_start() -> None:
    """The start position that is found meanwhile is not a seek of the application."""
    async with consuming(b"0", b"1") as (broker, consumer):
        broker.gates[LIST_OFFSETS] = asyncio.Event()
        consumer.assign([T0])
        end = consumer.seek_to_end(T0)
        await broker.wait_for_requests(LIST_OFFSETS, 1)
        consumer._lifecycle.require_connected().open({T0: 0})
        broker.gates.pop(LIST_OFFSETS).set()
        assert await end == {T0: 2}
        assert await consumer.position(T0) == 2


async def test_an_unsubscribe_voids_a_subscribe_under_way() -> None:
    async with consuming(b"0") as (broker, consumer):
        broker.gates[LIST_OFFSETS] = asyncio.Event()
        subscribing = consumer.subscribe("t", start=BEGINNING)
        await broker.wait_for_requests(LIST_OFFSETS, 1)
        await consumer.unsubscribe()
        broker.gates.pop(LIST_OFFSETS).set()
        await subscribing
        assert (consumer.subscription(), consumer.assignment()) == (frozenset(), frozenset())


async def test_calls_of_a_single_consumer_that_were_cancelled_gave_nothing() -> None:
    async with consuming(b"0", b"1") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        await asyncio.wait({consumer.getmany(timeout_ms=5_000)})
        async with asyncio.timeout(5):
            assert [(await consumer.getone()).value for _ in range(2)] == [b"0", b"1"]
        with pytest.raises(ConfigError, match=r"getone\(\), getmany\(\) and consume_batches\(\)"):
            aiter(consumer)


async def test_a_commit_after_an_assignment_is_refused_before_the_connection() -> None:
    consumer = GroupedConsumer("127.0.0.1:1", "g", "127.0.0.1:1")
    consumer.assign([T0])
    consumer.seek(T0, 3)
    assert await consumer.position(T0) == 3
    for commit in (consumer.commit, lambda: consumer.commit({T0: 1}), consumer.commit_async):
        refused = commit()
        await asyncio.wait({refused})
        assert isinstance(refused.exception(), IllegalStateError)
        assert "no claim protects a commit" in str(refused.exception())
    with pytest.raises(IllegalStateError, match="call unsubscribe"):
        await consumer.subscribe("t")
    await consumer.close()


def test_an_assignment_between_two_runs_of_the_loop() -> None:
    """A program of Tornado's may assign while its loop does not run; the loop's next run reads the partition."""
    loop = IOLoop(make_current=True)
    broker = FakeBroker({"t": 1})
    broker.append(T0, message_set(b"1"))
    loop.run_sync(broker.__aenter__)
    consumer = SingleConsumer(str(broker.address))
    consumer.assign([T0])
    assert loop.run_sync(consumer.getone).value == b"1"
    loop.run_sync(consumer.close)
    loop.run_sync(broker.__aexit__)
    loop.close(all_fds=True)
