"""A group on one topic, with checks: no value is lost, and no record is delivered under an outdated claim."""

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
from tests.helpers.servers import LASTING_MS
from tests.helpers.waiting import eventually

__all__ = ["RECOVERY_S", "SESSION_TIMEOUT_MS", "CheckedGroup", "checked_group"]

#: The session timeout, in milliseconds, of members whose session is to expire: processes, and those that are cut off.
SESSION_TIMEOUT_MS = 3_000

#: The time limit for a group to recover from a failure, in seconds: a session timeout and a plan, on a busy machine.
RECOVERY_S = 20.0


class CheckedGroup:
    """
    A group, its topic, and a client that reads its znodes from outside.

    Args:
        cluster: The cluster of the group.
        group: The members in this process.
        topic: The group's only topic.
        partitions: The number of partitions of the topic.
        client: The client that reads the znodes.
    """

    def __init__(self, cluster: Cluster, group: Group, topic: str, partitions: int, client: KazooClient) -> None:
        self.cluster = cluster
        self.group = group
        self.topic = topic
        self.partitions = partitions
        self.client = client
        self.layout = GroupLayout(group.name)
        self.values: list[bytes] = []
        #: Members and candidates in separate processes.
        self.programs: list[Program] = []

    async def produce(self, count: int = 40) -> list[bytes]:
        """Produce ``count`` further values, and return them."""
        values = await produce(self.cluster, self.topic, count, first=len(self.values))
        self.values += values
        return values

    async def join(self, **settings: Any) -> Member:
        """Start another member in this process."""
        return await self.group.join(**settings)

    def program(self, role: str, **options: Any) -> Program:
        """Start a ``member`` or a ``candidate`` in a separate process; see ``tests.helpers.member_program``."""
        # A test ends the session of a candidate by ``end_session``.
        timeout_ms = SESSION_TIMEOUT_MS if role == "member" else LASTING_MS
        program = Program(self.cluster, role, self.group.name, self.topic, timeout_ms, **options)
        self.programs.append(program)
        return program

    async def balanced(self) -> None:
        """Wait until the open members of this process share all partitions evenly."""
        await self.group.balanced(self.topic, self.partitions, RECOVERY_S)

    async def wait_for_partitions(self, member: Member, count: int, within_s: float = RECOVERY_S) -> None:
        """Wait until a member owns ``count`` partitions, and its listener has been notified of them."""

        def owns() -> bool:
            return len(member.partitions(self.topic)) == count and member.knows(self.topic)

        await eventually(owns, f"a member owns {count} partitions", within_s)

    async def wait_for_group_state(self, condition: Callable[[GroupState], bool], what: str) -> GroupState:
        """Wait until the group state meets the condition, and return it."""
        await eventually(lambda: self.client.exists(self.layout.group_state), "there is a group state", RECOVERY_S)
        await eventually(lambda: condition(self.group_state()), what, RECOVERY_S)
        return self.group_state()

    async def grow_topic(self, partitions: int) -> None:
        """Increase the number of the topic's partitions to ``partitions``."""
        await self.cluster.grow_topic(self.topic, partitions)
        self.partitions = partitions

    def group_state(self) -> GroupState:
        return GroupState.parse(self.client.get(self.layout.group_state)[0], self.layout.group_state)

    def assignments(self) -> dict[str, MemberAssignment]:
        """Return the member assignments by slot."""
        paths = {slot: self.layout.assignment(slot) for slot in self.client.get_children(self.layout.group_state)}
        return {slot: MemberAssignment.parse(self.client.get(path)[0], path) for slot, path in paths.items()}

    def owners(self) -> dict[int, tuple[str, int]]:
        """Return the owner and the czxid of every owner znode, by partition."""
        return owners(self.client, self.group.name, self.topic)

    def committed_offsets(self) -> dict[int, int]:
        return stored_offsets(self.client, self.group.name, self.topic)

    def partition(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    async def check_nothing_is_lost(self) -> None:
        """Wait until the group is balanced, produce 20 more values, and wait until every value is delivered."""
        await self.balanced()
        await self.produce(20)
        values = {value for program in self.programs for value in program.values}
        await self.group.delivered(set(self.values) - values, RECOVERY_S)

    def check_claims_and_commits(self) -> None:
        """
        Check that each delivery was under the newest claim, and that no committed offset is beyond the delivered
        records.
        """
        deliveries = [*self.group.deliveries, *(each for program in self.programs for each in program.deliveries)]
        assert stale(deliveries) == []
        delivered: dict[int, int] = {}
        for _, record, _ in deliveries:
            delivered[record.partition] = max(delivered.get(record.partition, 0), record.offset + 1)
        committed = self.committed_offsets()
        assert {number: offset for number, offset in committed.items() if offset > delivered.get(number, 0)} == {}


def stale(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Return the deliveries without a token, or after a delivery of the same partition under a newer claim."""
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
async def checked_group(
    cluster: Cluster, unique: Callable[[str], str], partitions: int = 4, **settings: Any
) -> AsyncIterator[CheckedGroup]:
    """Provide a group without members on a new topic. If the block succeeds, check claims and commits at the end."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, partitions)
    used = {"auto_commit_interval_ms": 100, **settings}
    with zookeeper(cluster) as client:
        async with group_of(cluster, name, [topic], **used) as group:
            checked = CheckedGroup(cluster, group, topic, partitions, client)
            try:
                yield checked
            finally:
                for program in checked.programs:
                    program.close()
        checked.check_claims_and_commits()
