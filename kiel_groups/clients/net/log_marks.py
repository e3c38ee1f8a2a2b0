"""Detect that a log was replaced, by comparing a message that was read from it, for brokers without topic ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple, Self

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import by_leader, policy_offsets
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.seen_topics import LogSight
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.fetch import FetchedPartition, FetchPosition, FetchRequest

#: The first bytes of a message: offset, size, checksum, magic and attributes, whose last bits name the compression.
_HEAD = Struct(">qiIbb")
_COMPRESSION = 0x07

#: How much is fetched of each log. A message that is larger is compared all the same if the broker sends its beginning.
_SAMPLE_BYTES = 4096


class LogMark(NamedTuple):
    """The offset, size and checksum of a message, which identify the log that has the message."""

    offset: int
    size: int
    checksum: int

    @classmethod
    def of(cls, message_set: bytes | memoryview) -> Self | None:
        """
        Return the mark of a message set's first message, or None if there is no message or the message is compressed.

        A compressed message gives no mark, because the broker may compact or compress it again later.
        """
        if len(message_set) < _HEAD.size:
            return None
        offset, size, checksum, _, attributes = _HEAD.unpack_from(message_set)
        return None if attributes & _COMPRESSION else cls(offset, size, checksum)


class ReadLog(NamedTuple):
    """The position of a fetcher in a log, the log's mark, and whether another log may have replaced this log."""

    position: int
    mark: LogMark | None
    in_doubt: bool


async def look_at_logs(
    cluster: ClusterMetadata, logs: Mapping[TopicPartition, ReadLog]
) -> Mapping[TopicPartition, LogSight]:
    """
    Return the present range of offsets of each log, and whether the log still has the message of its mark.

    Partitions whose leaders do not answer are left out.
    """
    starts = (await policy_offsets(cluster, logs, "earliest")).found
    ends = (await policy_offsets(cluster, starts, "latest")).found if starts else {}
    marks = {partition: mark for partition in ends if (mark := logs[partition].mark) is not None}
    kept = [partition for partition, mark in marks.items() if starts[partition] <= mark.offset < ends[partition]]
    samples = await _sample(cluster, {partition: marks[partition].offset for partition in kept})
    return {
        partition: LogSight(
            logs[partition].position,
            starts[partition],
            end,
            _compare(marks.get(partition), samples.get(partition)),
            partition in marks and marks[partition].offset == starts[partition],
            logs[partition].in_doubt,
        )
        for partition, end in ends.items()
    }


def _compare(mark: LogMark | None, found: LogMark | None) -> bool | None:
    # A message at another offset proves nothing: compaction may have removed the marked message.
    return None if mark is None or found is None or found.offset != mark.offset else found == mark


async def _sample(cluster: ClusterMetadata, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogMark]:
    """Return the mark of the first message from each of these offsets on. Partitions without a mark are left out."""
    led, _ = by_leader(cluster, offsets)

    async def ask(leader: int, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, FetchedPartition]:
        positions = {partition: FetchPosition(offsets[partition], _SAMPLE_BYTES) for partition in partitions}
        try:
            return await cluster.send(leader, FetchRequest(0, 0, positions))
        except KielGroupsError:
            return {}

    found: dict[TopicPartition, LogMark] = {}
    for answer in await asyncio.gather(*(ask(*each) for each in led.items())):
        for partition, fetched in answer.items():
            if fetched.error == NO_ERROR and (mark := LogMark.of(fetched.message_set)) is not None:
                found[partition] = mark
    return found
