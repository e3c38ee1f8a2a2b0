"""The methods that the two consumers share: get records, seek, pause partitions, and ask about topics."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, overload

from kiel_groups.clients.calls.arguments import partition_of, partitions_of, times_of
from kiel_groups.clients.calls.eager_methods import failed_future, spawn, starts_at_call
from kiel_groups.clients.connected_consumer import AssignedConsumer
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.clients.delivery.record_reader import COLUMNS, RECORDS, ReaderSettings
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import At, list_offsets
from kiel_groups.clients.record_calls import Lifecycle, RecordCalls
from kiel_groups.errors import KielGroupsError, UnknownTopicError
from kiel_groups.model import INTERNAL_TOPICS, OffsetAndTimestamp, Record, TopicPartition
from kiel_groups.wire.list_offsets import EARLIEST, LATEST
from kiel_groups.wire.message_sets.record_columns import RecordColumns


class Consumer:
    """
    The base class of ``GroupedConsumer`` and ``SingleConsumer``, with the methods that they share.

    A partition is assigned from the moment before ``on_partitions_assigned`` is called, until ``on_partitions_revoked``
    has returned, or its claim is lost, or its topic leaves the subscription.
    """

    def __init__(self, lifecycle: Lifecycle, settings: ReaderSettings) -> None:
        self.metrics = settings.metrics
        self._reading = settings
        self._lifecycle = lifecycle
        self._left_loop = lifecycle.left_loop
        self._subscription = lifecycle.subscription
        self._calls = RecordCalls(lifecycle, type(self).__name__, settings.fetching.max_bytes)

    # ------------------------------------------------------------------ records

    def __aiter__(self) -> RecordLoop:
        """
        Iterate over records until the consumer is closed. Only one loop may be active at a time.

        A caller that takes single records with ``anext`` must keep the iterator. If the iterator is dropped without a
        ``break``, a ``return`` or its end, the last record is not finished, and is delivered again.

        Raises:
            ClosedError: The consumer was not connected, or was closed.
            ConfigError: Another loop is active, or the consumer is used in another style, such as ``consume()``.
            IllegalStateError: Neither ``subscribe()`` nor ``assign()`` has been called.
        """
        return self._calls.loop()

    def getone(self, *partitions: TopicPartition) -> asyncio.Future[Record]:
        """
        Wait for the next record, without a time limit, and return it.

        The record is finished when the receiving coroutine next calls ``getone()``, ``getmany()`` or
        ``consume_batches()``. A record that arrives after its caller has given up (``asyncio.wait_for``,
        ``gen.with_timeout``) is delivered again.

        Args:
            partitions: The partitions from which to return a record; by default any partition. A partition that is not
                assigned has no records until it is assigned.

        Raises:
            ConfigError: An argument is not a TopicPartition, or the consumer is used in another style.
            IllegalStateError: Neither ``subscribe()`` nor ``assign()`` has been called. Or the same coroutine has
                called again meanwhile, or the result was read so late that the record is delivered again.
            ClosedError: The consumer is not connected, or was closed.
            BadRecordError: The next record of a partition cannot be delivered; see ``on_bad_record``. The error is
                raised again, after a pause each time, until the record is passed. The next call may return a record of
                another partition.
            KielGroupsError: A partition cannot be read. The next call may return a record of another partition.
        """
        return self._calls.getone(partitions)

    def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> asyncio.Future[dict[TopicPartition, list[Record]]]:
        """
        Return buffered records by partition, in the order of the log.

        The records are finished when the coroutine that received them calls ``getmany()``, ``getone()`` or
        ``consume_batches()``, even if that call returns no records. If the coroutine's task has ended, another
        coroutine's call finishes the records. The consumer does not release a partition before its records are
        finished. Records that arrive after their caller has given up are delivered again.

        Args:
            partitions: The partitions from which to return records; by default all assigned partitions.
            timeout_ms: How long to wait if no records are buffered, in milliseconds; 0 returns at once.
            max_records: The most records to return; by default all that are buffered.

        Returns:
            The records by partition; partitions without records are left out. {} if no records came in time, or if the
            same coroutine has called again meanwhile.

        Raises:
            ConfigError: An argument is invalid, or the consumer is used in another style.
            IllegalStateError: Neither ``subscribe()`` nor ``assign()`` has been called.
            NoBrokersError: No records came, and 8 metadata requests in a row were not answered.
            ClosedError: The consumer is not connected, or was closed.
            BadRecordError: As ``getone``. The records before the bad record are returned by an earlier call.
            KielGroupsError: A partition cannot be read. The next call may return records of other partitions.
        """
        return self._calls.getmany(RECORDS, partitions, timeout_ms, max_records)

    def consume_batches(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> asyncio.Future[dict[TopicPartition, list[RecordColumns]]]:
        """
        Return buffered records by partition, as columns: offsets, keys and values, without an object for each record.

        Apart from their form, the records are delivered and finished as by ``getmany()``. A consumer may mix calls of
        ``getone()``, ``getmany()`` and this method. Each item of a list has the records of one contiguous part of the
        log, up to 2 MiB. The parts are not joined, because that would copy the records. Keys and values are bytes.

        Args:
            partitions: The partitions from which to return records; by default all assigned partitions.
            timeout_ms: How long to wait if no records are buffered, in milliseconds; 0 returns at once.
            max_records: The most records to return; by default all that are buffered.

        Returns:
            The records by partition; partitions without records are left out. {} if no records came in time, or if the
            same coroutine has called again meanwhile.

        Raises:
            ConfigError: As ``getmany``. Or the consumer has a deserializer, which would be called for each record.
            IllegalStateError: As ``getmany``.
            NoBrokersError: As ``getmany``.
            ClosedError: The consumer is not connected, or was closed.
            DamagedRecordError: The next record of a partition is damaged; see ``on_bad_record``. The records before the
                damaged record are returned by an earlier call.
            KielGroupsError: A partition cannot be read. The next call may return records of other partitions.
        """
        return self._calls.getmany(COLUMNS, partitions, timeout_ms, max_records)

    # ------------------------------------------------------------------ topics and logs of the cluster

    @starts_at_call
    async def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """
        Return the first offset in the log of each partition.

        Raises:
            ArgumentTypeError: The argument is not a list of partitions. The error is a TypeError and a ConfigError.
            ConfigError: A topic's name is not legal, or a number is negative.
            UnknownTopicError: A partition does not exist.
            BrokerError: A leader did not answer, or refused, in 8 tries of ``request_timeout_ms`` at most.
            ClosedError: The consumer is not connected, or was closed.
        """
        return await self._list(partitions_of(partitions, "beginning_offsets()"), EARLIEST)

    @starts_at_call
    async def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the next message of each partition. Raise the errors of ``beginning_offsets``."""
        return await self._list(partitions_of(partitions, "end_offsets()"), LATEST)

    @starts_at_call
    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, float]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """
        Return, for each partition, the offset from which to read the messages of the given time or later.

        Brokers of 0.10.1 and later compare the time with the timestamps of messages. If a log mixes messages with and
        without timestamps, a message without a timestamp may be missed; the producer of this library sends such
        messages. In a log without timestamps, and before 0.10.1, brokers compare the time with the last write to each
        segment of the log. Then the offset is the first offset of a segment, and reading may start earlier than asked:
        by up to one segment, a gibibyte or a week with the broker's default settings. Copying a log to another disk
        changes the times of its segments. For a time after the last write, the offset is the end of the log.

        Args:
            timestamps: Times in milliseconds since 1970, by partition; fractions of a millisecond do not count.

        Returns:
            An entry for each partition. The ``timestamp`` of an entry is always -1, because no timestamp is known.

        Raises:
            ArgumentTypeError: The argument is not a dict of partitions to numbers. The error is a TypeError and a
                ConfigError.
            ConfigError: A time is negative, or 2**63 or more.
            UnknownTopicError, BrokerError, ClosedError: As ``beginning_offsets``.
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

    def _require_cluster(self) -> ClusterMetadata:
        """Return the metadata of a consumer that is connected. Raise ClosedError for any other consumer."""
        return self._lifecycle.require_connected().reader.cluster

    # ------------------------------------------------------------------ assigned partitions and their positions

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are assigned to this consumer now."""
        return self._subscription.assigned_partitions()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """
        Move the position of a partition to another offset, forward or backward.

        Buffered records of the partition are dropped, and records in flight no longer change the committed offset.
        Until further records are finished, a commit stores ``offset``, even if it is lower than the committed offset. A
        seek affects the present claim only. After a seek in ``on_partitions_revoked``, the release stores ``offset``.

        Args:
            partition: An assigned partition.
            offset: The offset of the next record. If the offset is not in the log, ``auto_offset_reset`` applies.

        Raises:
            ConfigError: The offset is not a whole number from 0 to 2**63 - 1.
            IllegalStateError: The partition is not assigned. The message names the assigned partitions.
        """
        partition = partition_of(partition, "seek()")
        self._subscription.seek(partition, offset)
        if (owned := self._owned_records()) is not None:
            owned.resume_at(partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> asyncio.Future[dict[TopicPartition, int]]:
        """
        Look up the first offsets of partitions, then seek there.

        A partition keeps its position if its claim ends during the look-up, or if the application seeks elsewhere.

        Args:
            partitions: Assigned partitions; by default all.

        Returns:
            The offsets of the partitions whose position was set.

        Raises:
            IllegalStateError: A partition is not assigned.
            BrokerError: A leader did not answer, or refused, in 8 tries of ``request_timeout_ms`` at most.
                No position was set.
            ClosedError: The consumer is not connected, or was closed.
        """
        return self._seek_to("seek_to_beginning()", partitions, self.beginning_offsets)

    def seek_to_end(self, *partitions: TopicPartition) -> asyncio.Future[dict[TopicPartition, int]]:
        """
        Look up the ends of the partitions' logs, then seek there.

        Arguments, result and errors are as in ``seek_to_beginning``.
        """
        return self._seek_to("seek_to_end()", partitions, self.end_offsets)

    def _seek_to(
        self,
        call: str,
        partitions: Sequence[TopicPartition],
        look_up: Callable[[list[TopicPartition]], asyncio.Future[dict[TopicPartition, int]]],
    ) -> asyncio.Future[dict[TopicPartition, int]]:
        # The marks are set at the call, not when its task starts: the later of two seeks must win.
        try:
            wanted = [partition_of(each, call) for each in partitions] or sorted(self.assignment())
            self._require_cluster()
            self._subscription.check_assigned(wanted, call)
        except KielGroupsError as error:
            return failed_future(error, call)
        marks = {partition: self._subscription.renew_seek_mark(partition) for partition in wanted}
        return spawn(self._seek_after(look_up(wanted), marks), call)

    async def _seek_after(
        self, look_up: asyncio.Future[dict[TopicPartition, int]], marks: dict[TopicPartition, Any]
    ) -> dict[TopicPartition, int]:
        found, sought = await look_up, {}
        for partition, offset in found.items():
            is_same = self._subscription.seek_mark(partition) is marks[partition]
            if is_same and self._subscription.is_assigned(partition):
                self.seek(partition, offset)
                sought[partition] = offset
        return sought

    @starts_at_call
    async def position(self, partition: TopicPartition) -> int:
        """
        Return the offset of the next record to deliver.

        After ``assign``, wait until the position is known. Assigned partitions of subscribed topics have a position at
        once. If a call returned records but its caller was cancelled and did not receive them, the records count as not
        delivered. These records become the next records once no object refers to the call's future, or after a second.
        Until then, other coroutines get the records that follow. The following records are then delivered a second
        time.

        Raises:
            IllegalStateError: The partition is not assigned.
            KielGroupsError: After ``assign``, no start position can be chosen.
            ClosedError: The consumer was closed. Or the position is not known yet, and the consumer is not connected.
        """
        partition = partition_of(partition, "position()")
        if (position := self._next_offset(partition)) is None:
            connected = self._lifecycle.require_connected()
            assert isinstance(connected, AssignedConsumer), f"{partition} is assigned and not open"
            await connected.await_position(partition)
            position = self._next_offset(partition)
        assert position is not None
        return position

    def _next_offset(self, partition: TopicPartition) -> int | None:
        """
        Return the offset of the next record that a caller gets, or None if the partition has no position.

        A call moves the position of the claim past the records that the call takes. A taken record that no caller
        received is delivered again, at the next call or after a second.
        """
        position, owned = self._subscription.position(partition), self._owned_records()
        unreceived = None if position is None or owned is None else owned.unreceived_from(partition)
        return position if unreceived is None else unreceived

    def highwater(self, partition: TopicPartition) -> int | None:
        """
        Return the offset after the last message of the log, as the broker last reported it, or None before a fetch.

        A paused partition is not fetched, so its watermark is not renewed.

        Raises:
            IllegalStateError: The partition is not assigned.
        """
        partition = partition_of(partition, "highwater()")
        return self._subscription.highwater(partition)

    @overload
    def lag(self) -> dict[TopicPartition, int]: ...

    @overload
    def lag(self, partition: TopicPartition) -> int | None: ...

    def lag(self, partition: TopicPartition | None = None) -> dict[TopicPartition, int] | int | None:
        """
        Return the number of messages that are not delivered yet, as of the last fetch.

        Args:
            partition: An assigned partition; by default all.

        Returns:
            The lag of the partition, or None before its first fetch. Without the argument, a dict with the lag of each
            assigned partition; partitions that were not fetched yet are left out.

        Raises:
            IllegalStateError: The partition is not assigned.
        """
        if partition is not None:
            partition = partition_of(partition, "lag()")
            return self._lag(partition)
        lags = {each: self._lag(each) for each in sorted(self.assignment())}
        return {each: lag for each, lag in lags.items() if lag is not None}

    def _lag(self, partition: TopicPartition) -> int | None:
        highwater, position = self._subscription.highwater(partition), self._next_offset(partition)
        return None if highwater is None or position is None else max(0, highwater - position)

    def _owned_records(self) -> OwnedRecords | None:
        connected = self._lifecycle.connected
        return None if connected is None else connected.reader.owned

    # ------------------------------------------------------------------ pauses

    def pause(self, *partitions: TopicPartition) -> None:
        """
        Stop fetching and delivering these partitions until ``resume``.

        Records in flight are finished as usual. Buffered records stay buffered, even the rest of a batch that a loop
        has begun. If paused partitions already fill their share of the buffer, the records are dropped instead, and
        fetched again after ``resume``. The consumer keeps the partitions. A pause lasts while a partition stays
        assigned, even through a rebalance. A partition that is assigned again is not paused.

        Raises:
            IllegalStateError: A partition is not assigned; the call pauses no partition.
        """
        wanted = [partition_of(each, "pause()") for each in partitions]
        self._subscription.check_assigned(wanted, "pause()")
        for partition in wanted:
            self._subscription.pause(partition)
        if (owned := self._owned_records()) is not None:
            owned.pause(wanted)

    def resume(self, *partitions: TopicPartition) -> None:
        """
        End the pause of these partitions. Partitions that are not paused are unaffected.

        Raises:
            IllegalStateError: A partition is not assigned; the call resumes no partition.
        """
        wanted = [partition_of(each, "resume()") for each in partitions]
        self._subscription.check_assigned(wanted, "resume()")
        for partition in wanted:
            self._subscription.resume(partition)
        if (owned := self._owned_records()) is not None:
            owned.resume(wanted)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return self._subscription.paused_partitions()

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics, or an empty set after ``assign``."""
        return self._subscription.topics

    # ------------------------------------------------------------------ attributes that programs written for kiel read

    @property
    def name(self) -> str:
        """The host's name and a number that is unique among the consumers of this process."""
        return f"{socket.gethostname()}:{id(self)}"

    @property
    def allocation(self) -> defaultdict[str, list[int]]:
        """The numbers of the partitions being read, ascending, by topic. Any other topic maps to []."""
        return self._subscription.offsets.allocation()

    @property
    def deserializer(self) -> Callable[[bytes], Any]:
        """The function that makes the values of ``consume()``, by default ``json.loads``."""
        return self._reading.deserializer or json.loads

    @property
    def max_wait_time(self) -> int:
        """The longest time for which a broker waits for ``min_bytes`` before it responds, in milliseconds."""
        return self._reading.fetching.max_wait_ms

    @property
    def min_bytes(self) -> int:
        """The number of bytes for which a broker waits before it responds, at most for ``max_wait_time``."""
        return self._reading.fetching.min_bytes

    @property
    def max_bytes(self) -> int:
        """The approximate limit, in bytes, of one result of ``consume()``, and of one response of a broker."""
        return self._reading.fetching.max_bytes
