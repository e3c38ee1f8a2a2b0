"""Deposed leaders that do not know their successor: which broker the client follows, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from kiel_groups.clients import BEGINNING, SingleConsumer
from kiel_groups.clients.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.coordination import ZooKeeperCoordination
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.position_reset import PositionReset, ResetBrokers
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.net.cluster_metadata import AGE, DOUBT, ClusterMetadata
from kiel_groups.clients.net.offset_lookup import list_offsets
from kiel_groups.config import BrokerConfig, FetchConfig, GroupConfig, HostPort, ResetPolicy, ZooKeeperConfig
from kiel_groups.errors import BrokerError
from kiel_groups.group.partition_offsets import PendingReset, StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.fake_broker import FETCH, LIST_OFFSETS, METADATA, FakeBroker, message_set
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))
DEPOSED, ELECTED = 0, 1


class LeaderBench(NamedTuple):
    """
    A fetcher that reads metadata from a deposed broker, which still claims to lead all partitions. Another broker was
    elected.
    """

    deposed: FakeBroker
    elected: FakeBroker
    cluster: ClusterMetadata
    fetcher: Fetcher
    metrics: Metrics

    async def next_values(self) -> list[bytes]:
        async with asyncio.timeout(5):
            while (batch := self.fetcher.poll()) is None:
                await self.fetcher.ready.wait()
            return [record.value for record in batch.records]

    def override_leaders(self, *partitions: TopicPartition) -> None:
        """
        Name the elected broker as the leader, as a member does after it has read the partition states in ZooKeeper.
        """
        self.cluster.override_leaders(dict.fromkeys(partitions, ELECTED), {ELECTED: self.elected.address})


@asynccontextmanager
async def leader_bench(deposed_knows_other: bool = True, **settings: int) -> AsyncIterator[LeaderBench]:
    """Run a fetcher with both brokers; any reset fails the test."""

    async def no_reset(partition: TopicPartition, position: int) -> int:
        raise AssertionError("no log ends before a position")

    async with FakeBroker({"t": 3}, DEPOSED) as deposed, FakeBroker({"t": 3}, ELECTED) as elected:
        deposed.peers, elected.peers = [deposed, elected] if deposed_knows_other else [deposed], [elected]
        metrics = Metrics()
        cluster = ClusterMetadata(deposed.config(**settings), metrics)
        await cluster.refresh(["t"], "test")
        fetcher = Fetcher(cluster, FetchConfig(max_wait_ms=300), metrics, reset=no_reset, runtime=Runtime())
        try:
            yield LeaderBench(deposed, elected, cluster, fetcher, metrics)
        finally:
            fetcher.close()
            cluster.close()


@pytest.mark.parametrize("deposed_knows_other", [True, False])
async def test_a_leader_named_by_zookeeper_is_followed_after_the_poll_in_flight(
    deposed_knows_other: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A leader named by ZooKeeper is used after the poll in flight. Its registration in ZooKeeper has its address, so no
    broker needs to know it. The correction is logged.
    """
    async with leader_bench(deposed_knows_other) as bench:
        bench.elected.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        await bench.deposed.wait_for_requests(FETCH, 1)
        bench.override_leaders(T0)
        assert await bench.next_values() == [b"0"]
        assert bench.deposed.count(FETCH) == 1, "the long poll in flight"
        assert bench.metrics.counter("leaders_corrected") == 1
        assert "another leader than the brokers for 1 partition, first t:0: broker 1" in caplog.text
        await bench.cluster.refresh(["t"], "test")
        bench.elected.append(T0, message_set(b"1"))
        assert await bench.next_values() == [b"1"], "the deposed broker's answer changes nothing"


async def test_partitions_queued_at_a_deposed_leader_move_too() -> None:
    """A partition that waits for a free lane to the deposed leader moves to the elected leader, too."""
    async with leader_bench() as bench:
        answered = bench.deposed.gates[FETCH] = asyncio.Event()
        bench.fetcher.assign({T0: 0})
        await bench.deposed.wait_for_requests(FETCH, 1)
        bench.fetcher.assign({T1: 0})
        await bench.deposed.wait_for_requests(FETCH, 2)
        bench.fetcher.assign({T2: 0})
        bench.elected.append(T2, message_set(b"2"))
        bench.override_leaders(T0, T1, T2)
        answered.set()
        assert await bench.next_values() == [b"2"]
        assert bench.deposed.count(FETCH) == 2


async def test_a_leader_named_by_zookeeper_that_refuses_is_not_asked_again() -> None:
    """
    If the leader named by ZooKeeper refuses a fetch, the fetcher uses the leader that the brokers name from then on,
    because the refusal is newer than ZooKeeper's state.
    """
    async with leader_bench() as bench:
        bench.elected.leaders = {T0: DEPOSED}
        bench.override_leaders(T0)
        bench.deposed.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        assert await bench.next_values() == [b"0"]
        await bench.deposed.wait_for_requests(FETCH, 3)
        assert bench.elected.count(FETCH) == 1
        assert bench.metrics.counter("fetch_retries") == 1


async def test_a_leader_named_by_zookeeper_that_is_down_is_not_asked_again() -> None:
    """If the leader named by ZooKeeper is down, the fetcher uses the leader that the brokers name from then on."""
    async with leader_bench() as bench:
        await bench.elected.stop()
        bench.override_leaders(T0)
        bench.deposed.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        assert await bench.next_values() == [b"0"]
        await bench.deposed.wait_for_requests(FETCH, 3)
        assert bench.metrics.counter("fetch_retries") == 1


async def test_offsets_are_requested_from_the_leader_named_by_zookeeper() -> None:
    """
    Offsets are requested from the leader named by ZooKeeper. If it refuses, they are requested from the leader that the
    brokers name.
    """
    async with leader_bench() as bench:
        bench.elected.logs[T0].end, bench.deposed.logs[T0].end = 9, 4
        bench.override_leaders(T0)
        assert await list_offsets(bench.cluster, [T0], -1) == {T0: 9}
        bench.elected.leaders = {T0: DEPOSED}
        assert await list_offsets(bench.cluster, [T0], -1) == {T0: 4}
        assert bench.elected.count(LIST_OFFSETS) == 2


async def test_a_leader_that_zookeeper_does_not_name_again_is_forgotten() -> None:
    """
    If ZooKeeper no longer names a registered leader of a partition, the client uses the leader that the brokers name.
    """
    async with leader_bench() as bench:
        bench.override_leaders(T0, T1)
        assert [bench.cluster.leader_of(tp) for tp in (T0, T1, T2)] == [ELECTED, ELECTED, DEPOSED]
        bench.override_leaders(T1)
        assert [bench.cluster.leader_of(tp) for tp in (T0, T1)] == [DEPOSED, ELECTED]
        bench.cluster.drop_overrides([T1])
        assert bench.cluster.leader_of(T1) == DEPOSED


async def test_a_refresh_by_age_asks_another_broker() -> None:
    """
    A refresh by age asks another live broker. A broker that the other brokers do not report as alive is not asked
    again.
    """
    async with leader_bench(metadata_max_age_ms=20) as bench:
        assert bench.cluster.leader_of(T0) == DEPOSED
        for _ in range(4):
            await bench.cluster.refresh_when_old(lambda: ["t"])
            assert bench.cluster.leader_of(T0) == ELECTED
        assert bench.deposed.count(METADATA) == 1
        await bench.cluster.refresh(["t"], "fetch")
        assert bench.cluster.leader_of(T0) == ELECTED, "nor for another reason"


@pytest.mark.parametrize("reason", [AGE, DOUBT])
@pytest.mark.parametrize("first", [DEPOSED, ELECTED])
async def test_the_bootstrap_name_of_a_deposed_leader_is_not_another_broker(reason: str, first: int) -> None:
    """
    No broker advertises the bootstrap name, so the client cannot tell which broker has answered under it. The client
    therefore asks up to two brokers.
    """
    async with FakeBroker({"t": 1}, DEPOSED) as deposed, FakeBroker({"t": 1}, ELECTED) as elected:
        deposed.peers = [deposed, elected] if first == DEPOSED else [elected, deposed]
        elected.peers = [elected]
        cluster = ClusterMetadata(replace(deposed.config(), hosts=(HostPort("localhost", deposed.port),)), Metrics())
        await cluster.refresh(["t"], "test")
        assert cluster.leader_of(T0) == DEPOSED
        await cluster.refresh(["t"], reason)
        assert cluster.leader_of(T0) == ELECTED
        assert (deposed.count(METADATA), elected.count(METADATA)) == ((2, 1) if first == DEPOSED else (1, 2))
        await cluster.refresh(["t"], reason)
        assert deposed.count(METADATA) + elected.count(METADATA) == 4, "once a broker is known, one request is enough"
        cluster.close()


async def test_refreshes_by_age_ask_all_brokers_in_turn() -> None:
    """Refreshes by age ask all brokers in turn, so the client does not depend on the metadata of a single broker."""
    async with FakeBroker({"t": 1}, 0) as one, FakeBroker({"t": 1}, 1) as two, FakeBroker({"t": 1}, 2) as three:
        brokers = [one, two, three]
        for broker in brokers:
            broker.peers = brokers
        cluster = ClusterMetadata(one.config(metadata_max_age_ms=1), Metrics())
        await cluster.refresh(["t"], "test")
        for _ in range(5):
            await cluster.refresh_when_old(lambda: ["t"])
        assert [broker.count(METADATA) for broker in brokers] == [2, 2, 2]
        cluster.close()


async def test_a_single_consumer_leaves_a_deposed_leader() -> None:
    """
    A consumer without a group finds the elected leader within ``metadata_max_age_ms`` and the duration of the poll in
    flight.
    """
    async with FakeBroker({"t": 1}, DEPOSED) as deposed, FakeBroker({"t": 1}, ELECTED) as elected:
        deposed.peers, elected.peers = [deposed, elected], [elected]
        elected.append(T0, message_set(b"0"))
        quick = {"max_wait_time": 200, "metadata_max_age_ms": 300}
        async with SingleConsumer([str(deposed.address)], **quick) as consumer, asyncio.timeout(5):
            await consumer.subscribe("t", start=BEGINNING)
            assert (await anext(consumer)).value == b"0"


async def test_a_deposed_leader_with_a_shorter_log_does_not_cause_a_reset() -> None:
    """
    A deposed leader, such as a broker that was frozen, may answer "out of range" because its log is shorter. The
    consumer then makes no reset.
    """
    async with FakeBroker({"t": 1}, DEPOSED) as deposed, FakeBroker({"t": 1}, ELECTED) as elected:
        for broker in (deposed, elected):
            broker.peers = [deposed, elected]
            broker.append(T0, message_set(b"0", b"1"))
        elected.leaders = {T0: ELECTED}
        elected.append(T0, message_set(b"2", b"3"))
        async with SingleConsumer([str(deposed.address)], backoff_ms=2) as consumer, asyncio.timeout(5):
            await consumer.subscribe("t", start={T0: 3})
            assert (await anext(consumer)).offset == 3
            assert consumer.metrics.total("offset_resets") == 0
        assert deposed.count(FETCH) == 1


class NamingMember:
    """A member that reads a given leader from ZooKeeper. ``stored`` lists the resets that it is asked to store."""

    def __init__(self, cluster: ClusterMetadata, leader: FakeBroker) -> None:
        self.subscription = SubscriptionState()
        self._cluster, self._leader = cluster, leader
        self.reads = 0
        self.stored: list[PendingReset] = []

    async def confirm_leaders(self) -> None:
        self.reads += 1
        await asyncio.sleep(0)
        self._cluster.override_leaders(
            dict.fromkeys((T0, T1), self._leader.node_id), {self._leader.node_id: self._leader.address}
        )

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int:
        self.stored.append(reset)
        return reset.position


class SlowMember(NamingMember):
    """
    A member whose read of the leaders ends when ``answer`` is set. The read covers only partitions that were owned at
    its start.
    """

    def __init__(self, cluster: ClusterMetadata, leader: FakeBroker) -> None:
        super().__init__(cluster, leader)
        self.owned = [T0]
        self.reading, self.answer = asyncio.Event(), asyncio.Event()

    async def confirm_leaders(self) -> None:
        owned = tuple(self.owned)
        self.reads += 1
        self.reading.set()
        await self.answer.wait()
        self._cluster.override_leaders(
            dict.fromkeys(owned, self._leader.node_id), {self._leader.node_id: self._leader.address}
        )


def records_of(bench: LeaderBench, subscription: SubscriptionState) -> OwnedRecords:
    """Return the records of a consumer with this subscription, which the bench fetches."""
    calls, deserializer = ListenerCalls(None, bench.metrics), Deserializer(None, bench.metrics, Runtime().boot_time_s)
    return OwnedRecords(bench.fetcher, subscription, calls, deserializer, Runtime(), bench.metrics)


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_group_confirms_the_leader_in_zookeeper_before_it_resets(policy: ResetPolicy) -> None:
    """
    Before a reset, a member of a group reads the leader from ZooKeeper, because every broker that answers metadata
    requests may be deposed. Concurrent resets share one read.
    """
    async with leader_bench() as bench:
        for partition in (T0, T1):
            bench.deposed.append(partition, message_set(b"0", b"1"))
            bench.elected.append(partition, message_set(b"0", b"1", b"2", b"3"))
        bench.elected.append(T0, message_set(b"4"))
        member = NamingMember(bench.cluster, bench.elected)
        subscription = member.subscription
        subscription.offsets.open({tp: StartPosition(4, 1, 1) for tp in (T0, T1)})
        records = records_of(bench, subscription)
        bench.fetcher.assign({T0: 4, T1: 4})
        reset = PositionReset(policy, ResetBrokers.of(bench.cluster), subscription, records, member, bench.metrics)
        assert await asyncio.gather(reset(T0, 4), reset(T1, 4)) == [None, None]
        assert (member.reads, member.stored) == (1, [])


async def test_a_reset_does_not_join_an_earlier_read_of_the_leaders() -> None:
    """
    A reset waits for a read of the leaders that starts after it. An earlier read lacks partitions that were claimed
    after its start.
    """
    async with leader_bench() as bench:
        for partition in (T0, T1):
            bench.deposed.append(partition, message_set(b"0", b"1"))
            bench.elected.append(partition, message_set(b"0", b"1", b"2", b"3", b"4"))
        member = SlowMember(bench.cluster, bench.elected)
        subscription = member.subscription
        subscription.offsets.open({tp: StartPosition(4, 1, 1) for tp in (T0, T1)})
        records = records_of(bench, subscription)
        bench.fetcher.assign({T0: 4, T1: 4})
        reset = PositionReset("earliest", ResetBrokers.of(bench.cluster), subscription, records, member, bench.metrics)
        first = asyncio.ensure_future(reset(T0, 4))
        await member.reading.wait()
        member.owned.append(T1)
        second = asyncio.ensure_future(reset(T1, 4))
        await run_ready_tasks()
        member.answer.set()
        async with asyncio.timeout(5):
            assert await asyncio.gather(first, second) == [None, None]
        assert (member.reads, member.stored) == (2, [])


async def test_a_confirmed_leader_is_fetched_from_after_a_doubtful_answer() -> None:
    """
    After "out of range" from a deposed broker, the fetcher uses the leader that ZooKeeper names, even if the brokers'
    metadata still names the deposed broker.
    """
    async with leader_bench() as bench:
        bench.deposed.append(T0, message_set(b"0", b"1"))
        bench.elected.append(T0, message_set(b"0", b"1", b"2", b"3", b"4"))
        member = NamingMember(bench.cluster, bench.elected)
        subscription = member.subscription
        subscription.subscribe("t")
        subscription.offsets.open({T0: StartPosition(4, 1, 1)})
        records = records_of(bench, subscription)
        bench.fetcher._reset = PositionReset(
            "earliest", ResetBrokers.of(bench.cluster), subscription, records, member, bench.metrics
        )
        bench.fetcher.assign({T0: 4})
        assert await bench.next_values() == [b"4"]
        assert (member.reads, member.stored, bench.deposed.count(FETCH)) == (1, [], 1)


async def test_the_range_of_another_broker_causes_no_reset() -> None:
    """
    If the confirmed leader fails once, and the lookup of the log's range falls back to the deposed broker, the reset
    raises an error instead of using that broker's range.
    """
    async with leader_bench() as bench:
        bench.deposed.append(T0, message_set(b"0", b"1"))
        bench.elected.append(T0, message_set(b"0", b"1", b"2", b"3"))
        bench.elected.fail_next(LIST_OFFSETS, T0, 6)
        member = NamingMember(bench.cluster, bench.elected)
        subscription = member.subscription
        subscription.offsets.open({T0: StartPosition(3, 1, 1)})
        records = records_of(bench, subscription)
        bench.fetcher.assign({T0: 3})
        reset = PositionReset("earliest", ResetBrokers.of(bench.cluster), subscription, records, member, bench.metrics)
        with pytest.raises(BrokerError, match="the leader changed"):
            await reset(T0, 3)
        assert member.stored == []


async def test_leaders_named_by_zookeeper_are_forgotten_with_the_claims() -> None:
    """
    When the claims are lost with their session, the leaders named by ZooKeeper are forgotten. Until the next session
    has read them, the client uses the leaders that the brokers name.
    """
    settings = ConsumerSettings(
        brokers=BrokerConfig(hosts=(HostPort("127.0.0.1", 1),)),
        fetching=FetchConfig(),
        group=GroupConfig(group="g"),
        coordination=ZooKeeperCoordination(ZooKeeperConfig(hosts="127.0.0.1:1")),
    )
    connected = ConnectedConsumer(settings, SubscriptionState())
    handler = connected.member._handler
    handler.leaders_changed({T0: ELECTED}, {ELECTED: HostPort("127.0.0.1", 1)})
    assert connected.reader.cluster.leader_of(T0) == ELECTED
    handler.lost([T0])
    assert connected.reader.cluster.leader_of(T0) is None
    connected.reader.fetcher.close()
    connected.reader.cluster.close()
