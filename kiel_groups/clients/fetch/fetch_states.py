"""The partitions that a fetcher fetches, with their buffered batches and their places in the queues of brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kiel_groups.clients.fetch.fetch_buffer import FetchBuffer
from kiel_groups.clients.fetch.fetch_requests import BrokerLanes, BulkTurns
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch, Phase
from kiel_groups.clients.net.log_marks import LogMark, ReadLog
from kiel_groups.config import FetchConfig
from kiel_groups.model import TopicPartition

__all__ = ["FetchStates"]


class FetchStates:
    """
    The state of each assigned partition, and what can be done to it without a request to a broker.

    Args:
        config: The bounds of the buffer.
    """

    def __init__(self, config: FetchConfig) -> None:
        self._partitions: dict[TopicPartition, PartitionFetch] = {}
        #: The marks of the last assignments of other partitions.
        self._marks: dict[TopicPartition, LogMark | None] = {}
        self._lanes: dict[int, BrokerLanes] = {}
        self._turns = BulkTurns()
        self._buffer = FetchBuffer(config)
        #: Where callers wait until ``poll`` is likely to return a batch.
        self.ready = self._buffer.ready
        #: Partitions whose position has passed offsets without messages. The caller removes those it has noted.
        self.passed = self._buffer.passed

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions being fetched."""
        return frozenset(self._partitions)

    def position(self, topic_partition: TopicPartition) -> int | None:
        """Return the next offset to deliver, or None if the partition is not assigned."""
        state = self._partitions.get(topic_partition)
        return state.next_offset if state else None

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset after the last visible message, as last reported, or None if unknown or not assigned."""
        state = self._partitions.get(topic_partition)
        return state.high_watermark if state else None

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Return the number of undelivered messages, as last reported, or None if unknown or not assigned."""
        state = self._partitions.get(topic_partition)
        return state.lag if state else None

    def epoch(self, topic_partition: TopicPartition) -> int | None:
        """Return the number of a partition's current assignment, or None if the partition is not assigned."""
        state = self._partitions.get(topic_partition)
        return state.epoch if state else None

    def is_buffering(self, topic_partition: TopicPartition) -> bool:
        """Whether a batch or an error of a partition is buffered."""
        state = self._partitions.get(topic_partition)
        return state is not None and bool(state.buffered)

    def forget_logs(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what was read from the logs of partitions that are about to be assigned again."""
        for partition in partitions:
            self._marks.pop(partition, None)

    def read_logs(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadLog]:
        """Return what is known of the logs of partitions, with these positions, from their last assignments."""
        states = {partition: self._partitions.get(partition) for partition in positions}
        return {
            partition: ReadLog(positions[partition], self._marks.get(partition), in_doubt=False)
            if state is None
            else ReadLog(positions[partition], state.mark, state.phase is Phase.RESETTING)
            for partition, state in states.items()
        }

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions and their buffered batches, and ignore their answers in flight."""
        for tp in partitions:
            state = self._partitions.pop(tp, None)
            if state is not None:
                self._marks[tp] = state.mark
                self._leave_queue(state)
                self._buffer.drop(state)

    def _leave_queue(self, state: PartitionFetch) -> None:
        if state.phase is Phase.READY:
            for broker in self._lanes.values():
                broker.remove(state)

    def truncate(self, topic_partition: TopicPartition, end: int) -> int:
        """Drop a partition's buffered records at and after the offset ``end``, and return their number."""
        state = self._partitions.get(topic_partition)
        return self._buffer.truncate(state, end) if state else 0

    def pause(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """
        Neither fetch nor deliver these partitions until ``resume``. Their buffered batches remain.

        Returns:
            The partitions with buffered batches for which paused partitions have no room: the caller should assign them
            again, which drops their batches.
        """
        over: list[TopicPartition] = []
        for state in self._states(partitions):
            has_room = not self._buffer.is_paused_full
            self._buffer.pause(state)
            if state.phase is Phase.READY:
                self._leave_queue(state)
                state.enter(Phase.PARKED)
            if state.buffered and not has_room:
                over.append(state.topic_partition)
        return over

    def put_back(self, batch: FetchedBatch, taken: int) -> None:
        """Put the last batch of a partition back, as the next one. Its first ``taken`` records are delivered."""
        state = self._partitions.get(batch.topic_partition)
        if state is not None and state.epoch == batch.epoch:
            self._buffer.put_back(state, batch, taken)

    def skip(self, topic_partition: TopicPartition, offset: int) -> None:
        """Drop the record at ``offset``, if it is the next one to deliver of a paused partition."""
        state = self._partitions.get(topic_partition)
        if state is not None:
            self._buffer.skip(state, offset)

    def _states(self, partitions: Iterable[TopicPartition]) -> list[PartitionFetch]:
        return [self._partitions[partition] for partition in partitions if partition in self._partitions]
