"""Mirror topics to another cluster: ``Mirror``."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any, ClassVar

from kiel_groups.config import ResetPolicy, check_name
from kiel_groups.errors import (
    BrokerError,
    ConfigError,
    KielGroupsError,
    OffsetOutOfRangeError,
    RetriableBrokerError,
    TaskStoppedError,
)
from kiel_groups.mirror.directions import DirectionCheck
from kiel_groups.mirror.metrics import MirrorMetrics
from kiel_groups.mirror.settings import CONFIG, hashed_partitions, parse_properties
from kiel_groups.mirror.values import (
    BACK,
    BACK_KEY,
    CLAIMS_TOPIC,
    FORWARD,
    INTERRUPTED,
    OWN_TOPICS,
    PARTITIONS_KEY,
    Claim,
    MirroredTopic,
    SourceBatch,
    TopicLimits,
    Turn,
    WriterSettings,
    set_of,
    target_topic,
)
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.sync import SingleConsumer
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from kiel_groups.wording import some
from kiel_groups.workers.plugins.config_definition import (
    ConfigDefinition,
    ConfigKey,
    Settings,
)
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    JsonObject,
    SourceConnector,
    SourcePosition,
    SourceTask,
    SourceTaskContext,
)

if TYPE_CHECKING:
    from kiel_groups.mirror.back import BackCopier
    from kiel_groups.mirror.target import TargetCluster
    from kiel_groups.mirror.writer import TargetWriter

log = logging.getLogger(__name__)

#: How long the target and the source may refuse the preparation of tasks, in seconds.
_PATIENCE_S = 60.0
#: The longest pause before the tasks are prepared again, in seconds. The connector cannot stop meanwhile.
_LONGEST_PAUSE_S = 4
#: The pause before a cluster that does not answer is asked again, in seconds.
_PAUSE_S = 0.25
#: The limit of the topic of dead letters: what the writers' producers send at most.
_DEAD_LETTER_BYTES = 100_000_000


def source_topics(brokers: str, patterns: Iterable[str], *, may_be_mirrors: bool = False) -> dict[str, int]:
    """
    Return the number of partitions of each topic of the source that a mirror copies.

    Args:
        brokers: Brokers of the source.
        patterns: Names of topics, which may have the wildcards ``*`` and ``?``.
        may_be_mirrors: Whether the topics may be mirrors themselves.

    Raises:
        ConfigError: No topic of the source has one of the names, or a topic is a mirror.
        NoBrokersError: No broker answers.
    """
    found: dict[str, int] = {}
    with SingleConsumer(brokers) as consumer:
        names = consumer.topics()
        for pattern in patterns:
            matching = [name for name in names if fnmatchcase(name, pattern) and not name.startswith(OWN_TOPICS)]
            if not matching:
                raise ConfigError(f"topics: the source has no topic {pattern!r}")
            found |= {name: len(consumer.partitions_for_topic(name) or ()) for name in matching}
    # A topic that is being created has no partitions yet. The next call finds them.
    found = {name: count for name, count in found.items() if count}
    if CLAIMS_TOPIC in names and not may_be_mirrors:
        claims = open_target({"bootstrap.servers": brokers}).claims()
        if mirrored := sorted(claims.keys() & found.keys()):
            claim = claims[mirrored[0]]
            raise ConfigError(
                f"topics: {mirrored[0]} of the source is itself the mirror of {claim.topic} of {claim.source} by the"
                f" connector {claim.mirror!r}, and a topic has one direction: 'kiel-groups mirror reverse' turns it"
                " round; for a chain of clusters that does not lead back, set source.mirrors to true"
            )
    return dict(sorted(found.items()))


def check_starts(brokers: str, starts: str, topics: Mapping[str, int]) -> None:
    """
    Check that the source has the offsets at which partitions begin.

    Args:
        brokers: Brokers of the source.
        starts: The setting ``start.offsets``.
        topics: The number of partitions of each topic to mirror.

    Raises:
        ConfigError: A partition is not mirrored, or its log ends before its offset.
        KielGroupsError: The source does not answer.
    """
    found = json.loads(starts or "{}")
    wanted = {TopicPartition(topic, int(number)): at for topic, each in found.items() for number, at in each.items()}
    if unknown := [each for each in wanted if each.partition >= topics.get(each.topic, 0)]:
        raise ConfigError(f"start.offsets: {some(unknown)} given; the mirror has no such partition")
    if wanted:
        with SingleConsumer(brokers) as consumer:
            ends = consumer.end_offsets(list(wanted))
        for partition, at in sorted(wanted.items()):
            if at > ends[partition]:
                raise ConfigError(
                    f"start.offsets: {at} given for {partition}; expected at most {ends[partition]}, where its log on"
                    " the source ends: a greater offset would skip records"
                )


def partitions_of_tasks(topics: Iterable[MirroredTopic], sets: int, most: int) -> list[list[TopicPartition]]:
    """Return the partitions of each task. All partitions of a set belong to one task; no task is without partitions."""
    tasks: list[list[TopicPartition]] = [[] for _ in range(most)]
    for topic in topics:
        for number in range(topic.partitions):
            partition = TopicPartition(topic.source, number)
            tasks[set_of(partition, sets) % most].append(partition)
    return [partitions for partitions in tasks if partitions]


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


def open_target(config: Mapping[str, Any]) -> TargetCluster:
    """
    Return the target cluster of a mirror.

    Args:
        config: The settings of librdkafka for the clients of the target, such as ``bootstrap.servers``.

    Raises:
        ConfigError: confluent-kafka is not installed, or refuses a setting.
    """
    try:
        from kiel_groups.mirror.target import TargetCluster
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Mirror: confluent-kafka is missing in {sys.executable}; install kiel-groups[mirror]"
        ) from error
    return TargetCluster(config)


def _target_of(settings: Settings) -> TargetCluster:
    properties = parse_properties(settings["target.properties"].value)
    return open_target({"bootstrap.servers": settings["target.bootstrap.servers"], **properties})


def _target_name(settings: Settings, topic: str) -> str:
    return check_name(target_topic(settings["target.topic.format"], topic), "topic")


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
        self._copies: Iterator[Callable[[], Sequence[SourcePosition]]] = repeat(self._copy)
        self._is_source_gone = False
        #: The topics that are not subscribed yet, because the source has not answered since the start.
        self._unsubscribed: list[str] = []
        #: The first positions of partitions that begin after records which the target has already.
        self._begun: list[SourcePosition] = []
        #: The numbers of the mirrored records and of their bytes, by partition.
        self._counts: dict[TopicPartition, tuple[int, int]] = {}
        #: The error of a batch whose other sets were written. The next ``poll`` raises this error.
        self._error: BaseException | None = None

    def start(self, context: SourceTaskContext, settings: Settings) -> None:
        self._context, self._settings = context, settings
        problem = ""
        while True:
            try:
                self._start()
                break
            except KielGroupsError as error:
                self._close()
                if not error.retriable:
                    raise
                if problem != (problem := f"{error}; trying again"):
                    log.warning("%s: %s", context.connector, problem)
                    context.report_problem(problem)
                if context.run(context.pause(_PAUSE_S)):
                    raise TaskStoppedError(f"stopped while {settings['target.bootstrap.servers']} is gone") from error
        if problem:
            context.report_problem("")

    def _start(self) -> None:
        context, settings = self._context, self._settings
        target = _target_of(settings)
        target.should_stop = lambda: context.should_stop
        self._partitions = [TopicPartition(topic, number) for topic, number in json.loads(settings[PARTITIONS_KEY])]
        self._names = {partition.topic: _target_name(settings, partition.topic) for partition in self._partitions}
        claims = target.claims()
        self._claims = {name: claim for name, claim in claims.items() if claim.mirror == context.connector}
        self._check = self._checked(target, self._names.values(), FORWARD)
        starts = [(TopicPartition(topic, number), start) for topic, number, start in json.loads(settings[BACK_KEY])]
        if self._partitions:
            self._start_forward(target)
        if starts:
            self._back = self._start_back(target, starts)
            self._copies = cycle([self._copy, self._back.copy]) if self._partitions else repeat(self._back.copy)

    def _checked(self, target: TargetCluster, topics: Iterable[str], direction: str) -> DirectionCheck:
        """Return the check that target topics still have their present claims, with a direction."""
        expected = {name: self._claims[name]._replace(direction=direction) for name in topics if name in self._claims}
        return DirectionCheck(target, self._context.connector, dict.fromkeys(topics) | expected, self._context)

    def _start_forward(self, target: TargetCluster) -> None:
        from kiel_groups.mirror.writer import TargetWriter

        context, settings, names = self._context, self._settings, self._names
        self._progress = MirrorMetrics(context.metrics, self._partitions)
        field: str = settings["timestamp.field"]
        topics = target.settings(sorted(set(names.values())))
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
        for number in sorted({self._set_of(partition) for partition in self._partitions}):
            self._writers[number] = TargetWriter(target, shared, number, batch_bytes, context)
        self._next = self._positions(context)
        for writer in self._writers.values():
            writer.check_ends(names)
        self._begin(target)
        reset: ResetPolicy = settings["source.auto.offset.reset"]
        self._consumer = SingleConsumer(settings["source.bootstrap.servers"], auto_offset_reset=reset)
        self._unsubscribed = list(names)

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
            resumed = claim.resumes[partition.partition :][:1] if claim else ()
            if resumed and self._next.get(partition, -1) < resumed[0]:
                begun[partition] = resumed[0]
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
        self._begun = [self._position(*each) for each in known.items()]

    def _start_back(self, target: TargetCluster, starts: Sequence[tuple[TopicPartition, int]]) -> BackCopier:
        from kiel_groups.mirror.back import BackCopier, back_partition

        context, settings = self._context, self._settings
        topics = {_target_name(settings, partition.topic): partition.topic for partition, _ in starts}
        positions: dict[TopicPartition, int] = {}
        for partition, start in starts:
            target_partition = TopicPartition(_target_name(settings, partition.topic), partition.partition)
            stored = context.run(context.offset(back_partition(target_partition)))
            claim = self._claims.get(target_partition.topic)
            turned = max(claim.starts[partition.partition :][:1], default=0) if claim else 0
            positions[target_partition] = max(start, turned, stored["offset"] if stored else 0)
        return BackCopier(
            target,
            settings["source.bootstrap.servers"],
            topics,
            positions,
            self._checked(target, topics, BACK),
            context,
            most=settings["batch.records"],
            resets=settings["source.auto.offset.reset"] == "earliest",
        )

    def poll(self) -> Sequence[SourcePosition]:
        return next(self._copies)()

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
            found = self._consumer.consume_batches(timeout_ms=250, max_records=self._settings["batch.records"])
        except OffsetOutOfRangeError as error:
            self._check_ends(self._consumer.end_offsets(self._next))
            raise KielGroupsError(
                f"{error}; records of the source were deleted before they were mirrored: to accept that, set"
                " source.auto.offset.reset to earliest"
            ) from error
        except BrokerError as error:
            if not error.retriable:
                raise
            self._report_source(f"the source does not answer: {error}; trying again")
            self._context.run(self._context.pause(_PAUSE_S))
            return []
        self._report_source("")
        self._check_ends({partition: columns[0].first_offset for partition, columns in found.items()})
        self._progress.begin(found)
        found = self._kept(found)
        by_set: dict[int, list[SourceBatch]] = {}
        is_hashed = bool(self._settings["target.partitions"])
        for partition, columns in found.items():
            batch = SourceBatch(partition, columns, self._names[partition.topic], is_hashed)
            by_set.setdefault(self._set_of(partition), []).append(batch)
        return self._write(by_set)

    def _write(self, by_set: Mapping[int, Sequence[SourceBatch]]) -> list[SourcePosition]:
        """Write the batches of all sets at once, and return the positions after those that the target has stored."""
        writing = {number: self._threads.submit(self._writers[number].write, by_set[number]) for number in by_set}
        written: list[SourcePosition] = []
        failed: list[BaseException] = []
        for number, outcome in writing.items():
            if error := outcome.exception():
                failed.append(error)
                continue
            self._progress.end(by_set[number])
            written += map(self._counted, by_set[number])
            self._next |= {batch.partition: batch.next_offset for batch in by_set[number]}
        if failed and not written:
            raise failed[0]
        self._error = failed[0] if failed else None
        return written

    def _lags(self) -> dict[TopicPartition, int]:
        """Return the lag of each partition that is copied to the target, as of the last answer of the source."""
        assert self._consumer is not None
        paused = self._consumer.paused()
        return {partition: lag for partition, lag in self._consumer.lag().items() if partition not in paused}

    def _check_ends(self, found: Mapping[TopicPartition, int]) -> None:
        """
        Check that the source's partitions have not started over: that none is at an offset before its position.

        Raises:
            KielGroupsError: A partition has, so its records would be taken for records that are mirrored.
        """
        for partition, offset in sorted(found.items()):
            if offset < (position := self._next.get(partition, 0)):
                raise KielGroupsError(
                    f"{partition} of the source was mirrored up to offset {position}, and its log is at {offset} again:"
                    " the topic was deleted and created again, or has lost records; mirror it by a connector of another"
                    " name to another topic (target.topic.format)"
                )

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
        stopped = {partition for partition in self._partitions if self._names[partition.topic] in turned}
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
        """Subscribe to the topics of the task. If the source does not answer, the next call subscribes to the rest."""
        while self._unsubscribed:
            topic = self._unsubscribed[-1]
            numbers = [partition.partition for partition in self._partitions if partition.topic == topic]
            starts = {partition: offset for partition, offset in self._next.items() if partition.topic == topic}
            consumer.subscribe(topic, starts, numbers)
            self._unsubscribed.pop()

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

    def _positions(self, context: SourceTaskContext) -> dict[TopicPartition, int]:
        """
        Return the source position of each partition that has one, and set the counts of the records before.

        Raises:
            KielGroupsError: The target has lost checkpoints of an exactly-once mirror, or has none of a partition that
                was mirrored.
        """
        stored: dict[TopicPartition, int] = {}
        for partition in self._partitions:
            if (offset := context.run(context.offset(_source_partition(partition)))) is not None:
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
        for partition, before in stored.items():
            # The records of transactions after the last stored offset; the size of these records is not known.
            records, size = self._counts[partition]
            self._counts[partition] = records + found[partition] - before, size
        return found


def _source_partition(partition: TopicPartition) -> JsonObject:
    return {"topic": partition.topic, "partition": partition.partition}


class MirrorConnector(SourceConnector):
    """Mirrors topics of any cluster from 0.8 on to a cluster of 0.11 or later, with partitions, keys and order."""

    version: ClassVar[str] = "1.0"
    task_class = MirrorTask
    config = CONFIG

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._target = _target_of(settings)
        self._ended = threading.Event()
        #: The topics and the turns that the tasks were made for last. The worker calls ``task_configs`` next.
        self._known: tuple[Mapping[str, int], Mapping[str, tuple[Turn, int]]] = {}, {}
        self._watching = threading.Thread(target=self._watch, name=f"mirror {context.name}", daemon=True)
        self._watching.start()

    def checked_topics(self, name: str, settings: Settings, *, timeout_s: float, must_move: bool) -> dict[str, int]:
        """
        Check, without a change, whether both clusters permit a mirror. No other method was called before.

        Args:
            name: The name of the mirror.
            settings: The settings of the mirror.
            timeout_s: How long to wait for the target's first answer, in seconds.
            must_move: Whether each topic must be copied in some direction.

        Returns:
            The number of partitions of each topic to mirror.

        Raises:
            ConfigError: A setting is wrong, or claims or topics of the target are in the way.
            KielGroupsError: A cluster does not answer, or a topic is stopped that must move.
        """
        self._settings = settings
        known, target = self._topics(), _target_of(settings)
        topics, source = [self._described(*topic) for topic in known.items()], settings["source.bootstrap.servers"]
        claims = target.check(name, source, settings["partition.sets"], topics, timeout_s=timeout_s)
        for topic in topics if must_move else ():
            if (claim := claims.get(topic.target)) and (stop := INTERRUPTED.get(claim.direction)):
                raise KielGroupsError(f"the topic {topic.source} {stop}")
        check_starts(source, settings["start.offsets"], known)
        return known

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        began_s, pause_s = time.monotonic(), 1
        while True:
            try:
                return self._configured(most)
            except ConfigError:
                raise
            except KielGroupsError as error:
                # A cluster is gone for now, or another mirror claims topics at this moment.
                if time.monotonic() - began_s + pause_s > _PATIENCE_S:
                    raise
                log.warning("%s: %s; trying again in %d s", self._context.name, error, pause_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _configured(self, most: int) -> Sequence[Mapping[str, str]]:
        """Prepare the target for the topics of the source, and return the settings of each task."""
        known = self._topics()
        topics, settings = [self._described(*topic) for topic in known.items()], self._settings
        target = self._target
        replication: int = settings["target.replication.factor"]
        target.create_checkpoints(self._context.name, settings["partition.sets"], replication)
        # Claimed first: a topic of another mirror stays as it is.
        claims = target.claim(self._context.name, settings["source.bootstrap.servers"], topics)
        check_starts(settings["source.bootstrap.servers"], settings["start.offsets"], known)
        target.create(topics, replication)
        turns = self._turns(claims)
        self._known = known, turns
        if dead := settings["dead.letter.topic"]:
            target.create([MirroredTopic(dead, dead, 1, {"max.message.bytes": str(_DEAD_LETTER_BYTES)})], replication)
        moving, starts = list[MirroredTopic](), dict[str, dict[int, int]]()
        for topic in topics:
            turn, partitions = turns[topic.target]
            direction = turn.direction
            if direction in INTERRUPTED:
                log.warning("%s: topic %s %s", self._context.name, topic.source, INTERRUPTED[direction])
                continue
            moving.append(topic)
            if direction == BACK:
                starts[topic.source] = dict(enumerate(claims[topic.target].starts))
                if partitions > topic.partitions:
                    raise ConfigError(
                        f"the target topic {topic.target} has {partitions} partitions, and the source topic"
                        f" {topic.source}, which it is copied back to, has {topic.partitions}; expected as many: add"
                        " partitions on the source"
                    )
        return [
            {
                **self._context.config,
                PARTITIONS_KEY: json.dumps([each for each in partitions if each.topic not in starts]),
                BACK_KEY: json.dumps(
                    # A partition that is newer than the turn is copied back from its beginning.
                    [(*each, starts[each.topic].get(each.partition, 0)) for each in partitions if each.topic in starts]
                ),
            }
            for partitions in partitions_of_tasks(moving, settings["partition.sets"], most)
        ]

    def _turns(self, claims: Mapping[str, Claim]) -> dict[str, tuple[Turn, int]]:
        """Return the turn of each target topic of the mirror, and the partitions of those that are copied back."""
        own = {topic: claim.turn for topic, claim in claims.items() if claim.mirror == self._context.name}
        is_back = {topic for topic, turn in own.items() if turn.direction == BACK}
        counts = self._target.partitions() if is_back else {}
        return {topic: (turn, counts.get(topic, 0) if topic in is_back else 0) for topic, turn in own.items()}

    def stop(self) -> None:
        if hasattr(self, "_ended"):
            self._ended.set()

    def _topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic to mirror; see ``source_topics``."""
        settings = self._settings
        return source_topics(
            settings["source.bootstrap.servers"], settings["topics"], may_be_mirrors=settings["source.mirrors"]
        )

    def _described(self, topic: str, partitions: int) -> MirroredTopic:
        config: Mapping[str, str] | None = None
        created = 0
        if hosts := self._settings["source.zookeeper"]:
            state = ZooKeeperTopics(hosts).describe([topic]).states[0]
            config, created = state.config, state.created
        hashed = hashed_partitions(self._settings["target.partitions"], topic, partitions)
        return MirroredTopic(topic, _target_name(self._settings, topic), partitions, config or {}, created, hashed)

    def _watch(self) -> None:
        while not self._ended.wait(self._settings["refresh.interval.ms"] / 1000):
            try:
                if (self._topics(), self._turns(self._target.claims())) != self._known:
                    self._context.request_task_reconfiguration()
            except KielGroupsError as error:
                again_s = self._settings["refresh.interval.ms"] / 1000
                text = "%s: its tasks stay as they are: %s; looking for changes again in %g s"
                log.warning(text, self._context.name, error, again_s)
            except Exception as error:
                self._context.raise_error(error)
                return
