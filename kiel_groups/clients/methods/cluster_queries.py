"""The questions that both consumers answer about topics and logs, without consuming them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kiel_groups.clients.calls.eager_methods import starts_at_call
from kiel_groups.clients.calls.offset_arguments import partitions_of, times_of
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import At, list_offsets
from kiel_groups.errors import UnknownTopicError
from kiel_groups.model import INTERNAL_TOPICS, OffsetAndTimestamp, TopicPartition
from kiel_groups.wire.api.list_offsets_v0 import EARLIEST, LATEST

__all__ = ["ClusterQueries"]


class ClusterQueries:
    """
    Methods of both consumers that ask the brokers about topics and logs.

    They need a connected consumer, but the partitions need not be assigned to it, nor the topics subscribed.
    """

    def _require_cluster(self) -> ClusterMetadata:
        """Return the metadata of a consumer that is connected. Raise ClosedError for any other consumer."""
        raise NotImplementedError

    @starts_at_call
    async def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """
        Return the first offset in the log of each partition.

        Raises:
            ArgumentTypeError: The argument is not a list of partitions. It is a TypeError and a ConfigError.
            ConfigError: A topic's name is not legal, or a number is negative.
            UnknownTopicError: A partition does not exist.
            BrokerError: A leader did not answer, or refused, in 8 tries; each waits for ``request_timeout_ms`` at most.
            ClosedError: The consumer is not connected, or was closed.
        """
        return await self._list(partitions_of(partitions, "beginning_offsets()"), EARLIEST)

    @starts_at_call
    async def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the next message of each partition. The errors are those of ``beginning_offsets``."""
        return await self._list(partitions_of(partitions, "end_offsets()"), LATEST)

    @starts_at_call
    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, float]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """
        Return an offset for each partition from which no message is missed that was written at its time or later.

        Brokers of 0.10.1 and later compare the time with the timestamps of messages; a message without one, such as
        each one of our producer, may be missed between others that have one. In a log without timestamps, and before
        0.10.1, they compare it with the last write to each segment of the log. So the offset is the first one of a
        segment, and reading from it may start earlier than asked: by up to one segment, a gibibyte or a week with the
        broker's default settings. Copying a log to another disk changes the times of its segments. For a time after the
        last write, the offset is the end of the log.

        Args:
            timestamps: Times in milliseconds since 1970, by partition; fractions of a millisecond do not count.

        Returns:
            An entry for each partition; its ``timestamp`` is -1, "none".

        Raises:
            ArgumentTypeError: The argument is no dict of partitions to numbers. It is a TypeError and a ConfigError.
            ConfigError: A time is negative, or 2**63 or more.
            UnknownTopicError: As for ``beginning_offsets``, and so are the other errors.
        """
        times = times_of(timestamps, "offsets_for_times()")
        found = await self._list(list(times), times)
        return {partition: OffsetAndTimestamp(offset) for partition, offset in found.items()}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """
        Return the partition numbers of a topic as last reported, or None if no broker has reported the topic so far.

        After ``topics()``, all topics are known.

        Raises:
            ClosedError: The consumer is not connected, or was closed.
        """
        known = self._require_cluster().known_partitions(topic)
        return None if known is None else set(known)

    @starts_at_call
    async def topics(self) -> set[str]:
        """
        Ask a broker for the names of all topics, and return them, without Kafka's internal topics.

        Raises:
            NoBrokersError: No broker answered.
            ClosedError: The consumer is not connected, or was closed.
        """
        return set(await self._require_cluster().all_topics() - INTERNAL_TOPICS)

    async def _list(self, wanted: list[TopicPartition], at: At) -> dict[TopicPartition, int]:
        cluster = self._require_cluster()
        for topic in sorted({partition.topic for partition in wanted}):
            known = await cluster.partitions_of(topic)
            missing = [
                partition for partition in wanted if partition.topic == topic and partition.partition not in known
            ]
            if missing:
                raise UnknownTopicError(
                    f"{missing[0]} does not exist; {topic} has partitions {known[0]} to {known[-1]}"
                )
        return await list_offsets(cluster, wanted, at) if wanted else {}
