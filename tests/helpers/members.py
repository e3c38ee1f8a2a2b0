"""Members of a group for tests, which record their deliveries and the times in which they own partitions."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from kiel_groups.clients import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.model import Record, TopicPartition
from tests.helpers.closed_sessions import close_session
from tests.helpers.running_time import running_s
from tests.helpers.servers import LASTING_MS
from tests.helpers.waiting import eventually

__all__ = ["LASTING", "Delivery", "Group", "Member", "end_session", "group_of"]

#: Settings of members whose session is not to expire. They notice as soon as with the default that their znode is gone.
LASTING = {"session_timeout_ms": LASTING_MS, "heartbeat_interval_ms": 1_500}


class Delivery(NamedTuple):
    """A record delivered to an application, with its time on the monotonic clock and the fencing token of the claim."""

    at_s: float
    record: Record
    token: int | None


class Member:
    """A consumer in its own task. It records each delivery, and the times in which it owns each partition."""

    def __init__(self, cluster: Cluster, group: str, topics: Iterable[str], **settings: Any) -> None:
        self.records: list[Record] = []
        self.deliveries: list[Delivery] = []
        self.held: set[TopicPartition] = set()
        #: Partitions with the running times (:func:`running_s`) in which they became owned, and ceased to be.
        self.intervals: list[tuple[TopicPartition, float, float]] = []
        self.lost_partitions: list[TopicPartition] = []
        self.rebalances = 0
        self._since: dict[TopicPartition, float] = {}
        self._topics = list(topics)
        #: The processing time of each record, in seconds: the awaited time, and the time that blocks the event loop.
        self.pace_s = 0.0
        self.block_s = 0.0
        #: While this event is clear, the application keeps its current record in flight.
        self.go_on = asyncio.Event()
        self.go_on.set()
        place = {"brokers": cluster.brokers, **settings}
        if "zk_hosts" not in settings:
            place["zk_hosts"] = cluster.zk_hosts
        if place["zk_hosts"] is not None and "session_timeout_ms" not in settings:
            place = LASTING | place
        self.consumer = GroupedConsumer(group=group, listener=self, **place)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Member:
        await self.consumer.connect()
        await self.consumer.subscribe(self._topics)
        self._task = asyncio.get_running_loop().create_task(self._consume())
        return self

    async def _consume(self) -> None:
        async for record in self.consumer:
            self.records.append(record)
            token = self.consumer.fencing_token(record)
            self.deliveries.append(Delivery(time.monotonic(), record, token))
            if self.block_s:
                time.sleep(self.block_s)  # noqa: ASYNC251 -- an application that blocks the loop is what is tested
            if self.pace_s:
                await asyncio.sleep(self.pace_s)
            await self.go_on.wait()

    async def stop(self) -> None:
        await self.consumer.close()
        if self._task is not None:
            await self._task

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.rebalances += 1
        self.held |= set(partitions)
        self._since |= dict.fromkeys(partitions, running_s())

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._end(partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.lost_partitions += partitions
        self._end(partitions)

    def _end(self, partitions: Collection[TopicPartition]) -> None:
        now = running_s()
        for partition in partitions:
            self.held.discard(partition)
            if partition in self._since:
                self.intervals.append((partition, self._since.pop(partition), now))

    @property
    def values(self) -> list[bytes]:
        return [record.value for record in self.records]

    def partitions(self, topic: str) -> list[int]:
        return self.consumer.allocation.get(topic, [])

    def knows(self, topic: str) -> bool:
        """
        Return whether the listener has been notified of exactly the owned partitions. A notification comes shortly
        after a claim.
        """
        return sorted(number for held, number in self.held if held == topic) == self.partitions(topic)


def end_session(cluster: Cluster, member: Member) -> None:
    """End a member's session on the server."""
    session = member.consumer._lifecycle.connected.member._member_session.session  # type: ignore[union-attr]
    close_session(cluster.zk_hosts, session.client.client_id)


class Group:
    """The members of one group in this process."""

    def __init__(self, cluster: Cluster, name: str, topics: Iterable[str], **settings: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.topics = list(topics)
        self.members: list[Member] = []
        self._settings = settings

    async def join(self, **settings: Any) -> Member:
        member = Member(self.cluster, self.name, self.topics, **{**self._settings, **settings})
        self.members.append(member)
        await member.start()
        return member

    async def leave(self, member: Member) -> None:
        await member.stop()

    @property
    def open_members(self) -> list[Member]:
        return [member for member in self.members if member.consumer._lifecycle.closing is None]

    @property
    def values(self) -> list[bytes]:
        return [value for member in self.members for value in member.values]

    async def balanced(self, topic: str, partitions: int, timeout_s: float = 30.0) -> None:
        """Wait until the open members share the partitions evenly, and their listeners have been notified."""

        def fair() -> bool:
            if not all(member.knows(topic) for member in self.open_members):
                return False
            shares = [member.partitions(topic) for member in self.open_members]
            together = sorted(number for share in shares for number in share)
            sizes = [len(share) for share in shares]
            return together == list(range(partitions)) and max(sizes) - min(sizes) <= 1

        await eventually(fair, f"{len(self.open_members)} members share {topic}", timeout_s)

    async def delivered(self, values: Iterable[bytes], timeout_s: float = 30.0) -> Counter[bytes]:
        """Wait until each of ``values`` was delivered to some member, and return how often each value was delivered."""
        wanted = set(values)
        await eventually(lambda: wanted <= set(self.values), f"{len(wanted)} values are delivered", timeout_s)
        return Counter(self.values)

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for member in self.members for delivery in member.deliveries]

    def overlaps(self) -> list[tuple[TopicPartition, float]]:
        """
        Return partitions that two members owned at once, as their listeners were notified, and for how many seconds.
        """
        by_partition: dict[TopicPartition, list[tuple[float, float]]] = defaultdict(list)
        for member in self.members:
            now = running_s()
            for partition, since, until in member.intervals:
                by_partition[partition].append((since, until))
            for partition, since in member._since.items():
                by_partition[partition].append((since, now))
        found = []
        for partition, intervals in by_partition.items():
            ordered = sorted(intervals)
            for (_, until), (since, _) in itertools.pairwise(ordered):
                if since < until:
                    found.append((partition, until - since))
        return found


@asynccontextmanager
async def group_of(cluster: Cluster, name: str, topics: Iterable[str], **settings: Any):  # type: ignore[no-untyped-def]
    """Provide a group without members. At the end of the block, stop all members that have joined."""
    group = Group(cluster, name, topics, **settings)
    try:
        yield group
    finally:
        for member in group.open_members:
            # After a failed assertion, its record may be in flight still, and the close would wait for that.
            member.go_on.set()
        await asyncio.gather(*(member.stop() for member in group.open_members), return_exceptions=True)
