"""The members' requests to brokers to store offsets (``broker-v0``), and the late writes of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiel_groups.model import TopicPartition
from tests.sim.history.records import CommitRequest, OffsetWrite

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.history.history import History

__all__ = ["BrokerRequests"]


class BrokerRequests:
    """
    The requests of all members to brokers.

    A broker checks nothing: it may write in any order, and for members that have meanwhile released the partition.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        #: The newest request for each offset of a partition.
        self._requests: dict[tuple[TopicPartition, int], CommitRequest] = {}
        #: The offset of each partition that each consumer requested last.
        self._last: dict[tuple[Consumer, TopicPartition], int] = {}
        self._newest: dict[TopicPartition, CommitRequest] = {}
        #: Partitions whose last write was late: its claim had ended, or a later request had been made.
        self.late: set[TopicPartition] = set()
        #: The zxid of each broker's write that replaced an offset of another epoch, and that is still stored.
        self.replacing: dict[TopicPartition, int] = {}
        #: The epoch that the newest such write of each partition has begun.
        self._replaced_in: dict[TopicPartition, int] = {}

    def make(self, consumer: Consumer, partition: TopicPartition, offset: int) -> CommitRequest:
        """Describe a consumer's request to store an offset, with the state at this moment."""
        history = self._history
        topic = history.topics.znode(partition)
        created = 0 if topic is None else topic.czxid
        self._adopt_late_write(consumer, partition)
        known, mistakes_version = history.known(consumer, partition), history.owner_mistakes_version(partition)
        return CommitRequest(
            consumer,
            partition,
            offset,
            self._claim(partition),
            history.zxid,
            created,
            known,
            mistakes_version,
            known is None or mistakes_version or consumer.created(partition) < created,
        )

    def _adopt_late_write(self, consumer: Consumer, partition: TopicPartition) -> None:
        """
        Record that a consumer continues in the epoch of a broker's late write, if it takes that write for its own.

        It knows the version then, and has not moved: what it has processed before counts in this epoch.
        """
        history, finished, began = self._history, consumer.finished(partition), consumer.opened.get(partition)
        epoch = self._replaced_in.get(partition)
        if finished is None or began is None or epoch is None or epoch != history.epoch(partition):
            return
        if began < epoch == history.epoch_at(partition, finished[0]):
            history.record_processed(partition, epoch, history.processed_in(partition, began) or 0)
            consumer.continue_in_epoch(partition, epoch)

    def record(self, request: CommitRequest) -> None:
        partition = request.partition
        self._requests[partition, request.offset] = self._newest[partition] = request
        self._last[request.consumer, partition] = request.offset

    def record_write(self, write: OffsetWrite, request: CommitRequest) -> None:
        """Record whether a broker's write is late, before the epoch that it may begin."""
        if self.replaces_another_epoch(request):
            self._replaced_in[write.partition] = 1 + (self._history.epoch(write.partition) or 0)
        is_late = request is not self._newest[write.partition] or request.claim != self._claim(write.partition)
        (self.late.add if self.is_outdated(request) or is_late else self.late.discard)(write.partition)

    def find(self, partition: TopicPartition, offset: int) -> CommitRequest | None:
        """Return the newest request of any member to store this offset, or None."""
        return self._requests.get((partition, offset))

    def is_outdated(self, request: CommitRequest) -> bool:
        """Return whether the request was made for an earlier incarnation of the topic, or in an earlier epoch."""
        created, began = self._history.topics.created(request.partition), self._history.epoch_began(request.partition)
        return request.created < created[0] or request.zxid < began[0]

    def replaces_another_epoch(self, request: CommitRequest) -> bool:
        """Return whether a broker's write for this request overwrites an offset of another log, or of an operator."""
        return request.is_unaware or self.is_outdated(request)

    def may_have_requested(self, consumer: Consumer, partition: TopicPartition, offset: int | None) -> bool:
        """Return whether ``offset`` is the offset that the consumer requested last for the partition."""
        return self._last.get((consumer, partition)) == offset

    def _claim(self, partition: TopicPartition) -> int:
        owner = self._history.owners.znode(partition)
        return 0 if owner is None else owner.czxid
