"""The member of a consumer in a broker-coordinated group, with a scripted coordinator, consumer and cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from kiel_groups.allocators.assignors import AssignorChoice, assignors_of
from kiel_groups.errors import KielGroupsError, NoBrokersError, NoOffsetsError
from kiel_groups.group.seen_topics import LogSight, SeenTopics
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.listeners import Stall
from kiel_groups.members.brokers.consumer_member import ConsumerMember
from kiel_groups.members.partition_handler import Gate, LogOffsets, Work
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.consumer_protocol import ConsumerAssignment
from tests.helpers.scripted_coordinator import QuietRuntime, ScriptedTransport, scripted_context
from tests.helpers.waiting import eventually, run_ready_tasks

__all__ = ["ConsumerBench", "P0", "P1", "ScriptedHandler", "ScriptedTopics"]

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class ScriptedHandler:
    """A consumer that adds the calls of its member to a trace. The log of each partition has the offsets 100 to 200."""

    def __init__(self, trace: list[str]) -> None:
        self.trace = trace
        self.gates: list[Gate] = []
        #: Partitions whose drain waits until the event is set.
        self.busy: dict[TopicPartition, asyncio.Event] = {}
        self.look_up_errors: dict[TopicPartition, KielGroupsError] = {}
        self.unknown: list[NoOffsetsError] = []
        self.sights: dict[TopicPartition, LogSight] = {}
        self.work: list[Work] = []

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        found = {p: 100 if policy == "earliest" else 200 for p in partitions if p not in self.look_up_errors}
        return LogOffsets(found, {p: error for p, error in self.look_up_errors.items() if p in partitions})

    async def look_at_logs(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogSight]:
        self.trace.append(f"look at {_named(positions)}")
        return {partition: sight for partition, sight in self.sights.items() if partition in positions}

    def gate_changed(self, gate: Gate) -> None:
        self.gates.append(gate)

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        async def fetch() -> None:
            self.trace.append(f"assigned {_named(partitions)}")

        return fetch()

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(partition for partition in partitions if partition in self.busy)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            if partition in self.busy:
                await self.busy[partition].wait()
        self.trace.append(f"drained {_named(partitions)}")

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        self.trace.append(f"continue {partition} at {offset}")

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.trace.append(f"lost {_named(partitions)}")

    def start_unknown(self, topic: str, error: NoOffsetsError) -> None:
        self.unknown.append(error)

    def in_progress(self) -> Collection[Work]:
        return self.work

    def stalled(self, stall: Stall) -> None:
        self.trace.append("stalled")


def _named(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


class ScriptedTopics:
    """The topics of a cluster, with the number of their partitions."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.known = dict(counts)
        self.failure: KielGroupsError | asyncio.Event | None = None
        self.reasons: list[str] = []
        self.seen = SeenTopics()
        self.asks_ids = False

    async def refresh(self, topics: Collection[str], reason: str) -> None:
        self.reasons.append(reason)
        if isinstance(self.failure, asyncio.Event):
            await self.failure.wait()
        elif self.failure is not None:
            raise self.failure
        self.known = dict(self.counts)

    async def all_topics(self) -> frozenset[str]:
        if self.failure is not None:
            raise NoBrokersError()
        return frozenset(self.counts)

    def known_partitions(self, topic: str) -> tuple[int, ...] | None:
        return tuple(range(self.known[topic])) if self.known.get(topic) else None


class ConsumerBench:
    """A consumer of topic t with two partitions, the only member of its group."""

    def __init__(
        self,
        *topics: str,
        group: Mapping[str, Any] | None = None,
        assignor: AssignorChoice = "range",
        rebalance_timeout: bool = True,
        **timing: int,
    ) -> None:
        self.trace: list[str] = []
        self.transport = ScriptedTransport(self.trace)
        self.transport.assignment = None
        self.runtime = QuietRuntime()
        self.context = scripted_context(
            self.transport, self.runtime, group=group or {}, rebalance_timeout=rebalance_timeout, **timing
        )
        self.metrics = self.context.metrics
        self.handler = ScriptedHandler(self.trace)
        self.topics = ScriptedTopics(t=2)
        self.subscription = SubscriptionState(self.context.group)
        self.subscription.subscribe(topics or ["t"])
        self.tracker = self.subscription.offsets
        self.failures: list[KielGroupsError] = []
        self.member = ConsumerMember(
            self.context,
            self.handler,  # type: ignore[arg-type]
            self.subscription,
            self.topics,
            assignors_of(assignor),
            self.failures.append,
        )

    def committed(self, **offsets: int) -> None:
        """Have the coordinator know offsets of partitions of topic t: ``p0=7``."""
        self.transport.offsets |= {
            TopicPartition("t", int(name[1:])): OffsetAndMetadata(offset, "") for name, offset in offsets.items()
        }

    def assign(self, *partitions: TopicPartition) -> None:
        """Have every sync bring these partitions, whatever the leader assigns."""
        by_topic: dict[str, tuple[int, ...]] = {}
        for topic, number in partitions:
            by_topic[topic] = (*by_topic.get(topic, ()), number)
        self.transport.assignment = ConsumerAssignment(by_topic).encode()

    async def joined(self) -> ConsumerBench:
        """Have the member join and open its partitions, and forget the trace of that."""
        await self.member.start()
        await eventually(lambda: self.member.settled, f"all partitions are open: {self.trace}", 5)
        await run_ready_tasks()
        self.trace.clear()
        return self

    def finish(self, partition: TopicPartition, offset: int) -> None:
        """Have the application finish the records of a partition before an offset."""
        state = self.tracker.of(partition)
        assert state is not None
        state.position = state.finished = offset

    def stored(self) -> dict[TopicPartition, int]:
        """Return the offsets that the coordinator has."""
        return {partition: each.offset for partition, each in self.transport.offsets.items()}

    async def traced(self, what: str) -> None:
        """Wait until the trace has this entry."""
        await eventually(lambda: what in self.trace, f"{what} in {self.trace}", 5)
