"""
A group whose coordinator is cut off from its cluster, while one of its members still reaches it.

Heartbeats are not replicated: that coordinator answers them as before. A commit is: the coordinator cannot confirm it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from kiel_groups.clients import Producer
from kiel_groups.model import GenerationToken, OffsetAndMetadata, TopicPartition
from kiel_groups.wire.group_requests import FindCoordinatorRequest
from kiel_groups.wire.offsets import OffsetCommitRequestV2, OffsetFetchRequestV1
from tests.helpers.cluster_data import zookeeper
from tests.helpers.members import Group, Member, group_of
from tests.helpers.raw_requests import ask_at
from tests.helpers.waiting import eventually
from tests.proxies.cuttable_servers import ClusterOfCuttableBrokers

pytestmark = [pytest.mark.integration, pytest.mark.slow]

Unique = Callable[[str], str]

OVERRIDES = {
    # A leader of 0.9 that removes replicas from those in sync waits for ZooKeeper. Until then, it answers no commit.
    "replica.lag.time.max.ms": 60_000,
    "offsets.commit.timeout.ms": 1_000,
}
BROKERS = frozenset((0, 1, 2))
COUNT = 3
SETTINGS: Mapping[str, Any] = {
    "coordination": "brokers",
    "zk_hosts": None,
    "heartbeat_interval_ms": 500,
    # A leader that is cut off answers fetches, without new records. A member notices when it asks for leaders again.
    "metadata_max_age_ms": 1_000,
}


class CutOffGroup:
    """A group on a topic, and its coordinator, broker ``first``, which is going to be cut off."""

    def __init__(self, cluster: ClusterOfCuttableBrokers, group: Group, topic: str, first: int) -> None:
        self.cluster = cluster
        self.group = group
        self.topic = topic
        self.partitions = [TopicPartition(topic, number) for number in range(COUNT)]
        self.first = first
        self.others = [address for broker, address in enumerate(cluster.links.advertised) if broker != first]
        self._values = 0

    async def join(self, **settings: Any) -> Member:
        return await self.group.join(**{**SETTINGS, **settings})

    async def produce(self, amount: int = 30) -> set[bytes]:
        """Produce this many values by the brokers that are not cut off, and return them."""
        first, self._values = self._values, self._values + amount
        values = {b"%d" % number for number in range(first, self._values)}
        async with Producer(self.others) as producer:
            for value in values:
                await producer.produce(self.topic, value, key=value)
        return values

    async def cut(self) -> None:
        """Cut the coordinator off, and wait until the other brokers name the next one."""
        self.cluster.links.cut(self.cluster.kafka[self.first])
        await coordinator_of(self.cluster, self.group.name, BROKERS - {self.first})

    async def stored(self) -> dict[TopicPartition, int]:
        """Return the offsets that the coordinator has which the brokers that are not cut off name."""
        coordinator = (await ask_at(self.others[0], FindCoordinatorRequest(self.group.name))).broker.node_id
        if coordinator not in BROKERS:
            return {}
        request = OffsetFetchRequestV1(self.group.name, tuple(self.partitions))
        found = await ask_at(self.cluster.links.advertised[coordinator], request)
        return {partition: value.offset for partition, value in found.items() if value.offset >= 0}

    async def everything_stored(self) -> None:
        """Wait until the coordinator has the ends of all that was delivered; it may not have later offsets before."""

        async def is_stored() -> bool:
            stored, ends = await self.stored(), self.ends
            assert all(offset <= ends[partition] for partition, offset in stored.items())
            return stored == ends

        await eventually(is_stored, "what was delivered is stored", 30)

    @property
    def ends(self) -> Counter[TopicPartition]:
        """The offset after the last one that was delivered of each partition."""
        ends: Counter[TopicPartition] = Counter()
        for delivery in self.group.deliveries:
            record = delivery.record
            ends[record.topic_partition] = max(ends[record.topic_partition], record.offset + 1)
        return ends


async def coordinator_of(cluster: ClusterOfCuttableBrokers, group: str, among: Collection[int] = BROKERS) -> int:
    """Wait until these brokers name the same one of them as the coordinator of a group, and return it."""

    async def named() -> set[int] | None:
        asked = [cluster.links.advertised[broker] for broker in among]
        nodes = {(await ask_at(broker, FindCoordinatorRequest(group))).broker.node_id for broker in asked}
        return nodes if len(nodes) == 1 and nodes <= set(among) else None

    (coordinator,) = await eventually(named, "there is a coordinator", 60) or ()
    return coordinator


def controller_of(cluster: ClusterOfCuttableBrokers) -> int | None:
    """Return the broker that is the controller; None in KRaft mode, where it is no broker."""
    if not cluster.uses_zookeeper:
        return None
    with zookeeper(cluster) as client:
        return int(json.loads(client.get("/controller")[0])["brokerid"])


@pytest.fixture(scope="module")
def clusters() -> Iterator[Callable[[str], ClusterOfCuttableBrokers]]:
    """Provide a function that returns the brokers of a release, and starts them at the first use."""
    running: dict[str, ClusterOfCuttableBrokers] = {}
    with ExitStack() as stack:

        def cluster_of(version: str) -> ClusterOfCuttableBrokers:
            if version not in running:
                cluster = ClusterOfCuttableBrokers(3, kafka=version, broker_overrides=OVERRIDES)
                running[version] = stack.enter_context(cluster)
            return running[version]

        yield cluster_of


async def group_beside_the_controller(cluster: ClusterOfCuttableBrokers, unique: Unique) -> tuple[str, int]:
    """
    Return a name of a group, and its coordinator, which is not the controller.

    After a cut, the broker that was cut off leads no partition of the offsets topic, so most groups may have the
    controller as their coordinator.
    """
    controller = controller_of(cluster)
    for _ in range(100):
        name = unique("group")
        if (first := await coordinator_of(cluster, name)) != controller:
            return name, first
    raise AssertionError("the controller coordinates each of 100 groups")


@asynccontextmanager
async def cut_off_group(cluster: ClusterOfCuttableBrokers, unique: Unique) -> AsyncIterator[CutOffGroup]:
    """
    Provide a group whose coordinator is not the controller, and heal the cluster at the end.

    A new controller of 0.9 leaves brokers that it has never seen alive among the replicas in sync.
    """
    topic = unique("topic")
    await cluster.create_topic(topic, COUNT, replication=3)
    name, first = await group_beside_the_controller(cluster, unique)
    try:
        async with group_of(cluster, name, [topic]) as group:
            yield CutOffGroup(cluster, group, topic, first)
    finally:
        cluster.links.heal()


def _has(member: Member, values: set[bytes]) -> bool:
    return values <= set(member.values)


async def test_a_member_that_commits_nothing_keeps_a_coordinator_that_is_cut_off(
    clusters: Callable[[str], ClusterOfCuttableBrokers], coordinating_version: str, unique: Unique
) -> None:
    """
    The coordinator that is cut off answers the member's heartbeats, so both it and a member of the next coordinator
    deliver the same partitions. Neither loses a record, and no commit of the former one is confirmed. When the cut
    ends, the member loses its partitions, and joins again.
    """
    settings = {"session_timeout_ms": 6_000}
    async with cut_off_group(clusters(coordinating_version), unique) as tested:
        group, one = tested.group, await tested.join(autocommit=False, **settings)
        await group.delivered(await tested.produce())
        await one.consumer.commit()
        await tested.cut()
        await tested.everything_stored()

        two = await tested.join(brokers=tested.others, auto_commit_interval_ms=200, **settings)
        await eventually(lambda: two.held == set(tested.partitions), "the other member has all partitions", 30)
        later = await tested.produce()
        for member in (one, two):
            await eventually(partial(_has, member, later), "both members deliver", 30)
        assert one.held == set(tested.partitions)
        token = one.consumer.fencing_token(tested.partitions[0])
        assert isinstance(token, GenerationToken)
        beyond = dict.fromkeys(tested.partitions, OffsetAndMetadata(1_000, ""))
        commit = OffsetCommitRequestV2(group.name, token.generation, token.member_id, beyond)
        codes = await ask_at(tested.cluster.links.advertised[tested.first], commit)
        assert {code.name for code in codes.values()} == {"REQUEST_TIMED_OUT"}

        tested.cluster.links.heal()
        await eventually(lambda: sorted(one.lost_partitions) == tested.partitions, "the former member loses them", 30)
        await group.balanced(tested.topic, COUNT)
        await group.delivered(await tested.produce())
        await one.consumer.commit()
        await tested.everything_stored()


async def test_a_member_whose_commits_are_not_confirmed_finds_the_next_coordinator(
    clusters: Callable[[str], ClusterOfCuttableBrokers], coordinating_version: str, unique: Unique
) -> None:
    """
    The first commit that the cut-off coordinator cannot confirm makes the member ask another broker. The next
    coordinator knows the member, which keeps its partitions: a member that joins then shares them with it.
    """
    settings = {"session_timeout_ms": 20_000, "auto_commit_interval_ms": 200}
    async with cut_off_group(clusters(coordinating_version), unique) as tested:
        group, one = tested.group, await tested.join(**settings)
        await group.delivered(await tested.produce())
        # The partitions of different leaders may have been opened one after the other.
        assignments = one.rebalances
        await tested.cut()
        await group.delivered(await tested.produce())
        await tested.everything_stored()
        assert (one.held, one.rebalances) == (set(tested.partitions), assignments)

        await tested.join(brokers=tested.others, **settings)
        await group.balanced(tested.topic, COUNT)
        assert not one.lost_partitions
        assert not group.overlaps()
