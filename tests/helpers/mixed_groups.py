"""Groups that brokers coordinate, with members of several clients in processes of their own, checked from outside."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from benchmarks.member_commands import (
    BrokerGroup,
    MemberSettings,
    java_command,
    kafka_python_command,
    kiel_command,
)
from benchmarks.members.event_lines import MemberEvent
from kiel_groups.clients import Producer
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.members.brokers.transport import HeartbeatConnection
from kiel_groups.wire.consumer_protocol import ConsumerAssignment
from kiel_groups.wire.group_requests import DescribedGroup, DescribeGroupsRequest
from tests.helpers.commands import Running
from tests.helpers.waiting import eventually, within

__all__ = ["CLIENTS", "MemberProcess", "MixedGroup", "Place"]

CLIENTS: dict[str, Callable[[BrokerGroup, int, MemberSettings], list[str]]] = {
    "ours": kiel_command,
    "java": java_command,
    "kafka-python": kafka_python_command,
}

#: The shortest session that brokers accept by default, and a heartbeat that notices rebalances soon.
_SESSION_MS, _HEARTBEAT_MS = 6_000, 200

#: Time for a rebalance that starts with the end of a session, on a busy computer.
_SETTLED_S = 60.0


class Place(NamedTuple):
    """Where a record is: its partition as ``topic:number``, and its offset."""

    partition: str
    offset: int


class MemberProcess(Running):
    """A process with one member of a client; see ``benchmarks.members.event_lines`` for its output."""

    def __init__(self, client: str, command: Sequence[str]) -> None:
        super().__init__(command[1:], program=command[0], typed=True)
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.client = client
        self.is_over = False

    @property
    def events(self) -> list[MemberEvent]:
        return [MemberEvent.parse(line) for line in list(self.lines)]

    @property
    def owned(self) -> frozenset[str]:
        """The partitions that the member delivers at the moment."""
        owned: frozenset[str] = frozenset()
        for event in self.events:
            if event.kind == "assigned":
                owned |= event.partitions
            elif event.kind in ("revoked", "lost"):
                owned -= event.partitions
        return owned

    @property
    def assignments(self) -> int:
        """How many assignments the member has had."""
        return sum(event.kind == "assigned" for event in self.events)

    @property
    def delivered(self) -> list[Place]:
        return [Place(event.words[0], int(event.words[1])) for event in self.events if event.kind == "record"]

    @property
    def failure(self) -> str:
        """The error with which the member has ended, or nothing."""
        return " ".join(word for event in self.events if event.kind == "failed" for word in event.words)

    async def leave(self) -> None:
        """Have the member leave, and wait until its process has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await asyncio.to_thread(self.wait) == 0, self.errors
        self.is_over = True

    async def kill(self) -> None:
        """Kill the process with -9."""
        assert await asyncio.to_thread(self.end, signal.SIGKILL) == -signal.SIGKILL
        self.is_over = True

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self.wait()


class MixedGroup:
    """A group, the records of its topic, and its members. The end of the block kills the members."""

    def __init__(self, cluster: Cluster, release: str, name: str, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self.topic = topic
        self._partitions = frozenset(f"{topic}:{number}" for number in range(partitions))
        self._where = BrokerGroup(cluster.brokers[0], name, (topic,), release)
        self._describing = HeartbeatConnection(BrokerConfig(hosts=(), client_id="outside"))
        self.members: list[MemberProcess] = []
        self.produced: list[Place] = []

    def start(self, client: str, *assignors: str) -> MemberProcess:
        """Start a member of a client that offers these assignors, the preferred one first."""
        settings = MemberSettings(assignors, _SESSION_MS, _HEARTBEAT_MS)
        member = MemberProcess(client, CLIENTS[client](self._where, 1, settings))
        self.members.append(member)
        return member

    # ------------------------------------------------------------------ from outside

    def described(self) -> DescribedGroup:
        """Return the group as its coordinator describes it."""
        (address,) = parse_hosts(self._where.broker, 9092, "broker")
        (found,) = self._describing.request(address, DescribeGroupsRequest((self._where.name,)), 5.0)
        return found

    async def settled(self) -> DescribedGroup:
        """
        Wait until the members that run own all partitions, each partition once.

        The coordinator's description has to say so, and the members have to agree with it.
        """
        found = await within(self._settled, _SETTLED_S)
        seen = [(member.client, list(member.lines), member.errors) for member in self.members if not member.is_over]
        assert found is not None, f"not within {_SETTLED_S:g} s: the members share {self.topic}: {seen}"
        return found

    def _settled(self) -> DescribedGroup | None:
        running = [member for member in self.members if not member.is_over]
        for member in running:
            assert member.process.poll() is None, (member.client, member.failure, member.errors)
        if not _is_shared([member.owned for member in running], self._partitions):
            return None
        found = self.described()
        if found.state != "Stable" or len(found.members) != len(running):
            return None
        shares = [_partitions(member.assignment) for member in found.members]
        return found if _is_shared(shares, self._partitions) else None

    # ------------------------------------------------------------------ records

    @asynccontextmanager
    async def producing(self) -> AsyncIterator[None]:
        """Produce a record every few milliseconds during the block, to one partition after the other."""
        async with Producer(self._cluster.brokers, ack_timeout=30_000) as producer:
            task = asyncio.create_task(self._produce(producer))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _produce(self, producer: Producer) -> None:
        while True:
            await self.produce(producer)
            await asyncio.sleep(0.02)

    async def produce(self, producer: Producer) -> None:
        """Produce a record to the next partition."""
        number = len(self.produced) % len(self._partitions)
        # A cancellation must not lose the place of a record that is on its way.
        sent = asyncio.ensure_future(producer.produce(self.topic, b"%d" % len(self.produced), partition=number))
        sent.add_done_callback(lambda done: self.produced.append(Place(f"{self.topic}:{number}", done.result().offset)))
        await asyncio.shield(sent)

    async def delivered(self) -> Counter[Place]:
        """Wait until every record so far was delivered to some member; return how often each one was."""
        wanted = set(self.produced)
        await eventually(lambda: wanted <= self.deliveries.keys(), f"{len(wanted)} records are delivered")
        return self.deliveries

    @property
    def deliveries(self) -> Counter[Place]:
        return Counter(place for member in self.members for place in member.delivered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._describing.close()
        for member in self.members:
            member.__exit__(*exc_info)


def _is_shared(shares: Sequence[frozenset[str]], partitions: frozenset[str]) -> bool:
    """Return whether each partition is in one share, and no other partition in any."""
    counts = Counter(partition for share in shares for partition in share)
    return counts.keys() == partitions and set(counts.values()) == {1}


def _partitions(assignment: bytes) -> frozenset[str]:
    if not assignment:
        return frozenset()
    found = ConsumerAssignment.parse(assignment, "an assignment from outside").partitions
    return frozenset(f"{topic}:{number}" for topic, numbers in found.items() for number in numbers)
