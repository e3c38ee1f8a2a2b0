"""Leaders that were deposed and do not know it: whose word on leaders counts, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from kiel_groups.clients import BEGINNING, SingleConsumer
from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.position_reset import PositionReset
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.net.cluster_metadata import AGE, DOUBT, ClusterMetadata
from kiel_groups.clients.net.offset_lookup import list_offsets, log_range
from kiel_groups.config import BrokerConfig, FetchConfig, GroupConfig, HostPort, ResetPolicy, ZooKeeperConfig
from kiel_groups.coordination.member.partition_leaders import PartitionLeaders
from kiel_groups.errors import BrokerError, CoordinationError, SessionLostError
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import StartPosition, SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.encoder import encode_message_set
from tests.helpers.fake_broker import FETCH, LIST_OFFSETS, METADATA, FakeBroker

pytestmark = pytest.mark.unit

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))
ZOMBIE, ELECTED = 0, 1


def messages(*values: bytes) -> bytes:
    return encode_message_set([(None, value) for value in values])


class Bench(NamedTuple):
    """A fetcher that has found a zombie first, which leads everything in its own eyes; and who was elected since."""

    zombie: FakeBroker
    elected: FakeBroker
    cluster: ClusterMetadata
    fetcher: Fetcher
    metrics: Metrics

    async def next_values(self) -> list[bytes]:
        async with asyncio.timeout(5):
            while (batch := self.fetcher.poll()) is None:
                await self.fetcher.wait_for_batch()
            return [record.value for record in batch.records]

    def override_leaders(self, *partitions: TopicPartition) -> None:
        """As a member does that has read the state of partitions in ZooKeeper."""
        self.cluster.override_leaders(dict.fromkeys(partitions, ELECTED), {ELECTED: self.elected.address})


@asynccontextmanager
async def bench(zombie_knows_other: bool = True, **settings: int) -> AsyncIterator[Bench]:
    async def no_reset(partition: TopicPartition, position: int) -> int:
        raise AssertionError("no log ends before a position")

    async with FakeBroker({"t": 3}, ZOMBIE) as zombie, FakeBroker({"t": 3}, ELECTED) as elected:
        zombie.peers, elected.peers = [zombie, elected] if zombie_knows_other else [zombie], [elected]
        metrics = Metrics()
        cluster = ClusterMetadata(zombie.config(**settings), metrics)
        await cluster.refresh(["t"], "test")
        fetcher = Fetcher(cluster, FetchConfig(max_wait_ms=300), metrics, reset=no_reset)
        try:
            yield Bench(zombie, elected, cluster, fetcher, metrics)
        finally:
            fetcher.close()
            cluster.close()


@pytest.mark.parametrize("zombie_knows_other", [True, False])
async def test_a_believed_leader_is_followed_after_the_poll_in_flight(
    zombie_knows_other: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where no broker has told of it: its address is that of its registration. The correction is logged."""
    async with bench(zombie_knows_other) as b:
        b.elected.append(T0, messages(b"0"))
        b.fetcher.assign({T0: 0})
        await b.zombie.wait_for_requests(FETCH, 1)
        b.override_leaders(T0)
        assert await b.next_values() == [b"0"]
        assert b.zombie.count(FETCH) == 1, "the long poll that was under way"
        assert b.metrics.counter("leaders_corrected") == 1
        assert "another leader than the brokers for 1 partition, first t:0: broker 1" in caplog.text
        await b.cluster.refresh(["t"], "test")
        b.elected.append(T0, messages(b"1"))
        assert await b.next_values() == [b"1"], "what the zombie says again counts no more than before"


async def test_what_is_queued_at_a_zombie_moves_too() -> None:
    """Both lanes to it are busy: a partition that waits for one of them goes to the elected leader instead."""
    async with bench() as b:
        b.fetcher.assign({T0: 0})
        await b.zombie.wait_for_requests(FETCH, 1)
        b.fetcher.assign({T1: 0})
        await b.zombie.wait_for_requests(FETCH, 2)
        b.fetcher.assign({T2: 0})
        b.elected.append(T2, messages(b"2"))
        b.override_leaders(T0, T1, T2)
        assert await b.next_values() == [b"2"]
        assert b.zombie.count(FETCH) == 2


async def test_a_believed_leader_that_refuses_is_not_asked_again() -> None:
    """ZooKeeper's word is older than the refusal: the brokers' counts from then on, and nothing goes back and forth."""
    async with bench() as b:
        b.elected.leaders = {T0: ZOMBIE}
        b.override_leaders(T0)
        b.zombie.append(T0, messages(b"0"))
        b.fetcher.assign({T0: 0})
        assert await b.next_values() == [b"0"]
        await b.zombie.wait_for_requests(FETCH, 3)
        assert b.elected.count(FETCH) == 1
        assert b.metrics.counter("fetch_retries") == 1


async def test_a_believed_leader_that_is_gone_is_not_asked_again() -> None:
    """As with one that refuses."""
    async with bench() as b:
        await b.elected.stop()
        b.override_leaders(T0)
        b.zombie.append(T0, messages(b"0"))
        b.fetcher.assign({T0: 0})
        assert await b.next_values() == [b"0"]
        await b.zombie.wait_for_requests(FETCH, 3)
        assert b.metrics.counter("fetch_retries") == 1


async def test_offsets_are_asked_of_the_believed_leader_while_it_tells() -> None:
    """Where it refuses, the leader that brokers name is asked."""
    async with bench() as b:
        b.elected.logs[T0].end, b.zombie.logs[T0].end = 9, 4
        b.override_leaders(T0)
        assert await list_offsets(b.cluster, [T0], -1) == {T0: 9}
        b.elected.leaders = {T0: ZOMBIE}
        assert await list_offsets(b.cluster, [T0], -1) == {T0: 4}
        assert b.elected.count(LIST_OFFSETS) == 2


async def test_what_is_not_told_again_is_not_believed_any_more() -> None:
    """A partition without a registered leader in ZooKeeper goes by the brokers' word."""
    async with bench() as b:
        b.override_leaders(T0, T1)
        assert [b.cluster.leader_of(tp) for tp in (T0, T1, T2)] == [ELECTED, ELECTED, ZOMBIE]
        b.override_leaders(T1)
        assert [b.cluster.leader_of(tp) for tp in (T0, T1)] == [ZOMBIE, ELECTED]
        b.cluster.doubt([T1])
        assert b.cluster.leader_of(T1) == ZOMBIE


async def test_metadata_by_age_is_asked_of_another_broker() -> None:
    """By turns of all that live; one that others do not call alive is not asked again."""
    async with bench(metadata_max_age_ms=20) as b:
        assert b.cluster.leader_of(T0) == ZOMBIE
        for _ in range(4):
            await b.cluster.renew(lambda: ["t"])
            assert b.cluster.leader_of(T0) == ELECTED
        assert b.zombie.count(METADATA) == 1
        await b.cluster.refresh(["t"], "fetch")
        assert b.cluster.leader_of(T0) == ELECTED, "nor for another reason"


@pytest.mark.parametrize("reason", [AGE, DOUBT])
@pytest.mark.parametrize("first", [ZOMBIE, ELECTED])
async def test_a_bootstrap_name_of_a_deposed_leader_is_no_other_broker(reason: str, first: int) -> None:
    """No broker advertises it, so the client cannot tell which live broker has answered by that name."""
    async with FakeBroker({"t": 1}, ZOMBIE) as zombie, FakeBroker({"t": 1}, ELECTED) as elected:
        zombie.peers = [zombie, elected] if first == ZOMBIE else [elected, zombie]
        elected.peers = [elected]
        cluster = ClusterMetadata(replace(zombie.config(), hosts=(HostPort("localhost", zombie.port),)), Metrics())
        await cluster.refresh(["t"], "test")
        assert cluster.leader_of(T0) == ZOMBIE
        await cluster.refresh(["t"], reason)
        assert cluster.leader_of(T0) == ELECTED
        assert (zombie.count(METADATA), elected.count(METADATA)) == ((2, 1) if first == ZOMBIE else (1, 2))
        await cluster.refresh(["t"], reason)
        assert zombie.count(METADATA) + elected.count(METADATA) == 4, "once a broker is known, one request is enough"
        cluster.close()


async def test_metadata_by_age_goes_round() -> None:
    """Every broker is asked in its turn, so that none is asked forever."""
    async with FakeBroker({"t": 1}, 0) as one, FakeBroker({"t": 1}, 1) as two, FakeBroker({"t": 1}, 2) as three:
        brokers = [one, two, three]
        for broker in brokers:
            broker.peers = brokers
        cluster = ClusterMetadata(one.config(metadata_max_age_ms=1), Metrics())
        await cluster.refresh(["t"], "test")
        for _ in range(5):
            await cluster.renew(lambda: ["t"])
        assert [broker.count(METADATA) for broker in brokers] == [2, 2, 2]
        cluster.close()


async def test_a_single_consumer_leaves_a_zombie() -> None:
    """Within the age of its metadata, and the poll in flight."""
    async with FakeBroker({"t": 1}, ZOMBIE) as zombie, FakeBroker({"t": 1}, ELECTED) as elected:
        zombie.peers, elected.peers = [zombie, elected], [elected]
        elected.append(T0, messages(b"0"))
        quick = {"max_wait_time": 200, "metadata_max_age_ms": 300}
        async with SingleConsumer([str(zombie.address)], **quick) as consumer, asyncio.timeout(5):
            await consumer.subscribe("t", start=BEGINNING)
            assert (await anext(consumer)).value == b"0"


async def test_a_deposed_leader_with_a_shorter_log_does_not_cause_a_reset() -> None:
    """It answers "out of range" until it learns of its successor: a broker that was frozen does, for a moment."""
    async with FakeBroker({"t": 1}, ZOMBIE) as zombie, FakeBroker({"t": 1}, ELECTED) as elected:
        for broker in (zombie, elected):
            broker.peers = [zombie, elected]
            broker.append(T0, messages(b"0", b"1"))
        elected.leaders = {T0: ELECTED}
        elected.append(T0, messages(b"2", b"3"))
        async with SingleConsumer([str(zombie.address)], backoff_ms=2) as consumer, asyncio.timeout(5):
            await consumer.subscribe("t", start={T0: 3})
            assert (await anext(consumer)).offset == 3
            assert consumer.metrics.total("offset_resets") == 0
        assert zombie.count(FETCH) == 1


class Member:
    """Names a leader, as ZooKeeper does, and stores resets."""

    def __init__(self, cluster: ClusterMetadata, leader: FakeBroker) -> None:
        self._cluster, self._leader = cluster, leader
        self.looks = 0
        self.stored: list[PendingReset] = []

    async def confirm_leaders(self) -> None:
        self.looks += 1
        await asyncio.sleep(0)
        self._cluster.override_leaders(
            dict.fromkeys((T0, T1), self._leader.node_id), {self._leader.node_id: self._leader.address}
        )

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int:
        self.stored.append(reset)
        return reset.position


class SlowMember(Member):
    """Looks at the leaders of what it holds when the look begins; the answer comes when it may."""

    def __init__(self, cluster: ClusterMetadata, leader: FakeBroker) -> None:
        super().__init__(cluster, leader)
        self.held = [T0]
        self.looking, self.answer = asyncio.Event(), asyncio.Event()

    async def confirm_leaders(self) -> None:
        held = tuple(self.held)
        self.looks += 1
        self.looking.set()
        await self.answer.wait()
        self._cluster.override_leaders(
            dict.fromkeys(held, self._leader.node_id), {self._leader.node_id: self._leader.address}
        )


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_group_asks_the_leader_that_zookeeper_names_before_it_resets(policy: ResetPolicy) -> None:
    """Also where every broker that tells of metadata is deposed. Resets at one time share one look at ZooKeeper."""
    async with bench() as b:
        for partition in (T0, T1):
            b.zombie.append(partition, messages(b"0", b"1"))
            b.elected.append(partition, messages(b"0", b"1", b"2", b"3"))
        b.elected.append(T0, messages(b"4"))
        subscription, member = SubscriptionState(), Member(b.cluster, b.elected)
        subscription.assign_from_subscribed({tp: StartPosition(4, 1, 1) for tp in (T0, T1)})
        delivery = RecordDelivery(
            b.fetcher, subscription, ListenerCalls(None, b.metrics), cast(Any, member), None, b.metrics
        )
        b.fetcher.assign({T0: 4, T1: 4})
        reset = PositionReset(
            policy, b.cluster, partial(log_range, b.cluster), subscription, delivery, member, b.metrics
        )
        assert await asyncio.gather(reset(T0, 4), reset(T1, 4)) == [None, None]
        assert (member.looks, member.stored) == (1, [])


async def test_a_reset_does_not_join_a_look_that_began_before_it() -> None:
    """That look may have passed its partition by: the partition was opened since."""
    async with bench() as b:
        for partition in (T0, T1):
            b.zombie.append(partition, messages(b"0", b"1"))
            b.elected.append(partition, messages(b"0", b"1", b"2", b"3", b"4"))
        member = SlowMember(b.cluster, b.elected)
        subscription = SubscriptionState()
        subscription.assign_from_subscribed({tp: StartPosition(4, 1, 1) for tp in (T0, T1)})
        calls = ListenerCalls(None, b.metrics)
        delivery = RecordDelivery(b.fetcher, subscription, calls, cast(Any, member), None, b.metrics)
        b.fetcher.assign({T0: 4, T1: 4})
        reset = PositionReset(
            "earliest", b.cluster, partial(log_range, b.cluster), subscription, delivery, member, b.metrics
        )
        first = asyncio.ensure_future(reset(T0, 4))
        await member.looking.wait()
        member.held.append(T1)
        second = asyncio.ensure_future(reset(T1, 4))
        await asyncio.sleep(0)
        member.answer.set()
        async with asyncio.timeout(5):
            assert await asyncio.gather(first, second) == [None, None]
        assert (member.looks, member.stored) == (2, [])


async def test_a_confirmed_leader_is_fetched_from_after_a_doubtful_answer() -> None:
    """The broker that metadata comes from is deposed, too: only ZooKeeper's word leads away from it."""
    async with bench() as b:
        b.zombie.append(T0, messages(b"0", b"1"))
        b.elected.append(T0, messages(b"0", b"1", b"2", b"3", b"4"))
        subscription, member = SubscriptionState(), Member(b.cluster, b.elected)
        subscription.subscribe("t")
        subscription.assign_from_subscribed({T0: StartPosition(4, 1, 1)})
        calls = ListenerCalls(None, b.metrics)
        delivery = RecordDelivery(b.fetcher, subscription, calls, cast(Any, member), None, b.metrics)
        b.fetcher._reset = PositionReset(
            "earliest", b.cluster, partial(log_range, b.cluster), subscription, delivery, member, b.metrics
        )
        b.fetcher.assign({T0: 4})
        assert await b.next_values() == [b"4"]
        assert (member.looks, member.stored, b.zombie.count(FETCH)) == (1, [], 1)


async def test_another_brokers_range_does_not_stand_for_the_confirmed_leaders() -> None:
    """The confirmed leader fails once, and the look-up falls back to a deposed one: the reset is tried anew."""
    async with bench() as b:
        b.zombie.append(T0, messages(b"0", b"1"))
        b.elected.append(T0, messages(b"0", b"1", b"2", b"3"))
        b.elected.fail_next(LIST_OFFSETS, T0, 6)
        subscription, member = SubscriptionState(), Member(b.cluster, b.elected)
        subscription.assign_from_subscribed({T0: StartPosition(3, 1, 1)})
        calls = ListenerCalls(None, b.metrics)
        delivery = RecordDelivery(b.fetcher, subscription, calls, cast(Any, member), None, b.metrics)
        b.fetcher.assign({T0: 3})
        reset = PositionReset(
            "earliest", b.cluster, partial(log_range, b.cluster), subscription, delivery, member, b.metrics
        )
        with pytest.raises(BrokerError, match="the leader changed"):
            await reset(T0, 3)
        assert member.stored == []


async def test_the_leaders_that_zookeeper_named_are_forgotten_with_the_claims() -> None:
    """The session that read them is over: until the next one has looked, the brokers' word counts."""
    settings = ConsumerSettings(
        brokers=BrokerConfig(hosts=(HostPort("127.0.0.1", 1),)),
        fetching=FetchConfig(),
        group=GroupConfig(group="g"),
        zookeeper=ZooKeeperConfig(hosts="127.0.0.1:1"),
    )
    consuming = ConnectedConsumer(settings, SubscriptionState())
    consuming.leaders({T0: ELECTED}, {ELECTED: HostPort("127.0.0.1", 1)})
    assert consuming._cluster.leader_of(T0) == ELECTED
    consuming.lost([T0])
    assert consuming._cluster.leader_of(T0) is None
    consuming.fetcher.close()
    consuming._cluster.close()


class Handler:
    """Notes what it is told of leaders."""

    def __init__(self) -> None:
        self.told: list[tuple[dict[TopicPartition, int], dict[int, HostPort]]] = []

    def leaders(self, leaders: dict[TopicPartition, int], brokers: dict[int, HostPort]) -> None:
        self.told.append((dict(leaders), dict(brokers)))


class Tree:
    """The znodes of some topics and brokers, and the order in which they were read."""

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.nodes = nodes
        self.steps: list[str] = []

    async def prove(self) -> None:
        self.steps.append("proof")

    async def children(self, path: str) -> list[str]:
        self.steps.append("children")
        return [name.removeprefix(f"{path}/") for name in self.nodes if name.startswith(path)]

    async def get_many(self, paths: Sequence[str]) -> list[Any]:
        self.steps.append(f"{len(paths)} reads")
        return [SimpleNamespace(data=self.nodes[path]) if path in self.nodes else None for path in paths]


async def test_leaders_that_are_not_registered_are_not_told() -> None:
    """Dead ones, −1, garbage and partitions without a state are left to the brokers; all is read after one proof."""
    states = [b'{"leader":1,"leader_epoch":4,"isr":[1]}', b'{"leader":7}', b'{"leader":-1}', b"garbage"]
    tree = Tree(
        {
            **{f"/brokers/topics/t/partitions/{number}/state": data for number, data in enumerate(states)},
            "/brokers/ids/1": b'{"host":"one","port":9092}',
            "/brokers/ids/2": b"garbage",
        }
    )
    handler, metrics = Handler(), Metrics()
    look: Any = PartitionLeaders
    leaders = look(tree, tree, handler, metrics)
    await leaders.look([TopicPartition("t", number) for number in range(5)])
    assert handler.told == [({T0: 1}, {1: HostPort("one", 9092)})]
    assert tree.steps == ["proof", "children", "2 reads", "5 reads"]
    assert metrics.counter("znodes_unreadable") == 1
    await leaders.look([])
    assert handler.told[1:] == [({}, {})], "what is not held is believed of nobody"
    assert len(tree.steps) == 4, "and nothing is read for it"


async def test_leaders_that_an_acl_hides_are_left_to_the_brokers(caplog: pytest.LogCaptureFixture) -> None:
    """The member goes on without them, and says so once; what may pass is raised."""
    errors: list[CoordinationError] = [CoordinationError("NoAuth"), CoordinationError("NoAuth")]

    class Hidden(Tree):
        async def get_many(self, paths: Sequence[str]) -> list[Any]:
            raise errors.pop(0)

    tree, handler, metrics = Hidden({"/brokers/ids/1": b""}), Handler(), Metrics()
    look: Any = PartitionLeaders
    leaders = look(tree, tree, handler, metrics)
    for _ in range(2):
        await leaders.look([T0])
    assert handler.told == [({}, {}), ({}, {})]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert metrics.counter("leaders_unreadable") == 2
    errors.append(SessionLostError("over"))
    with pytest.raises(SessionLostError):
        await leaders.look([T0])
