"""The task of the connector ``Mirror``: copy the records of fixed partitions, in either direction."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from kiel_groups.config import ResetPolicy
from kiel_groups.errors import (
    BrokerError,
    ConfigError,
    KielGroupsError,
    OffsetOutOfRangeError,
    RetriableBrokerError,
    TaskStoppedError,
)
from kiel_groups.metrics import Metrics
from kiel_groups.mirror.checkpoints import source_end
from kiel_groups.mirror.directions import DirectionCheck
from kiel_groups.mirror.metrics import BackMetrics, MirrorMetrics
from kiel_groups.mirror.settings import CONFIG, target_name, target_of
from kiel_groups.mirror.values import (
    BACK,
    BACK_KEY,
    ELSEWHERE,
    FORWARD,
    PARTITIONS_KEY,
    SETTLED_S,
    LostTopicsError,
    SourceBatch,
    TopicLimits,
    WriterSettings,
    gone_text,
    set_of,
)
from kiel_groups.model import TopicPartition
from kiel_groups.sync import SingleConsumer
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from kiel_groups.wording import some
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings
from kiel_groups.workers.plugins.interfaces import JsonObject, SourcePosition, SourceTask, SourceTaskContext

if TYPE_CHECKING:
    from kiel_groups.mirror.back import BackCopier
    from kiel_groups.mirror.target import TargetCluster
    from kiel_groups.mirror.writer import TargetWriter

log = logging.getLogger(__name__)

#: The pause before a cluster that does not answer is asked again, in seconds.
_PAUSE_S = 0.25


def timestamp_of(field: str, value: bytes | None) -> int:
    """
    Return the timestamp in a field of a JSON value, in milliseconds, or 0 if there is none.

    Args:
        field: The name of the field. It has a number of milliseconds since 1970, or a text in ISO 8601 with a zone.
        value: The value of the record.
    """
    try:
        found = json.loads(value or b"")[field]
        if isinstance(found, str):
            moment = datetime.fromisoformat(found)
            found = moment.timestamp() * 1000 if moment.tzinfo else 0
        number = int(found)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return 0
    return number if 0 < number < 1 << 63 else 0


class MirrorTask(SourceTask):
    """
    Copies the records of fixed partitions to the target, in their order.

    The source offsets that the worker stores are the positions of an at-least-once task. With ``exactly.once``, the
    positions are the checkpoints on the target, and the stored source offsets only show the progress.
    """

    config = CONFIG + ConfigDefinition(
        ConfigKey(PARTITIONS_KEY, documentation="The topics and numbers of the task's partitions, as a JSON array."),
        ConfigKey(
            BACK_KEY,
            default="[]",
            documentation="The topics and numbers of the partitions that are copied back, and the offset of the target "
            "to begin at, as a JSON array.",
        ),
    )

    def __init__(self) -> None:
        self._consumer: SingleConsumer | None = None
        self._writers: dict[int, TargetWriter] = {}
        #: A thread for each set: most of the time of a write, the target has to answer.
        self._threads = ThreadPoolExecutor(1_000, "mirror")
        self._back: BackCopier | None = None
        #: The positions of the partitions of the source. Records before them are no new ones.
        self._next: dict[TopicPartition, int] = {}
        #: The ways in which the task copies records, in turn.
        self._copies: Iterator[Callable[[], Sequence[SourcePosition]]] = cycle([self._copy])
        self._is_source_gone = False
        #: The topics that are not subscribed yet, because the source has not answered since the start.
        self._unsubscribed: list[str] = []
        #: The topics whose logs on the source have started over, or whose copies are lost. They wait until the task has
        #: other settings.
        self._left_out: set[str] = set()
        #: The metrics by topic. Each start of the copies has new ones: a topic that is left out has none.
        self._metrics = Metrics()
        #: The positions that ``poll`` has returned. The worker stores them later.
        self._returned: dict[tuple[object, ...], JsonObject] = {}
        #: The first positions of partitions that begin after records which the target has already, and the positions of
        #: those whose last transactions were followed by no stored position.
        self._begun: list[SourcePosition] = []
        #: The numbers of the mirrored records and of their bytes, by partition.
        self._counts: dict[TopicPartition, tuple[int, int]] = {}
        #: The error of a batch whose other sets were written. The next ``poll`` raises this error.
        self._error: BaseException | None = None

    def start(self, context: SourceTaskContext, settings: Settings) -> None:
        self._context, self._settings = context, settings
        self._begin_copies()

    def _begin_copies(self) -> None:
        """Start to copy all topics but those that are left out. Wait until the target answers."""
        context, problem = self._context, ""
        while True:
            try:
                self._start()
                break
            except LostTopicsError as error:
                self._leave_lost(error)
            except KielGroupsError as error:
                self._close()
                if not error.retriable:
                    raise
                if problem != (problem := f"{error}; trying again"):
                    log.warning("%s: %s", context.connector, problem)
                    context.report_problem(problem)
                if context.run(context.pause(_PAUSE_S)):
                    gone = self._settings["target.bootstrap.servers"]
                    raise TaskStoppedError(f"stopped while {gone} is gone") from error
        if problem:
            context.report_problem("")

    def _start(self) -> None:
        context, settings = self._context, self._settings
        target = target_of(settings)
        target.should_stop = lambda: context.should_stop
        context.metrics.remove(self._metrics)
        self._metrics = context.metrics.part()
        forward = [TopicPartition(topic, number) for topic, number in json.loads(settings[PARTITIONS_KEY])]
        self._partitions = [partition for partition in forward if partition.topic not in self._left_out]
        self._names = {partition.topic: target_name(settings, partition.topic) for partition in self._partitions}
        claims = target.claims()
        self._claims = {name: claim for name, claim in claims.items() if claim.mirror == context.connector}
        back = [(TopicPartition(topic, number), start) for topic, number, start in json.loads(settings[BACK_KEY])]
        starts = [(partition, start) for partition, start in back if partition.topic not in self._left_out]
        self._sources = {target_name(settings, topic): topic for topic, *_ in [*forward, *(each for each, _ in back)]}
        self._check = self._checked(target, self._names.values(), FORWARD)
        ways: list[Callable[[], Sequence[SourcePosition]]] = []
        if self._partitions:
            self._start_forward(target)
            ways.append(self._copy)
        if starts:
            self._back = self._start_back(target, starts)
            ways.append(self._back.copy)
        self._copies = cycle(ways or [self._wait])

    def _checked(self, target: TargetCluster, topics: Collection[str], direction: str) -> DirectionCheck:
        """
        Return the check that target topics still have their present claims, with a direction.

        Raises:
            LostTopicsError: Some were created again since they were claimed.
        """
        expected = {name: self._claims[name]._replace(direction=direction) for name in topics if name in self._claims}
        check = DirectionCheck(target, self._context.connector, dict.fromkeys(topics) | expected, self._context)
        check.check_ids(topics)
        return check

    def _start_forward(self, target: TargetCluster) -> None:
        from kiel_groups.mirror.writer import TargetWriter

        context, settings, names = self._context, self._settings, self._names
        self._progress = MirrorMetrics(self._metrics, self._partitions)
        for name in ("mirror_transactions_aborted", "mirror_dead_letters", "mirror_problems"):
            context.metrics.count(name, 0)
        field: str = settings["timestamp.field"]
        topics = self._topic_settings(target)
        shared = WriterSettings(
            mirror=context.connector,
            is_exactly_once=settings["exactly.once"],
            compression=settings["target.compression.type"],
            timestamps=partial(timestamp_of, field) if field else None,
            has_headers=settings["headers.source"],
            dead_letter_topic=settings["dead.letter.topic"],
            limits={topic: TopicLimits.of(each) for topic, each in topics.items()},
        )
        # A batch that is larger than its topic allows would be refused as a whole.
        batch_bytes = min(1_000_000, min(int(each["max.message.bytes"]) for each in topics.values()) * 9 // 10)
        self._begun, self._error = [], None
        for number in sorted({self._set_of(partition) for partition in self._partitions}):
            self._writers[number] = TargetWriter(target, shared, number, batch_bytes, context)
        self._next = self._positions()
        for writer in self._writers.values():
            writer.check_ends(names)
        self._begin(target)
        reset: ResetPolicy = settings["source.auto.offset.reset"]
        self._consumer = SingleConsumer(settings["source.bootstrap.servers"], auto_offset_reset=reset)
        self._unsubscribed = list(names)

    def _topic_settings(self, target: TargetCluster) -> Mapping[str, Mapping[str, str]]:
        """Return the settings of the topics of the target. Raise LostTopicsError if some are gone."""
        names = sorted(self._names.values())
        try:
            return target.settings(names)
        except KielGroupsError as error:
            present = target.partitions()
            if gone := {name: gone_text(name) for name in names if name not in present}:
                raise LostTopicsError(gone) from error
            raise

    def _begin(self, target: TargetCluster) -> None:
        """
        Begin the partitions that the mirror has not begun yet, and those whose topic was turned forward again.

        If the target has the records before a partition's position already, its checkpoint is written at once.

        Raises:
            RetriableBrokerError: Such a topic was stopped or turned since the task has read its claim. Its end on the
                target may be behind records that are to be copied back.
        """
        starts = json.loads(self._settings["start.offsets"] or "{}")
        begun: dict[TopicPartition, int | None] = {}
        for partition in self._partitions:
            claim = self._claims.get(self._names[partition.topic])
            resumed = claim.resume(partition.partition) if claim else None
            if resumed is not None and self._next.get(partition, -1) < resumed:
                begun[partition] = resumed
            elif partition not in self._next:
                begun[partition] = starts.get(partition.topic, {}).get(str(partition.partition))
        known = {partition: start for partition, start in begun.items() if start is not None}
        names = {self._names[partition.topic] for partition in known}
        logs = target.logs(sorted(names))
        # Asked after the ends: these were read while the topics were copied to the target.
        if names and (turned := names & self._check.turned()):
            raise RetriableBrokerError(f"the direction of {some(sorted(turned))} has changed since the task began")
        for number, writer in self._writers.items():
            beginnings: dict[TopicPartition, tuple[int, int] | None] = {}
            for partition, start in begun.items():
                if self._set_of(partition) == number:
                    _, end = logs.get(TopicPartition(self._names[partition.topic], partition.partition), (0, 0))
                    beginnings[partition] = None if start is None else (start, end)
            writer.begin(beginnings)
        self._next |= known
        self._begun += [self._position(*each) for each in known.items()]

    def _start_back(self, target: TargetCluster, starts: Sequence[tuple[TopicPartition, int]]) -> BackCopier:
        from kiel_groups.mirror.back import BackCopier, back_partition

        context, settings = self._context, self._settings
        topics = {target_name(settings, partition.topic): partition.topic for partition, _ in starts}
        positions, ends = dict[TopicPartition, int](), dict[TopicPartition, int | None]()
        mirrored = target.mirrored(context.connector)
        for partition, start in starts:
            target_partition = TopicPartition(target_name(settings, partition.topic), partition.partition)
            stored = self._stored(back_partition(target_partition))
            claim = self._claims.get(target_partition.topic)
            turned = claim.start(partition.partition) if claim else 0
            positions[target_partition] = max(start, turned, stored["offset"] if stored else 0)
            ends[target_partition] = source_end(mirrored.get(partition), stored)
        return BackCopier(
            target,
            settings["source.bootstrap.servers"],
            topics,
            positions,
            ends,
            self._checked(target, topics, BACK),
            context,
            BackMetrics(self._metrics, {each: topics[each.topic] for each in positions}),
            most=settings["batch.records"],
            resets=settings["source.auto.offset.reset"] == "earliest",
        )

    def poll(self) -> Sequence[SourcePosition]:
        try:
            positions = next(self._copies)()
        except LostTopicsError as error:
            self._leave_lost(error)
            self._begin_copies()
            return []
        self._returned |= {tuple(each.source_partition.values()): each.source_offset for each in positions}
        return positions

    def _leave_lost(self, error: LostTopicsError) -> None:
        """
        End the copies, and leave out topics that are lost. The next start continues with the others.

        The status shows why a topic waits, until the connector makes the tasks without the topic. Records that were
        written without a checkpoint are written again. The next start aborts an open transaction.
        """
        self._close()
        for name, problem in error.problems.items():
            log.error("%s: %s; the topic waits", self._context.connector, problem)
            self._context.metrics.count("mirror_problems")
            self._context.report_problem(problem, self._sources[name])
            self._left_out.add(self._sources[name])

    def _wait(self) -> Sequence[SourcePosition]:
        """Copy nothing for a moment."""
        self._context.run(self._context.pause(_PAUSE_S))
        return []

    def _stored(self, partition: JsonObject) -> Mapping[str, Any] | None:
        """Return the last position of a source partition."""
        returned = self._returned.get(tuple(partition.values()))
        return self._context.run(self._context.offset(partition)) if returned is None else returned

    def _copy(self) -> Sequence[SourcePosition]:
        """Copy the next records to the target, and return the positions after them."""
        assert self._consumer is not None
        if self._error is not None:
            raise self._error
        if self._begun:
            begun, self._begun = self._begun, []
            return begun
        self._progress.measure(self._lags)
        try:
            self._subscribe(self._consumer)
            if self._unsubscribed and len(self._unsubscribed) == len(self._names):
                return self._wait()
            found = self._read(self._consumer)
        except BrokerError as error:
            if not error.retriable:
                raise
            self._report_source(f"the source does not answer: {error}; trying again")
            return self._wait()
        self._report_source("")
        self._check_restarted({partition: columns[0].first_offset for partition, columns in found.items()})
        self._progress.begin(found, self._lags)
        found = self._kept(found)
        by_set: dict[int, list[SourceBatch]] = {}
        is_hashed = bool(self._settings["target.partitions"])
        for partition, columns in found.items():
            batch = SourceBatch(partition, columns, self._names[partition.topic], is_hashed)
            by_set.setdefault(self._set_of(partition), []).append(batch)
        return self._write(by_set)

    def _read(self, consumer: SingleConsumer) -> Mapping[TopicPartition, Sequence[RecordColumns]]:
        """Read the next records. Raise KielGroupsError if the source has deleted some."""
        try:
            return consumer.consume_batches(timeout_ms=250, max_records=self._settings["batch.records"])
        except OffsetOutOfRangeError as error:
            ends = self._ends(consumer)
            if any(end < self._next[each] for each, end in ends.items()):
                # The error may be that of another partition. Until 2.1, a new leader may report an earlier end.
                self._context.run(self._context.pause(SETTLED_S))
                ends = self._ends(consumer)
            self._check_restarted(ends)
            raise KielGroupsError(
                f"{error.cause}; records of the source were deleted before they were mirrored: to accept that, set"
                " source.auto.offset.reset to earliest"
            ) from error

    def _ends(self, consumer: SingleConsumer) -> Mapping[TopicPartition, int]:
        """Return the end of the log of each partition that is read, if the source has it."""
        # Another topic may be deleted, and one that was created again may have fewer partitions.
        numbers = {each: consumer.partitions_for_topic(each) or () for each in consumer.topics()}
        read = [each for each in self._next if each.topic not in self._unsubscribed]
        return consumer.end_offsets([each for each in read if each.partition in numbers.get(each.topic, ())])

    def _write(self, by_set: Mapping[int, Sequence[SourceBatch]]) -> list[SourcePosition]:
        """Write the batches of all sets at once, and return the positions after those that the target has stored."""
        writing = {number: self._threads.submit(self._writers[number].write, by_set[number]) for number in by_set}
        written: list[SourcePosition] = []
        failed: list[BaseException] = []
        for number, outcome in writing.items():
            if error := outcome.exception():
                failed.append(error)
            batches = self._writers[number].written
            self._progress.end(batches)
            written += map(self._counted, batches)
            self._next |= {batch.partition: batch.next_offset for batch in batches}
        if failed and not written:
            raise failed[0]
        self._error = failed[0] if failed else None
        return written

    def _lags(self) -> dict[TopicPartition, int]:
        """Return how many records of each partition were not read, as of the last answer of the source."""
        assert self._consumer is not None
        # Nothing is left of a topic that was turned round.
        return self._consumer.lag() | dict.fromkeys(self._consumer.paused(), 0)

    def _check_restarted(self, offsets: Mapping[TopicPartition, int]) -> None:
        """
        Check that the logs of the source have not started over: no offset is before the position.

        Raises:
            LostTopicsError: Some have. Their records would be taken for records that are mirrored.
        """
        found = {}
        for partition, offset in sorted(offsets.items()):
            if offset < (position := self._next.get(partition, 0)):
                found[self._names[partition.topic]] = (
                    f"{partition} of the source was mirrored up to offset {position}, and its log is at {offset} again:"
                    f" the topic was deleted and created again, or has lost records; {ELSEWHERE}"
                )
        if found:
            raise LostTopicsError(found)

    def _kept(self, found: Mapping[TopicPartition, Sequence[RecordColumns]]) -> dict[TopicPartition, Any]:
        """
        Return the records of topics that are still copied to the target.

        The other topics were stopped or turned round after the task has started. Their partitions pause before the
        records that the task has read, because a stopped topic may be copied to the target again.
        """
        assert self._consumer is not None
        if not found and not self._check.is_due:
            return {}
        turned = self._check.turned()
        stopped = {each for each in self._partitions if self._names[each.topic] in turned}
        paused = self._consumer.paused()
        for partition in stopped & found.keys():
            self._consumer.seek(partition, found[partition][0].first_offset)
        if changed := stopped ^ paused:
            self._consumer.pause(*stopped - paused)
            self._consumer.resume(*paused - stopped)
            text = "paused" if stopped - paused else "continued"
            log.info("%s: %s of %s", self._context.connector, text, some(sorted({each.topic for each in changed})))
        return {partition: columns for partition, columns in found.items() if partition not in stopped}

    def stop(self) -> None:
        self._threads.shutdown()
        self._close()

    def _close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()
        if self._consumer is not None:
            self._consumer.close()
        if self._back is not None:
            self._back.close()
        self._consumer = self._back = None

    def _subscribe(self, consumer: SingleConsumer) -> None:
        """
        Subscribe to the topics of the task. If the source does not answer, the next call subscribes to the rest.

        The same holds for a topic or a partition that the source does not have: a broker may learn of new ones later
        than the broker that the connector has asked, and the connector leaves out deleted ones.
        """
        for topic in self._unsubscribed.copy():
            numbers = [partition.partition for partition in self._partitions if partition.topic == topic]
            starts = {partition: offset for partition, offset in self._next.items() if partition.topic == topic}
            problem = ""
            try:
                consumer.subscribe(topic, starts, numbers)
                self._unsubscribed.remove(topic)
            except ConfigError as error:
                problem = f"the source does not have all partitions of {topic}: {error}; trying again"
            self._context.report_problem(problem, topic)

    def _counted(self, batch: SourceBatch) -> SourcePosition:
        """Count the records of a batch that the target has stored, and return the position after them."""
        records, size = self._counts.get(batch.partition, (0, 0))
        self._counts[batch.partition] = records + batch.records, size + batch.size_bytes
        return self._position(batch.partition, batch.next_offset)

    def _position(self, partition: TopicPartition, offset: int) -> SourcePosition:
        records, size = self._counts.get(partition, (0, 0))
        return SourcePosition(_source_partition(partition), {"offset": offset, "records": records, "bytes": size})

    def _report_source(self, problem: str) -> None:
        """Show in the task's status that the source is gone, or, with "", that it is back. Each is shown once."""
        if self._is_source_gone != bool(problem):
            self._is_source_gone = bool(problem)
            self._context.metrics.count("mirror_problems", int(bool(problem)))
            log.warning("%s: %s", self._context.connector, problem or "the source answers again")
            self._context.report_problem(problem)

    def _set_of(self, partition: TopicPartition) -> int:
        return set_of(partition, self._settings["partition.sets"])

    def _positions(self) -> dict[TopicPartition, int]:
        """
        Return the source position of each partition that has one, and set the counts of the records before.

        Raises:
            KielGroupsError: The target has lost checkpoints of an exactly-once mirror, or has none of a partition that
                was mirrored.
        """
        stored: dict[TopicPartition, int] = {}
        self._counts.clear()
        for partition in self._partitions:
            if (offset := self._stored(_source_partition(partition))) is not None:
                stored[partition] = offset["offset"]
                self._counts[partition] = offset.get("records", 0), offset.get("bytes", 0)
        found: dict[TopicPartition, int] = {}
        for writer in self._writers.values():
            # An at-least-once writer learns by its checkpoints where its records on the target end.
            found |= writer.positions()
        if not self._settings["exactly.once"]:
            # Each stored position has a checkpoint, so this is another target.
            if missing := sorted(stored.keys() - found.keys()):
                raise KielGroupsError(
                    f"the target has no checkpoint of {missing[0]}, which was mirrored up to offset"
                    f" {stored[missing[0]]}: the records before are on another target; mirror to that one, or by a"
                    " connector of another name"
                )
            return stored
        found = {partition: found[partition] for partition in self._partitions if partition in found}
        if lost := sorted(each for each in stored if found.get(each, -1) < stored[each]):
            at = f"at offset {found[lost[0]]}" if lost[0] in found else "missing"
            raise KielGroupsError(
                f"the target's last checkpoint of {lost[0]}, which was mirrored up to offset {stored[lost[0]]}, is"
                f" {at}: records would be written again; restore the checkpoints, or mirror to other topics by a"
                " connector of another name"
            )
        first_offsets = {each: at for writer in self._writers.values() for each, at in writer.first_offsets.items()}
        for partition, position in found.items():
            # The records of transactions after the last stored offset; the size of these records is not known.
            records, size = self._counts.get(partition, (0, 0))
            before = stored.get(partition, first_offsets.get(partition, position))
            self._counts[partition] = records + position - before, size
        # Such a partition may get no record soon, and would show a lag.
        self._begun = [self._position(*each) for each in found.items() if each[1] != stored.get(each[0])]
        return found


def _source_partition(partition: TopicPartition) -> JsonObject:
    return {"topic": partition.topic, "partition": partition.partition}
