"""One group on one topic, put to a trial: nothing may be lost, and no partition may ever flow at two members."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from kazoo.client import KazooClient

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.member_program import Program
from tests.helpers.members import Delivery, Group, Member, group_of
from tests.helpers.waiting import eventually

__all__ = ["RECOVERY_S", "SESSION_TIMEOUT_MS", "Trial", "trial"]

#: How long a session lasts unless a trial says otherwise, in milliseconds; leases last half of it.
SESSION_TIMEOUT_MS = 3_000

#: Within what time a group has recovered from whatever was done to it, in seconds: a session, a plan, a busy machine.
RECOVERY_S = 20.0


class Trial:
    """
    A group, its topic, and somebody who looks at its znodes from outside.

    Args:
        cluster: Where the group lives.
        group: Its members.
        topic: Its only topic.
        partitions: How many that has.
        client: The onlooker.
    """

    def __init__(self, cluster: Cluster, group: Group, topic: str, partitions: int, client: KazooClient) -> None:
        self.cluster = cluster
        self.group = group
        self.topic = topic
        self.partitions = partitions
        self.client = client
        self.layout = GroupLayout(group.name)
        self.values: list[bytes] = []
        #: Members and candidates in processes of their own.
        self.programs: list[Program] = []

    async def produce(self, count: int = 40) -> list[bytes]:
        """Produce further values; returns them."""
        values = await produce(self.cluster, self.topic, count, first=len(self.values))
        self.values += values
        return values

    async def join(self, **settings: Any) -> Member:
        """Another member of this process."""
        return await self.group.join(**settings)

    def program(self, role: str, **told: Any) -> Program:
        """A ``member`` or ``candidate`` in a process of its own; see ``tests.helpers.member_program``."""
        program = Program(self.cluster, role, self.group.name, self.topic, SESSION_TIMEOUT_MS, **told)
        self.programs.append(program)
        return program

    async def balanced(self) -> None:
        """Wait until the living members share all partitions."""
        await self.group.balanced(self.topic, self.partitions, RECOVERY_S)

    async def has(self, member: Member, count: int, within_s: float = RECOVERY_S) -> None:
        """Wait until a member has so many partitions, and knows it."""

        def has() -> bool:
            return len(member.partitions(self.topic)) == count and member.knows(self.topic)

        await eventually(has, f"a member has {count} partitions", within_s)

    async def grow(self, partitions: int) -> None:
        """Give the topic more partitions, so many in all."""
        await self.cluster.grow_topic(self.topic, partitions)
        self.partitions = partitions

    async def pointer_is(self, condition: Callable[[GroupState], bool], what: str) -> GroupState:
        """Wait until the pointer is as wished, and return it."""
        await eventually(lambda: self.client.exists(self.layout.group_state), "there is a pointer", RECOVERY_S)
        await eventually(lambda: condition(self.group_state()), what, RECOVERY_S)
        return self.group_state()

    def group_state(self) -> GroupState:
        return GroupState.parse(self.client.get(self.layout.group_state)[0], self.layout.group_state)

    def assignments(self) -> dict[str, MemberAssignment]:
        paths = {slot: self.layout.assignment(slot) for slot in self.client.get_children(self.layout.group_state)}
        return {slot: MemberAssignment.parse(self.client.get(path)[0], path) for slot, path in paths.items()}

    def owners(self) -> dict[int, tuple[str, int]]:
        """Owner and czxid of every owned partition."""
        return owners(self.client, self.group.name, self.topic)

    def stored(self) -> dict[int, int]:
        """The committed offsets."""
        return stored_offsets(self.client, self.group.name, self.topic)

    def partition(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    async def nothing_is_lost(self) -> None:
        """Members of this process share everything, and all that ever came was handed out, as is what comes now."""
        await self.balanced()
        await self.produce(20)
        values = {value for program in self.programs for value in program.values}
        await self.group.delivered(set(self.values) - values, RECOVERY_S)

    def is_safe(self) -> None:
        """No record flowed under a claim that was not the newest; nothing is committed that nobody was given."""
        deliveries = [*self.group.deliveries, *(each for program in self.programs for each in program.deliveries)]
        assert stale(deliveries) == []
        given: dict[int, int] = {}
        for _, record, _ in deliveries:
            given[record.partition] = max(given.get(record.partition, 0), record.offset + 1)
        assert {number: offset for number, offset in self.stored().items() if offset > given.get(number, 0)} == {}


def stale(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Those under a claim of a partition after one under a later claim of it."""
    newest: dict[TopicPartition, int] = {}
    found = []
    for delivery in sorted(deliveries, key=lambda each: each.at_s):
        partition = delivery.record.topic_partition
        if delivery.token is None or delivery.token < newest.get(partition, 0):
            found.append(delivery)
        else:
            newest[partition] = delivery.token
    return found


@asynccontextmanager
async def trial(
    cluster: Cluster, unique: Callable[[str], str], partitions: int = 4, **settings: Any
) -> AsyncIterator[Trial]:
    """A fresh topic and a group without members; when all have left after a block without error, it is judged."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, partitions)
    told = {"session_timeout_ms": SESSION_TIMEOUT_MS, "auto_commit_interval_ms": 100, **settings}
    with zookeeper(cluster) as client:
        async with group_of(cluster, name, [topic], **told) as group:
            tried = Trial(cluster, group, topic, partitions, client)
            try:
                yield tried
            finally:
                for program in tried.programs:
                    program.close()
        tried.is_safe()
