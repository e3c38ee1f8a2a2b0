"""Copy records that were written on the target of a mirror back to the source: a topic that was turned round."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as TargetPartition

from kiel_groups.errors import KielGroupsError, TaskStoppedError
from kiel_groups.mirror.directions import DirectionCheck
from kiel_groups.mirror.metrics import BackMetrics
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.target_errors import PASSING
from kiel_groups.mirror.values import LostTopicsError, lost_copy_advice
from kiel_groups.model import TopicPartition
from kiel_groups.sync import Producer
from kiel_groups.wire.error_codes import MESSAGE_SIZE_TOO_LARGE
from kiel_groups.wording import counted, some
from kiel_groups.workers.plugins.interfaces import JsonObject, SourcePosition, TaskContext

log = logging.getLogger(__name__)

#: How long one call waits, in seconds, before it is checked whether the task must stop.
_SLICE_S = 0.25
#: How long the source may take to store records, in seconds, before the status of the task reports the delay.
_LATE_S = 10.0
#: How long a task that ends waits for the records in flight, in milliseconds.
_CLOSE_MS = 1_000
#: How long the source may wait for replicas, in milliseconds. A batch whose replicas are late is stored already, and
#: would be stored again by the next try. Within replica.lag.time.max.ms, by default 10 s, a follower that is gone is no
#: longer waited for.
_ACKS_MS = 30_000
#: The source may be gone for long. The task is stopped before the producer gives up.
_RETRIES = 1_000_000


def back_partition(partition: TopicPartition) -> JsonObject:
    """Return the source partition under which the worker stores the position in a partition of the target."""
    return {"cluster": "target", "topic": partition.topic, "partition": partition.partition}


class BackCopier:
    """
    Copies the committed records of the target's partitions to the same partitions of the source, at least once.

    Keys, null values and the order of each partition are kept. Messages of 0.8 have neither timestamps nor headers, so
    both are dropped.

    Args:
        target: The target cluster.
        brokers: The addresses of the source's brokers.
        topics: The name on the source of each topic of the target.
        positions: The offset of each partition of the target to continue from.
        ends: Where each partition of the source ended after the last record that was mirrored or copied back, by
            partition of the target; None if that is not known. A warning counts the records of others since then.
        check: The check that the topics are still copied back.
        context: The functions of the worker.
        progress: The metrics of the partitions.
        most: The most records that are copied together.
        resets: Whether to continue with the first record that is left if the target has deleted records before they
            were copied.
    """

    def __init__(
        self,
        target: TargetCluster,
        brokers: str,
        topics: Mapping[str, str],
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int | None],
        check: DirectionCheck,
        context: TaskContext,
        progress: BackMetrics,
        *,
        most: int,
        resets: bool,
    ) -> None:
        self._target = target
        self._brokers = brokers
        self._topics = topics
        self._positions = dict(positions)
        self._check = check
        self._context = context
        self._progress = progress
        self._most = most
        #: The end of each partition of the source after the last record that was mirrored or copied back.
        self._ends = {partition: end for partition, end in ends.items() if end is not None}
        self._consumer = target.consumer({"auto.offset.reset": "earliest" if resets else "error"})
        #: The topics that are not copied back any more. Their partitions are not assigned.
        self._turned: frozenset[str] = frozenset()
        #: The partitions without a committed record after those that were read.
        self._ended: set[TopicPartition] = set()
        self._assign()
        self._producer = Producer(brokers, batch_size=1_000, linger_ms=5, retries=_RETRIES, ack_timeout=_ACKS_MS)

    def copy(self) -> list[SourcePosition]:
        """
        Copy the next records, and return the positions after them when all in-sync replicas of the source have them.

        Raises:
            LostTopicsError: A topic of the target was deleted, perhaps created again.
            KielGroupsError: The source refuses a record, or the target has deleted records.
            TaskStoppedError: The task must stop.
        """
        found: dict[TopicPartition, list[Message]] = {}
        for message in self._consumer.consume(self._most, _SLICE_S):
            partition = TopicPartition(message.topic() or "", message.partition() or 0)
            if (error := message.error()) is None:
                if (offset := message.offset() or 0) < self._positions[partition]:
                    raise self._lost(partition, offset)
                found.setdefault(partition, []).append(message)
                self._ended.discard(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(partition)
            elif error.code() not in PASSING:
                raise self._failure(partition, error)
        read = {partition.topic for partition in found}
        if (found or self._check.is_due) and (turned := self._check.turned(read)) != self._turned:
            log.info(
                "%s of the target: %s are not copied back now", self._target.servers, some(sorted(turned)) or "none"
            )
            self._turned = turned
            # What was read is read again, or by another task after another turn.
            self._assign()
            return []
        sent = {partition: self._send(partition, messages) for partition, messages in found.items()}
        for partition, messages in found.items():
            self._await(partition, messages, *sent[partition])
            self._positions[partition] = _next_offset(messages)
            self._progress.end(partition, len(messages))
        self._progress.measure(self._left)
        return [
            SourcePosition(back_partition(each), {"offset": self._positions[each], "end": self._ends[each]})
            for each in found
        ]

    def _left(self, partition: TopicPartition) -> int | None:
        """Return how many offsets of a partition of the target are left to copy, or None if that is not known yet."""
        if partition in self._ended or partition.topic in self._turned:
            return 0
        # As of the last answer of the target.
        _, end = self._consumer.get_watermark_offsets(TargetPartition(*partition), cached=True)
        return None if end < 0 else max(0, end - self._positions[partition])

    def _assign(self) -> None:
        self._ended.clear()
        positions = [each for each in self._positions.items() if each[0].topic not in self._turned]
        self._consumer.assign([TargetPartition(*partition, offset) for partition, offset in positions])

    def close(self) -> None:
        """Drop the records in flight, and close the connections."""
        self._consumer.close()
        self._producer.close(_CLOSE_MS)

    def _send(self, partition: TopicPartition, messages: Sequence[Message]) -> tuple[Future[Any], Future[Any]]:
        """Return the outcome of all records but the last one, and that of the last one."""
        topic, number = self._topics[partition.topic], partition.partition
        keys, values = [message.key() for message in messages], [message.value() for message in messages]
        many = self._producer.produce_many(topic, values[:-1], keys[:-1], number)
        return many, self._producer.produce(topic, values[-1], keys[-1], number)

    def _await(self, partition: TopicPartition, messages: Sequence[Message], *sent: Future[Any]) -> None:
        """Wait until the source has stored records, and report other records between them."""
        began_s, is_late = time.monotonic(), False
        for outcome in sent:
            while not outcome.done():
                # A stop in order stores the positions after records in flight, so that these are not copied again.
                if self._context.should_stop and time.monotonic() - began_s > _CLOSE_MS / 1000:
                    raise TaskStoppedError(f"stopped while {self._brokers} stores records")
                if time.monotonic() - began_s > _LATE_S and not is_late:
                    is_late = True
                    self._context.metrics.count("mirror_problems")
                    problem = f"the source {self._brokers} has not stored records of {partition} within {_LATE_S:g} s"
                    log.warning("%s; trying again", problem)
                    self._context.report_problem(f"{problem}; trying again")
                try:
                    outcome.exception(_SLICE_S)
                except TimeoutError:
                    continue
            try:
                outcome.result()
            except KielGroupsError as error:
                raise self._refusal(partition, messages, error) from error
        if is_late:
            self._context.report_problem("")
        end: int = sent[-1].result().offset + 1
        if (others := end - len(messages) - self._ends.get(partition, end - len(messages))) > 0:
            log.warning(
                "%s:%d: %s of the source not from the target: a producer still writes there, or records were stored"
                " twice; such records are not mirrored",
                self._topics[partition.topic],
                partition.partition,
                counted(others, "record"),
            )
        self._ends[partition] = end

    def _refusal(self, partition: TopicPartition, messages: Sequence[Message], error: KielGroupsError) -> Exception:
        hint = ""
        if getattr(error, "code", None) == MESSAGE_SIZE_TOO_LARGE.number:
            largest = max(messages, key=len)
            hint = f"; the largest one has {len(largest):,} bytes and offset {largest.offset()}"
        return KielGroupsError(
            f"the source refuses records of {partition} from offset {messages[0].offset()} on: {error}{hint}"
        )

    def _failure(self, partition: TopicPartition, error: KafkaError) -> KielGroupsError:
        position = self._positions[partition]
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART):
            _, end = self._target.logs([partition.topic]).get(partition, (0, None))
            if end is None or end < position:
                return self._lost(partition, end)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return KielGroupsError(
                f"{partition} of the target does not have offset {position}, where the copies back continue"
                f" ({error.str()}): records were deleted before they were copied; to accept that, set"
                " source.auto.offset.reset to earliest"
            )
        return KielGroupsError(f"the target {self._target.servers}: cannot read {partition}: {error.str()}")

    def _lost(self, partition: TopicPartition, offset: int | None) -> LostTopicsError:
        """Return the error for a log that is at an offset before the position, or gone."""
        now = "is gone" if offset is None else f"is at {offset} again"
        text = (
            f"{partition} of the target was copied back up to offset {self._positions[partition]}, and its log"
            f" {now}: the topic was deleted and created again, or has lost records;"
            f" {lost_copy_advice(self._topics[partition.topic])}"
        )
        return LostTopicsError({partition.topic: text})


def _next_offset(messages: Sequence[Message]) -> int:
    return (messages[-1].offset() or 0) + 1
