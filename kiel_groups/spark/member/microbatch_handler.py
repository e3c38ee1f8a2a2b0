"""
The PartitionHandler of a member that reads in micro-batches; it runs on the member's loop.

A revoked partition is not part of any new batch. The member releases the partition at once or, if the running batch
reads it, once that batch is known to be done. If a partition is lost during a batch, the offsets that the batch read of
it are not committed, because the new owner reads them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kiel_groups.clients.coordinated.stored_in_kafka import StoredInKafka
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.group_brokers import GroupBrokers
from kiel_groups.coordination.partition_handler import Gate, Work
from kiel_groups.coordination.session.delivery_gate import DeliveryGate
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
    """
    One interval of reading a partition, which starts at the offset ``begin``.

    ``planned`` means that the start is final: a batch was planned in the interval, or ``offset_changed`` started it.
    """

    begin: int
    token: int
    planned: bool = False


class _Reading(NamedTuple):
    """The range of a partition that the running batch reads: from ``start`` to the end of ``span``."""

    start: int
    span: Span


class BatchHandler(GroupBrokers):
    """
    The PartitionHandler of a member that reads in batches, one at a time.

    Args:
        group: The group's name.
        cluster: The brokers that look up and store offsets.
        subscription: The member's state; ``finished`` of a partition is the end of the last batch that is done.
        metrics: Counts commits that brokers refuse.
    """

    def __init__(self, group: str, cluster: ClusterMetadata, subscription: SubscriptionState, metrics: Metrics) -> None:
        super().__init__(cluster, group, metrics, StoredInKafka(cluster, group, metrics))
        self._subscription = subscription
        self._intervals: dict[TopicPartition, _Interval] = {}
        self._stopped: set[TopicPartition] = set()
        self._batch: dict[TopicPartition, _Reading] = {}
        self._batch_ended = asyncio.Event()
        self._refused: dict[str, NoOffsetsError] = {}
        #: The gate of the member's current session; never open before the first session.
        self.gate: Gate = DeliveryGate()

    # ------------------------------------------------------------------ the query's side

    def finish(self, reached: Mapping[TopicPartition, Span] | None) -> list[OffsetRange]:
        """
        End the batch, and mark the offsets that it read as finished.

        Args:
            reached: The query's position, which shows whether the batch ran. None means that the batch ran.

        Returns:
            The ranges that must not be committed, because their partitions were lost, or their offsets were changed,
            during the batch.
        """
        unfenced = []
        for partition, reading in self._batch.items():
            if reached is not None and not _is_same(reached.get(partition), reading.span):
                continue
            interval, state = self._intervals.get(partition), self._subscription.offsets.of(partition)
            if interval is not None and state is not None and interval.token == reading.span.token:
                state.finished = state.position = max(state.finished, reading.span.to)
            elif reading.span.to > reading.start:
                unfenced.append(OffsetRange(partition, reading.start, reading.span.to))
        self.drop_batch()
        return unfenced

    def drop_batch(self) -> None:
        """Stop tracking the batch, done or not, so that its revoked partitions can be released."""
        self._batch = {}
        self._batch_ended.set()

    def resume(self, wanted: Mapping[TopicPartition, Span]) -> bool:
        """
        Advance the starts of new intervals to the query's own positions, as returned by ``positions``.

        The caller has checked that the logs reach these positions.

        Returns:
            Whether any start was advanced.
        """
        found = False
        for partition, span in wanted.items():
            interval, state = self._intervals.get(partition), self._subscription.offsets.of(partition)
            if interval is None or state is None or interval.planned or interval.token != span.token:
                continue
            if span.begin > state.finished:
                interval.begin = state.finished = state.position = span.begin
                found = True
        return found

    def restart(self, firsts: Mapping[TopicPartition, int]) -> None:
        """Restart recreated partitions at the first offsets of their new logs; the caller commits these offsets."""
        for partition, first in firsts.items():
            if partition in self._intervals and self._subscription.offsets.is_open(partition):
                self._subscription.offsets.seek(partition, first)
                self.offset_changed(partition, first)

    def positions(self, known: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        """
        Return the position of every partition that may be read.

        A newly claimed partition continues at the query's own position if no other member has committed since the
        query planned its last batch. So a restarted query reads nothing twice; ``resume`` then advances the group's
        offsets.

        Args:
            known: The query's position; everything before it is done.

        Raises:
            NoOffsetsError: The start position of a topic is unknown; see ``start_unknown``.
        """
        if self._refused:
            raise self._refused.popitem()[1]
        spans = {}
        for partition, interval in self._intervals.items():
            state = self._subscription.offsets.of(partition)
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
        Start a batch of the partitions in ``wanted`` that the member still owns and that are not revoked.

        Args:
            wanted: The span to read of each partition, which starts at its position in ``positions``.
            may_read: Whether the member's gate is open. If it is shut, the batch reads nothing.

        Returns:
            The position of each partition after the batch.
        """
        spans = {}
        for partition, span in wanted.items():
            interval, state = self._intervals.get(partition), self._subscription.offsets.of(partition)
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

    def _in_flight(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(partition for partition in partitions if partition in self._batch)

    # ------------------------------------------------------------------ the group's side

    def gate_changed(self, gate: Gate) -> None:
        """Plan batches only while the gate of the new session is open."""
        self.gate = gate

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Include these partitions in new batches."""
        self._stopped.difference_update(partitions)
        for partition in partitions:
            state = self._subscription.offsets.of(partition)
            if state is not None:
                # Only ZooKeeper coordinates queries, so the token is the number of a claim.
                assert isinstance(state.token, int)
                self._intervals[partition] = _Interval(state.position, state.token)
        return _no_wait()

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Exclude these partitions from new batches. Return the partitions that the running batch reads."""
        self._stopped.update(partitions)
        return self._in_flight(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until the running batch reads none of these partitions, and end their intervals."""
        while self._in_flight(partitions):
            self._batch_ended.clear()
            await self._batch_ended.wait()
        for partition in partitions:
            self._intervals.pop(partition, None)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop partitions whose claims were lost: another member may own them already."""
        for partition in partitions:
            self._intervals.pop(partition, None)
            self._stopped.discard(partition)
        self._cluster.drop_overrides(partitions)

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """Start a new interval at ``offset``, which another client committed, or where a recreated topic starts."""
        if partition in self._intervals:
            self._intervals[partition] = _Interval(offset, new_token(), planned=True)

    def start_unknown(self, topic: str, error: NoOffsetsError) -> None:
        """Have the next call of ``positions`` raise ``error``: the start position of the topic is unknown."""
        self._refused[topic] = error

    def in_progress(self) -> tuple[Work, ...]:
        """Report no work: a batch may take any time. If it delays other members, the group's leader raises an alarm."""
        return ()

    def stalled(self, stall: Stall) -> None:
        """Do nothing: the watchdog itself logs that the loop is blocked."""


def _is_same(reached: Span | None, planned: Span) -> bool:
    return reached is not None and (reached.token, reached.to) == (planned.token, planned.to)


async def _no_wait() -> None:
    """Do nothing; ``assigned`` has nothing to wait for."""
