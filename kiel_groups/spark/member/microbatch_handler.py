"""
What a member that reads in micro-batches does with its partitions; on the member's loop.

A partition that is to go to another member waits for the batch that reads it, and goes as soon as that is known to be
done; no batch is planned with it any more. Where no batch reads it, it goes at once. What a batch read of a partition
that was lost meanwhile is not committed: its present owner reads it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import policy_offsets
from kiel_groups.clients.net.offset_requests import commit_offsets, fetch_offsets
from kiel_groups.config import HostPort
from kiel_groups.coordination.partition_handler import LogOffsets, Work
from kiel_groups.errors import NoOffsetsError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.listeners import Stall
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange, Span, new_token

__all__ = ["BatchHandler"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Interval:
    """One stretch of reading a partition, from ``begin`` on; ``planned``: a batch has read of it."""

    begin: int
    token: int
    planned: bool = False


class _Reading(NamedTuple):
    """What the running batch reads of a partition: from ``start`` on, up to where ``span`` says."""

    start: int
    span: Span


class BatchHandler:
    """
    The PartitionHandler of a member that reads in batches, of which one runs at a time.

    Args:
        group: The group's name.
        cluster: The brokers, to ask where logs begin and end.
        subscription: The member's; ``finished`` stands where its last batch has ended that is done.
        metrics: Counts ``batches_not_committed``.
    """

    def __init__(self, group: str, cluster: ClusterMetadata, subscription: SubscriptionState, metrics: Metrics) -> None:
        self._group = group
        self._cluster = cluster
        self._subscription = subscription
        self._metrics = metrics
        self._intervals: dict[TopicPartition, _Interval] = {}
        self._stopped: set[TopicPartition] = set()
        self._batch: dict[TopicPartition, _Reading] = {}
        self._let_go = asyncio.Event()
        self._refused: dict[str, NoOffsetsError] = {}

    # ------------------------------------------------------------------ the query's side

    def finish(self, reached: Mapping[TopicPartition, Span] | None) -> list[OffsetRange]:
        """
        The batch is over.

        Args:
            reached: Where the query stands, by which one sees whether the batch was run; None where it was.

        Returns:
            What it read of partitions that were lost, or moved, meanwhile: that is not to be committed.
        """
        unfenced = []
        for partition, reading in self._batch.items():
            if reached is not None and not _is_same(reached.get(partition), reading.span):
                continue
            interval, state = self._intervals.get(partition), self._subscription.state(partition)
            if interval is not None and state is not None and interval.token == reading.span.token:
                state.finished = state.position = max(state.finished, reading.span.to)
            elif reading.span.to > reading.start:
                unfenced.append(OffsetRange(partition, reading.start, reading.span.to))
        self.put_down()
        return unfenced

    def put_down(self) -> None:
        """Nobody waits for the batch any more, done or not."""
        self._batch = {}
        self._let_go.set()

    def resume(self, wanted: Mapping[TopicPartition, Span]) -> bool:
        """
        Have intervals begin where ``standing`` said that they may, now that their logs are known to reach there.

        Returns:
            Whether one does that began elsewhere.
        """
        found = False
        for partition, span in wanted.items():
            interval, state = self._intervals.get(partition), self._subscription.state(partition)
            if interval is None or state is None or interval.planned or interval.token != span.token:
                continue
            if span.begin > state.finished:
                interval.begin = state.finished = state.position = span.begin
                found = True
        return found

    def restart(self, firsts: Mapping[TopicPartition, int]) -> None:
        """The logs of these are other ones now: another stretch of reading begins there, and is committed as such."""
        for partition, first in firsts.items():
            if partition in self._intervals and self._subscription.is_assigned(partition):
                self._subscription.seek(partition, first)
                self.moved(partition, first)

    def standing(self, known: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        """
        Where every partition stands that may be read.

        That is where the query stands in partitions that it had before, where nobody has committed since it did: so
        what it has read twice after a restart is nothing, and the group's offsets catch up with it (``resume``).

        Args:
            known: Where the query stands; what was read there up to that place is done.

        Raises:
            NoOffsetsError: Brokers refuse to tell where a topic starts.
        """
        if self._refused:
            raise self._refused.popitem()[1]
        spans = {}
        for partition, interval in self._intervals.items():
            state = self._subscription.state(partition)
            if state is None or partition in self._stopped:
                continue
            before = known.get(partition)
            if before is not None and before.token == interval.token:
                spans[partition] = before
                continue
            begin, to = interval.begin, state.finished
            if before is not None and not interval.planned and before.group == state.committed and before.to > to:
                begin = to = before.to
            spans[partition] = Span(begin, to, interval.token, state.committed)
        return spans

    def plan(self, wanted: Mapping[TopicPartition, Span], *, may_read: bool) -> dict[TopicPartition, Span]:
        """
        Begin a batch, as far as its partitions are still there to be read.

        Args:
            wanted: How far it is to read; each from where ``standing`` said.
            may_read: Whether the member may trust its claims at this moment; otherwise nothing is read.

        Returns:
            How far it reads.
        """
        spans = {}
        for partition, span in wanted.items():
            interval, state = self._intervals.get(partition), self._subscription.state(partition)
            if interval is None or state is None or partition in self._stopped or interval.token != span.token:
                continue
            if not may_read:
                span = span._replace(to=state.finished)
            if span.to > state.finished:
                span = span._replace(group=state.committed)
                state.position = span.to
                interval.planned = True
                self._batch[partition] = _Reading(state.finished, span)
            spans[partition] = span
        return spans

    def _busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(partition for partition in partitions if partition in self._batch)

    # ------------------------------------------------------------------ the group's side

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """Look up first ("earliest") or next ("latest") offsets of partitions, as far as leaders tell them."""
        return await policy_offsets(self._cluster, partitions, policy)

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Have the next batch read these."""
        self._stopped.difference_update(partitions)
        for partition in partitions:
            state = self._subscription.state(partition)
            if state is not None:
                self._intervals[partition] = _Interval(state.position, state.token)
        return _nothing()

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Plan no more of these; returns those that the running batch reads."""
        self._stopped.update(partitions)
        return self._busy_with(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Ends when no batch reads any of these."""
        while self._busy_with(partitions):
            self._let_go.clear()
            await self._let_go.wait()
        for partition in partitions:
            self._intervals.pop(partition, None)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Somebody else may own these."""
        for partition in partitions:
            self._intervals.pop(partition, None)
            self._stopped.discard(partition)
        self._cluster.doubt(partitions)

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """Somebody else wrote the committed offset: another stretch of reading begins there."""
        if partition in self._intervals:
            self._intervals[partition] = _Interval(offset, new_token(), planned=True)

    def refused(self, topic: str, error: NoOffsetsError) -> None:
        """Where to start in a topic cannot be told: the query is told why."""
        self._refused[topic] = error

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Committed offsets, as the brokers read them."""
        return await fetch_offsets(self._cluster, self._group, partitions)

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Have the brokers store next offsets."""
        await commit_offsets(self._cluster, self._metrics, self._group, offsets, metadata)

    def leaders(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """Where to ask for the ends of logs."""
        self._cluster.believe(leaders, brokers)

    def in_progress(self) -> tuple[Work, ...]:
        """Nothing that is to be hurried: a batch takes as long as it takes, and the leader's alarm names the job."""
        return ()

    def stalled(self, stall: Stall) -> None:
        """The loop does not turn; the watchdog says so itself."""


def _is_same(reached: Span | None, planned: Span) -> bool:
    return reached is not None and (reached.token, reached.to) == (planned.token, planned.to)


async def _nothing() -> None:
    """There is nothing to wait for."""
