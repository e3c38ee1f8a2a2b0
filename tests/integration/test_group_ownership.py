"""Owner znodes and the group state, observed in ZooKeeper while members join and leave."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import owners, produce, zookeeper
from tests.helpers.members import Group, group_of
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.integration

PARTITIONS = 16


class Observer:
    """Samples the owner znodes of one topic on a thread, as fast as ZooKeeper answers."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self._cluster, self._group, self._topic = cluster, group, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        #: By partition: the claims in the order of their first samples, as the sampled owners by czxid.
        self.claims: dict[int, dict[int, set[str]]] = defaultdict(dict)
        self.samples = 0

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        with zookeeper(self._cluster) as client:
            while not self._stop.is_set():
                for partition, (owner, czxid) in owners(client, self._group, self._topic).items():
                    self.claims[partition].setdefault(czxid, set()).add(owner)
                self.samples += 1

    def each_claim_has_one_owner(self) -> bool:
        """Return whether each czxid has one owner, and later claims have larger czxids."""
        return all(
            list(claims) == sorted(claims) and all(len(seen) == 1 for seen in claims.values())
            for claims in self.claims.values()
        )


def shares(group: Group, topic: str) -> dict[str, set[int]]:
    """Return the partitions of each open member, by member id."""
    return {str(member.consumer.member_id): set(member.partitions(topic)) for member in group.open_members}


async def test_ownership_while_members_join_and_leave(cluster: Cluster, unique: Callable[[str], str]) -> None:
    """A partition never has two owners. In every rebalance, partitions that do not move keep their owner znodes."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    values = await produce(cluster, topic, 320)
    async with group_of(cluster, name, [topic]) as group:
        with Observer(cluster, name, topic) as observer, zookeeper(cluster) as client:
            await group.join()
            await group.balanced(topic, PARTITIONS)
            for change in ("join", "join", "leave", "join", "leave"):
                before, shares_before = owners(client, name, topic), shares(group, topic)
                if change == "join":
                    await group.join()
                else:
                    await group.leave(group.open_members[0])
                await group.balanced(topic, PARTITIONS)
                after = owners(client, name, topic)
                unmoved = {
                    partition
                    for member, partitions in shares(group, topic).items()
                    for partition in partitions & shares_before.get(member, set())
                }
                assert {p: after[p] for p in unmoved} == {p: before[p] for p in unmoved}
            await eventually(lambda: observer.samples > 50, "the observer has seen enough")
        assert observer.each_claim_has_one_owner()
        assert set(observer.claims) == set(range(PARTITIONS))
        assert group.overlaps() == []
        await group.delivered(values)


async def test_generations_only_grow(cluster: Cluster, unique: Callable[[str], str]) -> None:
    """Each change publishes one plan, with a larger generation and the cause. An unchanged plan is not published."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    layout = GroupLayout(name)

    async with group_of(cluster, name, [topic]) as group:
        with zookeeper(cluster) as client:

            def group_state() -> GroupState:
                return GroupState.parse(client.get(layout.group_state)[0], layout.group_state)

            await group.join()
            await group.balanced(topic, 4)
            await eventually(lambda: group_state().state == "done", "the first plan is published")
            seen = [group_state()]
            for _ in range(3):
                member = await group.join()
                await group.balanced(topic, 4)
                await eventually(lambda: group_state().state == "done", "the plan is published")
                # A plan may come between the registration of the member and its subscription.
                assert re.search(rf"(join|subscription) of {member.consumer.member_id}", group_state().cause)
                seen.append(group_state())
            generations = [each.generation for each in seen]
            assert generations == sorted(set(generations))
            assert {each.leader for each in seen} == {group.members[0].consumer.member_id}
            assert [each.members for each in seen] == [1, 2, 3, 4]
            version = client.exists(layout.group_state).version
            group.members[0].consumer._lifecycle.connected.member._member_session.role.candidacy._leader_driver.changed(
                "test"
            )  # type: ignore[union-attr]
            plans = group.members[0].consumer.metrics.latency("allocator").count
            await eventually(
                lambda: group.members[0].consumer.metrics.latency("allocator").count > plans, "it has planned again"
            )
            await throughout(
                lambda: client.exists(layout.group_state).version == version, "an unchanged plan is not published", 0.1
            )
