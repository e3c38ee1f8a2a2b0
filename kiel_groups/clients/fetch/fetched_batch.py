"""A batch of one partition as the fetcher returns it: its records are made when they are asked for."""

from __future__ import annotations

from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.message_runs import MessageRun

__all__ = ["FetchedBatch"]


class FetchedBatch:
    """
    One or more records of one partition, in order.

    Args:
        topic_partition: The partition.
        records: The records, or a run of checked messages, whose records are made when they are asked for.
        high_watermark: The offset after the last message that consumers could see at the time.
        epoch: The number of the partition's assignment.
        size_bytes: About the size of the messages on the wire.
        answer: The number of the answer that the batch is from, among those of the partition's assignment.

    Attributes:
        buffer_bytes: The size of the messages without compression, which the buffer counts.
    """

    __slots__ = ("_content", "answer", "buffer_bytes", "epoch", "high_watermark", "size_bytes", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        records: list[Record] | MessageRun,
        high_watermark: int,
        epoch: int,
        size_bytes: int,
        answer: int = 0,
    ) -> None:
        self.topic_partition = topic_partition
        self._content = records
        self.high_watermark = high_watermark
        self.epoch = epoch
        self.size_bytes = size_bytes
        self.answer = answer
        self.buffer_bytes = size_bytes if isinstance(records, list) else records.size_bytes

    @property
    def run(self) -> MessageRun | None:
        """The checked messages, or None once their records were made."""
        return None if isinstance(self._content, list) else self._content

    @property
    def records(self) -> list[Record]:
        """The records. The first use makes them."""
        content = self._content
        if not isinstance(content, list):
            content = self._content = content.records()
        return content

    def __len__(self) -> int:
        content = self._content
        return len(content) if isinstance(content, list) else content.count

    @property
    def first_offset(self) -> int:
        """The offset of the first record."""
        content = self._content
        return content[0].offset if isinstance(content, list) else content.first_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        content = self._content
        return content[-1].offset if isinstance(content, list) else content.last_offset

    def _replace(self, *, records: list[Record]) -> FetchedBatch:
        """Return a batch with other records, and otherwise the same values, as a named tuple does."""
        changed = FetchedBatch(
            self.topic_partition, records, self.high_watermark, self.epoch, self.size_bytes, self.answer
        )
        changed.buffer_bytes = self.buffer_bytes
        return changed
