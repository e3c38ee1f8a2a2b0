"""Write the records of one set of partitions to the target of a mirror, with checkpoints."""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer, ThrottleEvent

from kiel_groups.errors import KielGroupsError, NoBrokersError, RetriableBrokerError, TaskStoppedError
from kiel_groups.mirror.checkpoints import last_ends, parse_checkpoints
from kiel_groups.mirror.target import TargetCluster, open_client
from kiel_groups.mirror.target_errors import FENCED, error_of
from kiel_groups.mirror.values import (
    BEGINNING_SLOT,
    RESUMED_SLOT,
    SETTLED_S,
    LostTopicsError,
    SourceBatch,
    TopicLimits,
    WriterSettings,
    checkpoints_topic,
    gone_text,
    large_rows,
    short_text,
)
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from kiel_groups.wording import counted
from kiel_groups.workers.plugins.interfaces import TaskContext

log = logging.getLogger(__name__)

#: Takes the error of a record that is not stored, and the record, if the library has taken it before.
DeliveryCallback: TypeAlias = Callable[..., None]

#: How long one call waits for the target, in seconds, before it is checked whether the task must stop.
_SLICE_S = 0.25
#: How long the target may take to say where its logs end, or which partitions it has, in seconds, before it is asked
#: again, and the pause between.
_ENDS_S, _PAUSE_S = 1.0, 0.05
#: How long the target may take, in seconds, before the status of the task reports the delay.
_LATE_S = 10.0
#: The partition of a record that the producer's partitioner places.
_BY_HASH = -1
#: How long a task that ends waits for the records in flight, in seconds.
_CLOSE_S = 1.0

_UNAUTHORIZED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
#: Errors of records whose topic was deleted, or has fewer partitions since.
_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
#: Errors of a transaction that recur each time that it is written.
_PERMANENT = (_UNAUTHORIZED | _GONE).union(
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        # These errors do not name the invalid record of a batch reliably, so none is a dead letter (decision 49).
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
#: The settings of topics that a task follows when it starts, by the errors with which a broker refuses records after a
#: change.
_LIMITS = {
    KafkaError.MSG_SIZE_TOO_LARGE: "max.message.bytes",
    KafkaError.INVALID_RECORD: "cleanup.policy",
    KafkaError.INVALID_TIMESTAMP: "message.timestamp.*",
}
#: Why a record without a key is not written to a compacted topic. A broker refuses the whole batch, and does not name
#: the record reliably.
_NO_KEY = KafkaError(KafkaError.INVALID_RECORD, "the topic is compacted, and the record has no key")
#: Errors of records that an abort drops.
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


class TargetWriter:
    """
    Writes batches of one set of partitions, each batch as a whole: ``write`` returns when the target has stored it.

    With exactly-once delivery, each batch is a transaction that includes its checkpoints. The constructor fences every
    earlier writer of the set.

    Args:
        target: The target cluster.
        settings: The settings of the task.
        number: The number of the set. It is the number of the partition that has the checkpoints of the set.
        batch_bytes: The largest size of a batch of the producer.
        context: The functions of the worker.

    Raises:
        KielGroupsError: The target refuses the writer.
        TaskStoppedError: The task must stop.
    """

    #: Whether the log has said that a quota of the target delays answers.
    _was_throttled = False

    def __init__(
        self, target: TargetCluster, settings: WriterSettings, number: int, batch_bytes: int, context: TaskContext
    ) -> None:
        self._target = target
        self._settings = settings
        self._number = number
        self._batch_bytes = batch_bytes
        self._context = context
        self._last_error = ""
        #: When the wait began whose delay was reported last. Each delay is reported once.
        self._reported_s = 0.0
        #: When it was last checked that the target has all topics.
        self._checked_s = 0.0
        #: The ends of the target's logs at the last checkpoint, by source topic and partition of the target.
        self._ends: dict[TopicPartition, int] = {}
        #: The number of partitions of each target topic whose keys are hashed, as first seen.
        self._widths: dict[str, int] = {}
        #: The records of this batch that their topic never takes, by partition and offset.
        self._refused: dict[tuple[TopicPartition, int], KafkaError] = {}
        #: Why other records of this batch are not stored.
        self._errors: list[KafkaError] = []
        #: The topics that the library does not find.
        self._gone: set[str] = set()
        #: Whether the library has dropped records of this batch.
        self._is_purged = False
        #: The partitions whose checkpoint at the beginning is not written yet: their offsets on the source and the
        #: target, or None before the first record.
        self._beginnings: dict[TopicPartition, tuple[int, int] | None] = {}
        #: The partitions that had checkpoints at the start of the task.
        self._known: frozenset[TopicPartition] = frozenset()
        #: The source offset of the first checkpoint of each of these partitions.
        self.first_offsets: dict[TopicPartition, int] = {}
        #: The partitions of the source whose partitions on the target the producer knows.
        self._reached: set[TopicPartition] = set()
        #: The batches, or the parts of batches, that the last call of ``write`` has stored, even if it has failed.
        self.written: list[SourceBatch] = []
        #: How many checkpoints of each partition this writer has written.
        self._counts: dict[TopicPartition, int] = {}
        self._checkpoints_topic = checkpoints_topic(settings.mirror)
        self._producer = open_client(Producer, self._producer_config())
        if settings.is_exactly_once:
            try:
                # Without a claim, as after a freeze of the process, it would fence the writer of the present owner.
                while not context.is_owner:
                    self._check_stop()
                    time.sleep(_PAUSE_S)
                self._until_done(self._producer.init_transactions, "start transactions")
            except (KafkaException, TaskStoppedError) as error:
                # No task closes a writer that it does not have.
                self.close()
                if isinstance(error, TaskStoppedError):
                    raise
                raise self._failure("start transactions", error_of(error)) from error

    def _producer_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "enable.idempotence": True,
            "compression.type": self._settings.compression,
            "linger.ms": 20,
            "batch.size": self._batch_bytes,
            # The broker decides which record is too large.
            "message.max.bytes": 100_000_000,
            # No limits: a batch is in memory as a whole anyway, and a record that the queue refuses would be missing.
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": (1 << 31) - 1,
            # That of Java: a record with a key goes to the partition of its hash unless the writer names another one.
            "partitioner": "murmur2_random",
            # Callbacks of stored records would take as long as the rest of the work for them.
            "delivery.report.only.error": True,
            # Problems of connections reach the callback, and are reported once.
            "error_cb": self._on_error,
            "throttle_cb": self._on_throttle,
        }
        # A target that is gone for an hour is no reason to give up. In a transaction, the coordinator decides.
        config |= (
            {"transactional.id": self.transactional_id} if self._settings.is_exactly_once else {"message.timeout.ms": 0}
        )
        # The longest timeout that a broker allows unless it is configured. A user may give another one.
        defaults = {"transaction.timeout.ms": 900_000}
        return defaults | self._target.config | config

    @property
    def transactional_id(self) -> str:
        """The transactional id of the set."""
        return f"{self._checkpoints_topic}-{self._number}"

    def positions(self) -> dict[TopicPartition, int]:
        """
        Return the source position of each partition of the set, as the target has stored it.

        The next checkpoint of a partition, if its batch has no record for the target, repeats the target's position.
        """
        found = parse_checkpoints(self._target.read(self._checkpoints_topic, self._number))
        self._known, self._reached = frozenset(found), set(found)
        self.first_offsets = {
            each: mirrored.checkpoints[0].source for each, mirrored in found.items() if mirrored.checkpoints
        }
        self._ends |= last_ends(found)
        return {partition: mirrored.position for partition, mirrored in found.items()}

    def check_ends(self, topics: Mapping[str, str]) -> None:
        """
        Check that the target still has the records before the last checkpoints.

        Args:
            topics: The topics of the target by their names on the source.

        Raises:
            LostTopicsError: A log is shorter than it was, or gone.
            TaskStoppedError: The task must stop.
        """
        ends = {own: TopicPartition(topics[own.topic], own.partition) for own in self._ends if own.topic in topics}
        try:
            self._look_up(ends, dict(self._ends))
        except KafkaException as error:
            raise self._failure("say where its logs end", error_of(error)) from error

    def begin(self, beginnings: Mapping[TopicPartition, tuple[int, int] | None]) -> None:
        """
        Write checkpoints at the beginning of partitions, which need not get a record soon.

        Args:
            beginnings: For each partition, the offset on the source at which the mirror begins, and the end of the
                target's partition. None stands for the first record of the source, whose offset is not known yet: its
                checkpoint is written with the first batch.

        Raises:
            KielGroupsError, TaskStoppedError: As ``write``.
        """
        self._beginnings |= beginnings
        if any(beginnings.values()):
            self._write([])

    def write(self, batches: Sequence[SourceBatch]) -> None:
        """
        Write records and their checkpoints, and return when the target has stored all.

        A transaction that fails is aborted and written again. Without transactions, ``written`` has the records before
        a record that the target refuses: the next task must not write these records again.

        Raises:
            LostTopicsError: Topics of the target were deleted.
            KielGroupsError: The target refuses a record, or another task has fenced this one.
            TaskStoppedError: The task must stop.
        """
        self.written = []
        for batch in batches:
            if self._beginnings.get(batch.partition, ()) is None:
                self._beginnings[batch.partition] = batch.columns[0].first_offset, 0
        for batch in batches:
            self._await_partition(batch)
        for part in self._parts(batches):
            self._write(part)
            self.written += part

    def _parts(self, batches: Sequence[SourceBatch]) -> Iterator[Sequence[SourceBatch]]:
        """
        Yield the batches as they are written together.

        A record that the target may refuse for its size would fail the task after the other records of its batch are
        stored, and each restart would write these once more. So it is a part of its own, after all records before it. A
        transaction that fails leaves nothing.
        """
        if self._settings.is_exactly_once:
            yield batches
            return
        divided = (batch.divided(self._size_limit(batch.topic)) for batch in batches)
        for at, parts in enumerate(zip_longest(*divided)):
            found = [part for part in parts if part is not None and part.columns]
            # At odd places are the single records.
            yield from [[part] for part in found] if at % 2 or not found else [found]

    def _size_limit(self, topic: str) -> int:
        """Return the size in bytes up to which a topic of the target takes any record."""
        # Smaller records share batches, which are not larger than that.
        return max(self._batch_bytes, self._limits(topic).largest_bytes * 9 // 10)

    def _limits(self, topic: str) -> TopicLimits:
        return self._settings.limits.get(topic, TopicLimits())

    def _await_partition(self, batch: SourceBatch) -> None:
        """
        Wait until the producer knows the partition of the target, unless records were written there before.

        The producer refuses records of a partition that it does not know. The partition may have been added a moment
        ago, and a broker may learn of that later than the others.
        """
        began_s, number = time.monotonic(), batch.partition.partition
        while batch.partition not in self._reached:
            with suppress(KafkaException):
                found = self._producer.list_topics(batch.topic, _ENDS_S).topics[batch.topic]
                # The producer handles errors of the topic itself.
                if found.error is not None or number < len(found.partitions):
                    self._reached.add(batch.partition)
                    return
            self._check_stop()
            self._report_delay(f"does not know partition {number} of {batch.topic}", began_s)
            time.sleep(_PAUSE_S)

    def _write(self, batches: Sequence[SourceBatch]) -> None:
        self._refused.clear()
        try:
            while not self._is_written(batches):
                self._until_done(self._producer.abort_transaction, "abort a transaction")
                self._context.metrics.count("mirror_transactions_aborted")
                self._check_stop()
                time.sleep(_SLICE_S)
        except (KafkaException, SystemError) as error:
            # The library raises a fatal error before it has called all callbacks, of which the next one then fails.
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException):
                raise
            raise self._failure("write", error_of(cause)) from error
        self._context.metrics.count("mirror_dead_letters", len(self._refused))
        self._context.report_problem("")

    def close(self) -> None:
        """Drop the records in flight. The next writer of the set aborts the open transaction, or its timeout does."""
        # A fatal error, which the task has reported, is raised again.
        with suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.flush(_CLOSE_S)
        # The library ends the connections when the producer is deleted.
        del self._producer

    def _is_written(self, batches: Sequence[SourceBatch]) -> bool:
        """Write the batches once. Return False if the transaction must be aborted and written again."""
        self._errors.clear()
        self._is_purged = False
        if not self._settings.dead_letter_topic:
            self._check_keys(batches)
        if self._settings.is_exactly_once:
            self._producer.begin_transaction()
        for batch in batches:
            self._produce(batch)
        self._flush()
        if self._settings.is_exactly_once and self._is_purged and not self._errors:
            # A transaction that is refused as a whole, as without the right to write to a topic, drops its records
            # without a cause. The commit, which fails, has the cause.
            self._commit()
        for (partition, offset), error in self._refused.items():
            if not self._settings.dead_letter_topic:
                raise self._failure(f"store the record at offset {offset} of {partition}", error)
        self._check_errors()
        if self._errors:
            return False
        self._look_up_ends(batches)
        # Without a claim, records of a later owner may be before these ends, and readers of the checkpoint would skip
        # them. The claim is checked after the look-up, so it was valid then. Transactions are fenced by the target.
        while not (self._settings.is_exactly_once or self._context.is_owner):
            self._check_stop()
            time.sleep(_PAUSE_S)
            self._look_up_ends(batches)
        for partition, beginning in self._beginnings.items():
            if beginning is not None:
                slot = RESUMED_SLOT if partition in self._known else BEGINNING_SLOT
                self._send_checkpoint([*partition, slot], dict(zip(("source", "target"), beginning, strict=True)))
        for batch in batches:
            self._bury(batch)
        if self._refused and not self._settings.is_exactly_once:
            # A checkpoint after a dead letter that is refused would skip the record if exactly.once is set later.
            self._flush()
            self._check_errors()
        for batch in batches:
            self._checkpoint(batch)
        self._flush()
        if self._settings.is_exactly_once and not self._errors:
            self._commit()
        self._check_errors()
        if not self._errors:
            self._beginnings = {each: None for each, beginning in self._beginnings.items() if beginning is None}
        return not self._errors

    def _check_keys(self, batches: Sequence[SourceBatch]) -> None:
        """
        Raise KielGroupsError if a compacted topic would refuse a record, before any record is written.

        Each restart of an at-least-once task would write the other records once more.
        """
        for batch in batches:
            if self._limits(batch.topic).is_compacted:
                for columns in batch.columns:
                    keys = columns.keys.to_list()
                    if None in keys and self._is_compacted(batch.topic):
                        offset = columns.offsets[keys.index(None)]
                        raise self._failure(f"store the record at offset {offset} of {batch.partition}", _NO_KEY)

    def _commit(self) -> None:
        try:
            self._until_done(self._producer.commit_transaction, "commit a transaction")
        except KafkaException as error:
            self._errors.append(error_of(error))

    def _check_errors(self) -> None:
        """Raise KielGroupsError if an error of this batch is permanent, and report a transaction that is aborted."""
        if self._gone:
            raise LostTopicsError({topic: gone_text(topic) for topic in sorted(self._gone)})
        buried = {id(error) for error in self._refused.values()}
        for error in self._errors:
            if (setting := _LIMITS.get(error.code())) is not None and id(error) not in buried:
                raise self._failure(
                    f"write: {setting} of a topic has changed since the start of the task, and a restart follows it; or"
                    " the topic of dead letters does not take the record",
                    error,
                )
            if not self._settings.is_exactly_once or error.fatal() or error.code() in _PERMANENT | FENCED:
                raise self._failure("write", error)
        if self._errors:
            self._report(f"has refused a transaction, which is written again: {self._errors[0].str()}")

    def _produce(self, batch: SourceBatch) -> None:
        """Give the records of a batch to the producer. An error of a record reaches its callback."""
        partition = batch.partition.partition
        done = partial(self._done, batch.topic, None)
        for columns in batch.columns:
            messages = self._messages(batch, columns)
            if batch.is_hashed:
                self._send_all(batch.topic, [each for each in messages if each["key"] is not None], _BY_HASH, done)
                messages = [each for each in messages if each["key"] is None]
            self._send_all(batch.topic, messages, partition, done)

    def _send_all(self, topic: str, messages: list[dict[str, Any]], partition: int, callback: DeliveryCallback) -> None:
        if self._settings.has_headers or self._settings.timestamps is not None:
            # The library takes headers and timestamps of single records only.
            for message in messages:
                shared: dict[str, Any] = {"partition": partition, "callback": callback}
                self._send(topic, **(shared | message))
            return
        self._producer.poll(0)
        if self._producer.produce_batch(topic, messages, partition, callback) < len(messages):
            # A record that the library itself refuses gets no callback.
            for message in messages:
                if (error := message.get("_error")) is not None:
                    message.get("callback", callback)(error)

    def _messages(self, batch: SourceBatch, columns: RecordColumns) -> list[dict[str, Any]]:
        """Return the records of some columns as arguments of the producer, without records that the target refuses."""
        partition, settings = batch.partition, self._settings
        keys, values = columns.keys.to_list(), columns.values.to_list()
        messages: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
        limits = self._limits(batch.topic)
        if settings.timestamps is not None:
            now_ms = time.time_ns() // 1_000_000
            for message in messages:
                message["timestamp"] = limits.legal(settings.timestamps(message["value"]), now_ms)
        if settings.has_headers:
            for offset, message in zip(columns.offsets, messages, strict=True):
                message["headers"] = _source_headers(partition, offset)
        # At least once, a large record is a part of its own.
        if settings.is_exactly_once or len(columns) == 1:
            for row in large_rows(columns, self._size_limit(batch.topic)):
                # If the target refuses the record, its offset has to be known.
                messages[row]["callback"] = partial(self._done, batch.topic, (partition, columns.offsets[row]))
        if limits.is_compacted and None in keys and self._is_compacted(batch.topic):
            pairs = zip(columns.offsets, keys, strict=True)
            self._refused |= {(partition, offset): _NO_KEY for offset, key in pairs if key is None}
        if self._refused:
            refused = {offset for each, offset in self._refused if each == partition}
            return [each for offset, each in zip(columns.offsets, messages, strict=True) if offset not in refused]
        return messages

    def _is_compacted(self, topic: str) -> bool:
        """Return whether a topic, which was compacted at the start of the task, still is. Wait for the answer."""
        while True:
            try:
                return TopicLimits.of(self._target.settings([topic])[topic]).is_compacted
            except RetriableBrokerError as error:
                self._report(f"does not answer: {error}; trying again")

    def _bury(self, batch: SourceBatch) -> None:
        """Write the records of a batch that the target has refused to the topic of dead letters."""
        offsets = sorted(offset for partition, offset in self._refused if partition == batch.partition)
        for offset in offsets:
            columns = next(each for each in batch.columns if offset < each.next_offset)
            row = bisect_left(columns.offsets, offset)
            error = self._refused[batch.partition, offset]
            headers = [*_source_headers(batch.partition, offset), ("kiel.error", error.str().encode())]
            topic = self._settings.dead_letter_topic
            log.warning("%s offset %d: %s; written to %s", batch.partition, offset, error.str(), topic)
            key, value = _bytes(columns.keys[row]), _bytes(columns.values[row])
            self._send(topic, value, key, _BY_HASH, self._stored, headers=headers)

    def _checkpoint(self, batch: SourceBatch) -> None:
        """Write the checkpoint at the end of a batch."""
        partition = batch.partition
        value: dict[str, Any] = {"source": batch.next_offset, "target": None}
        if batch.is_hashed:
            ends = {each.partition: end for each, end in self._ends.items() if each.topic == partition.topic}
            value["targets"] = dict(sorted(ends.items()))
        else:
            value["target"] = self._ends.get(partition)
        self._send_checkpoint([*partition, self._next_slot(partition)], value)

    def _next_slot(self, partition: TopicPartition) -> int:
        """
        Return the slot of the next checkpoint of a partition, which replaces the last one of the same slot.

        The slot of the n-th checkpoint is the number of zeros at the end of n in binary. So the topic keeps few
        checkpoints of each partition: every second one is the latest of its slot, and the others are further and
        further back. The checkpoints at the beginning of the mirror, and after the last turn forward, have slots of
        their own, and stay.
        """
        count = self._counts[partition] = self._counts.get(partition, 0) + 1
        return (count & -count).bit_length() - 1

    def _send_checkpoint(self, key: Sequence[object], value: Mapping[str, object]) -> None:
        encoded = json.dumps(value).encode(), json.dumps(key).encode()
        self._send(self._checkpoints_topic, *encoded, self._number, self._stored)

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: DeliveryCallback,
        **more: Any,
    ) -> None:
        """Give a record to the producer."""
        try:
            self._producer.produce(topic, value, key, partition, callback, **more)
        except KafkaException as error:
            # A record that the library itself refuses gets no callback. A transaction that has failed takes none.
            callback(error_of(error))

    def _done(
        self, topic: str, offset: tuple[TopicPartition, int] | None, error: KafkaError, _: Message | None = None
    ) -> None:
        """
        Take the error of a record.

        Args:
            topic: The topic of the target.
            offset: The source partition and offset of the record if the record by itself may be too large, else None. A
                batch of other records is refused, too, if the limit of its topic was lowered. These records fail the
                task, which has the new limit after a restart.
            error: Why the target does not store the record.
        """
        if offset is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._refused[offset] = error
            if self._settings.is_exactly_once:
                # The library aborts a transaction that lacks a record.
                self._errors.append(error)
        else:
            if error.code() in _GONE:
                self._gone.add(topic)
            self._stored(error)

    def _look_up_ends(self, batches: Sequence[SourceBatch]) -> None:
        """
        Look up where the logs of the target end: after all records of the batches, and before all later ones.

        Raises:
            LostTopicsError: A log is shorter than before, or gone.
            KafkaException: The target refuses to answer.
        """
        ends: dict[TopicPartition, TopicPartition] = {}
        least: dict[TopicPartition, int] = {}
        for batch in batches:
            numbers = range(self._width(batch.topic)) if batch.is_hashed else [batch.partition.partition]
            for number in numbers:
                own = TopicPartition(batch.partition.topic, number)
                ends[own], least[own] = TopicPartition(batch.topic, number), self._ends.get(own, 0)
            if not batch.is_hashed:
                least[batch.partition] += batch.records - sum(batch.partition == each for each, _ in self._refused)
        self._look_up(ends, least)

    def _look_up(self, ends: Mapping[TopicPartition, TopicPartition], least: Mapping[TopicPartition, int]) -> None:
        """Look up the end of each partition in ``ends``. The errors are those of ``_look_up_ends``."""
        began_s = time.monotonic()
        while True:
            try:
                found = dict(zip(ends, self._target.ends(list(ends.values()), _ENDS_S), strict=True))
            except KafkaException as error:
                if error_of(error).code() in _UNAUTHORIZED:
                    raise
                self._last_error = error_of(error).str()
            else:
                if not (short := [own for own, end in found.items() if end < least[own]]):
                    self._ends |= found
                    return
                if time.monotonic() - began_s > SETTLED_S:
                    raise LostTopicsError(
                        {ends[own].topic: short_text(ends[own], least[own], found[own]) for own in reversed(short)}
                    )
            self._check_stop()
            self._report_delay("does not say where its logs end", began_s)
            self._check_topics(began_s)
            time.sleep(_PAUSE_S)

    def _width(self, topic: str) -> int:
        if topic not in self._widths:
            self._widths[topic] = self._target.partitions()[topic]
        return self._widths[topic]

    def _stored(self, error: KafkaError, _: Message | None = None) -> None:
        if error.code() in _PURGED:
            self._is_purged = True
        else:
            self._errors.append(error)

    def _flush(self) -> None:
        """
        Wait until the target has stored or refused all records.

        A transaction that must be aborted does not send its remaining records.
        """
        began_s = time.monotonic()
        while (left := self._producer.flush(_SLICE_S)) and not (self._settings.is_exactly_once and self._errors):
            self._check_stop()
            self._report_delay(f"has not stored {counted(left, 'record')}", began_s)
            self._check_topics(began_s)

    def _check_topics(self, began_s: float) -> None:
        """
        Raise LostTopicsError if a topic of the target is gone, for which the library waits without naming it.

        The topics are looked up while the target is late, since ``began_s``.
        """
        now_s = time.monotonic()
        if now_s - max(began_s, self._checked_s) > _LATE_S:
            self._checked_s = now_s
            with suppress(NoBrokersError, RetriableBrokerError):
                present = self._target.partitions(_ENDS_S)
                if gone := {topic: gone_text(topic) for topic in self._settings.limits if not present.get(topic)}:
                    raise LostTopicsError(gone)

    def _until_done(self, call: Callable[[float], object], what: str) -> None:
        """Call a function of transactions until it is done. The library continues the same call after a timeout."""
        began_s = time.monotonic()
        while True:
            try:
                call(_SLICE_S)
                return
            except KafkaException as error:
                if error_of(error).fatal() or not error_of(error).retriable():
                    raise
            self._check_stop()
            self._report_delay(f"did not {what}", began_s)

    def _check_stop(self) -> None:
        if self._context.should_stop:
            raise TaskStoppedError(f"stopped while {self._target.servers} stores records")

    def _report_delay(self, what: str, began_s: float) -> None:
        if began_s != self._reported_s and time.monotonic() - began_s > _LATE_S:
            self._reported_s = began_s
            cause = f": {self._last_error}" if self._last_error else ""
            self._report(f"{what} within {_LATE_S:g} s{cause}; trying again")

    def _report(self, what: str) -> None:
        problem = f"the target {self._target.servers} {what}"
        log.warning("%s-%d: %s", self._settings.mirror, self._number, problem)
        self._context.metrics.count("mirror_problems")
        self._context.report_problem(problem)

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error.str()

    def _on_throttle(self, event: ThrottleEvent) -> None:
        """Log that a quota of the target delays answers, once. The end of the delay is an event without a time."""
        self._last_error = f"a quota delays its answers by {event.throttle_time:.1f} s" if event.throttle_time else ""
        if event.throttle_time and not self._was_throttled:
            self._was_throttled = True
            servers, text = self._target.servers, "%s-%d: the target %s slows the mirror down: %s"
            log.warning(text, self._settings.mirror, self._number, servers, self._last_error)

    def _failure(self, what: str, error: KafkaError) -> KielGroupsError:
        if error.code() in FENCED:
            return KielGroupsError(
                f"the target {self._target.servers} has fenced this task: another task uses the transactional id"
                f" {self.transactional_id}, or a transaction was open for longer than transaction.timeout.ms"
            )
        return KielGroupsError(f"the target {self._target.servers} refuses to {what}: {error.str()}")


def _bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def _source_headers(partition: TopicPartition, offset: int) -> list[tuple[str, bytes]]:
    return [("kiel.source.partition", str(partition).encode()), ("kiel.source.offset", str(offset).encode())]
