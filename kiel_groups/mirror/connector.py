"""Mirror topics to another cluster: ``Mirror``."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from kiel_groups.config import ResetPolicy, check_name
from kiel_groups.errors import ConfigError, KielGroupsError, NoBrokersError, OffsetOutOfRangeError
from kiel_groups.mirror.metrics import MirrorMetrics
from kiel_groups.mirror.values import CLAIMS_TOPIC, MirroredTopic, SourceBatch, WriterSettings
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.sync import SingleConsumer
from kiel_groups.workers.plugins.config_definition import (
    ConfigDefinition,
    ConfigKey,
    Password,
    Settings,
    Validator,
    between,
    non_empty,
    one_of,
)
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    JsonObject,
    SourceConnector,
    SourcePosition,
    SourceTask,
    SourceTaskContext,
)
from kiel_groups.workers.plugins.standard_keys import TOPIC_NAME

if TYPE_CHECKING:
    from kiel_groups.mirror.target import TargetCluster
    from kiel_groups.mirror.writer import TargetWriter

log = logging.getLogger(__name__)

_TOPIC = "${topic}"
#: The setting of a task that has its partitions; the connector writes it.
_PARTITIONS = "mirror.partitions"
#: How long the target and the source may refuse the preparation of tasks, in seconds.
_PATIENCE_S = 60.0
#: The limit of the topic of dead letters: what the writers' producers send at most.
_DEAD_LETTER_BYTES = 100_000_000


def set_of(partition: TopicPartition, sets: int) -> int:
    """
    Return the number of the set that a partition belongs to.

    The number depends on nothing but the arguments. So every task that ever writes a partition uses the same
    transactional id. The partitions of one topic are spread evenly.
    """
    return (zlib.crc32(partition.topic.encode()) + partition.partition) % sets


def partitions_of_tasks(topics: Iterable[MirroredTopic], sets: int, most: int) -> list[list[TopicPartition]]:
    """Return the partitions of each task. All partitions of a set belong to one task; no task is without partitions."""
    tasks: list[list[TopicPartition]] = [[] for _ in range(most)]
    for topic in topics:
        for number in range(topic.partitions):
            partition = TopicPartition(topic.source, number)
            tasks[set_of(partition, sets) % most].append(partition)
    return [partitions for partitions in tasks if partitions]


def timestamp_of(field: str, value: memoryview | None) -> int:
    """
    Return the timestamp in a field of a JSON value, in milliseconds, or 0 if there is none.

    Args:
        field: The name of the field. It has a number of milliseconds since 1970, or a text in ISO 8601 with a zone.
        value: The value of the record.
    """
    try:
        found = json.loads(bytes(value or b""))[field]
        if isinstance(found, str):
            moment = datetime.fromisoformat(found)
            found = moment.timestamp() * 1000 if moment.tzinfo else 0
        number = int(found)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return 0
    return number if 0 < number < 1 << 63 else 0


def _target_of(settings: Settings) -> TargetCluster:
    try:
        from kiel_groups.mirror.target import TargetCluster
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Mirror: confluent-kafka is missing in {sys.executable}; install kiel-groups[mirror]"
        ) from error
    properties = json.loads(settings["target.properties"].value or "{}")
    return TargetCluster({"bootstrap.servers": settings["target.bootstrap.servers"], **properties})


def _is_properties(password: Password) -> bool:
    try:
        found = json.loads(password.value or "{}")
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and all(isinstance(each, str | int | float | bool) for each in found.values())


def _target_name(settings: Settings, topic: str) -> str:
    name: str = settings["target.topic.format"].replace(_TOPIC, topic)
    return check_name(name, "topic")


_source = partial(ConfigKey, group="Source", importance="high")
_target = partial(ConfigKey, group="Target", importance="high")
_records = partial(ConfigKey, group="Records", importance="low")

_CONFIG = ConfigDefinition(
    _source(
        "source.bootstrap.servers",
        documentation="Brokers of the source: host:port, separated by commas.",
        validator=non_empty(),
        width="long",
    ),
    _source(
        "source.zookeeper",
        default="",
        documentation="ZooKeeper of the source, with its chroot. It has the settings of topics, which the target's "
        "topics get. Without it, they get the target's defaults.",
        width="long",
    ),
    _source(
        "topics",
        "list",
        documentation="The topics to mirror, separated by commas. In a name, * matches any characters, and ? "
        "matches one. Internal topics are not mirrored.",
        validator=non_empty(),
        width="long",
    ),
    _source(
        "source.auto.offset.reset",
        default="none",
        documentation="What happens if the source has deleted records before they were mirrored: none fails the "
        "task, earliest continues with the first record that is left.",
        validator=one_of("none", "earliest"),
        importance="low",
    ),
    _source(
        "refresh.interval.ms",
        "int",
        60_000,
        documentation="How often the source is asked for new topics and partitions, in milliseconds.",
        validator=between(100, 86_400_000),
        importance="low",
    ),
    _target(
        "target.bootstrap.servers",
        documentation="Brokers of the target: host:port, separated by commas.",
        validator=non_empty(),
        width="long",
    ),
    _target(
        "target.properties",
        "password",
        Password(""),
        documentation="More settings of librdkafka for the target as a JSON object, such as "
        '{"security.protocol": "SSL"}.',
        validator=Validator(_is_properties, "a JSON object of texts and numbers"),
        importance="medium",
        width="long",
    ),
    _target(
        "target.topic.format",
        default=_TOPIC,
        documentation="The name of a topic on the target; ${topic} is replaced by its name on the source.",
        validator=Validator(lambda text: _TOPIC in text, "a text with ${topic}"),
        importance="medium",
    ),
    _target(
        "target.replication.factor",
        "int",
        -1,
        documentation="The replicas of topics that are created; -1 leaves the number to the target.",
        validator=Validator(lambda number: number == -1 or 0 < number < 1 << 15, "-1, or a number from 1"),
        importance="medium",
    ),
    _target(
        "target.compression.type",
        default="lz4",
        documentation="The codec of the records on the target.",
        validator=one_of("none", "gzip", "snappy", "lz4", "zstd"),
        importance="medium",
    ),
    _target(
        "exactly.once",
        "boolean",
        False,
        documentation="Whether each record is written once, also after a crash. Consumers of the target have to "
        "read committed records only.",
    ),
    _target(
        "partition.sets",
        "int",
        8,
        documentation="The number of fixed sets of partitions. A set belongs to one task, and has one transactional "
        "id, so more tasks than sets have nothing to do. The number cannot change.",
        validator=between(1, 1_000),
        importance="low",
    ),
    _records(
        "timestamp.field",
        default="",
        documentation="The field of JSON values that has a record's time: milliseconds since 1970, or a text in ISO "
        "8601 with a zone. Other records get the time of mirroring.",
    ),
    _records(
        "headers.source",
        "boolean",
        False,
        documentation="Whether records get the headers kiel.source.partition and kiel.source.offset.",
    ),
    _records(
        "dead.letter.topic",
        default="",
        documentation="The topic of the target for records that are larger than their topic allows. Without it, such a "
        "record fails the task.",
        validator=Validator(lambda name: not name or TOPIC_NAME.accepts(name), TOPIC_NAME.expected),
    ),
    _records(
        "batch.records",
        "int",
        20_000,
        documentation="The most records that are written, and with exactly.once committed, together.",
        validator=between(1, 1_000_000),
    ),
)


class MirrorTask(SourceTask):
    """
    Copies the records of fixed partitions to the target, in their order.

    The source offsets that the worker stores are the positions of an at-least-once task. With ``exactly.once``, the
    positions are the checkpoints on the target, and the stored source offsets only show the progress.
    """

    config = _CONFIG + ConfigDefinition(
        ConfigKey(_PARTITIONS, documentation="The topics and numbers of the task's partitions, as a JSON array.")
    )

    def __init__(self) -> None:
        self._consumer: SingleConsumer | None = None
        self._writers: dict[int, TargetWriter] = {}
        self._is_source_gone = False
        #: The error of a batch whose other sets were written. The next ``poll`` raises this error.
        self._error: KielGroupsError | None = None

    def start(self, context: SourceTaskContext, settings: Settings) -> None:
        target = _target_of(settings)
        from kiel_groups.mirror.writer import TargetWriter

        self._context, self._settings = context, settings
        self._partitions = [TopicPartition(topic, number) for topic, number in json.loads(settings[_PARTITIONS])]
        self._progress = MirrorMetrics(context.metrics, self._partitions)
        names = {partition.topic: _target_name(settings, partition.topic) for partition in self._partitions}
        self._names = names
        field: str = settings["timestamp.field"]
        shared = WriterSettings(
            mirror=context.connector,
            is_exactly_once=settings["exactly.once"],
            compression=settings["target.compression.type"],
            timestamps=partial(timestamp_of, field) if field else None,
            has_headers=settings["headers.source"],
            dead_letter_topic=settings["dead.letter.topic"],
        )
        # A batch that is larger than its topic allows would be refused as a whole.
        batch_bytes = min(1_000_000, target.largest_messages(sorted(set(names.values()))) * 9 // 10)
        for number in sorted({self._set_of(partition) for partition in self._partitions}):
            self._writers[number] = TargetWriter(target, shared, number, batch_bytes, context)
        positions = self._positions(context)
        reset: ResetPolicy = settings["source.auto.offset.reset"]
        self._consumer = SingleConsumer(settings["source.bootstrap.servers"], auto_offset_reset=reset)
        for topic in names:
            numbers = [partition.partition for partition in self._partitions if partition.topic == topic]
            own = {partition: offset for partition, offset in positions.items() if partition.topic == topic}
            self._consumer.subscribe(topic, own, numbers)

    def poll(self) -> Sequence[SourcePosition]:
        assert self._consumer is not None
        if self._error is not None:
            raise self._error
        self._progress.measure(self._consumer.lag)
        try:
            found = self._consumer.consume_batches(timeout_ms=250, max_records=self._settings["batch.records"])
        except NoBrokersError as error:
            self._report_source(f"the source does not answer: {error}; trying again")
            return []
        except OffsetOutOfRangeError as error:
            raise KielGroupsError(
                f"{error}; records of the source were deleted before they were mirrored: to accept that, set"
                " source.auto.offset.reset to earliest"
            ) from error
        self._report_source("")
        by_set: dict[int, list[SourceBatch]] = {}
        for partition, columns in found.items():
            batch = SourceBatch(partition, columns, self._names[partition.topic])
            by_set.setdefault(self._set_of(partition), []).append(batch)
        written: list[SourcePosition] = []
        for number, batches in by_set.items():
            self._progress.begin(batches)
            try:
                self._writers[number].write(batches)
            except KielGroupsError as error:
                if not written:
                    raise
                self._error = error
                break
            self._progress.end(batches)
            written += [
                SourcePosition(_source_partition(batch.partition), {"offset": batch.next_offset}) for batch in batches
            ]
        return written

    def stop(self) -> None:
        for writer in self._writers.values():
            writer.close()
        if self._consumer is not None:
            self._consumer.close()

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
        Return the source position of each partition that has one.

        Raises:
            KielGroupsError: The target has lost checkpoints of an exactly-once mirror.
        """
        stored = {
            partition: offset["offset"]
            for partition in self._partitions
            if (offset := context.run(context.offset(_source_partition(partition)))) is not None
        }
        if not self._settings["exactly.once"]:
            return stored
        found: dict[TopicPartition, int] = {}
        for writer in self._writers.values():
            found |= writer.positions()
        found = {partition: found[partition] for partition in self._partitions if partition in found}
        if lost := sorted(each for each in stored if found.get(each, -1) < stored[each]):
            at = f"at offset {found[lost[0]]}" if lost[0] in found else "missing"
            raise KielGroupsError(
                f"the target's last checkpoint of {lost[0]}, which was mirrored up to offset {stored[lost[0]]}, is"
                f" {at}: records would be written again; delete the connector's target topics and the connector, or"
                " restore the checkpoints"
            )
        return found


def _source_partition(partition: TopicPartition) -> JsonObject:
    return {"topic": partition.topic, "partition": partition.partition}


class MirrorConnector(SourceConnector):
    """Mirrors topics of any cluster from 0.8 on to a cluster of 0.11 or later, with partitions, keys and order."""

    version: ClassVar[str] = "1.0"
    task_class = MirrorTask
    config = _CONFIG

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._target = _target_of(settings)
        self._ended = threading.Event()
        #: The topics that the tasks were made for last. The worker calls ``task_configs`` next.
        self._known: dict[str, int] = {}
        self._watching = threading.Thread(target=self._watch, name=f"mirror {context.name}", daemon=True)
        self._watching.start()

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
            pause_s *= 2

    def _configured(self, most: int) -> Sequence[Mapping[str, str]]:
        """Prepare the target for the topics of the source, and return the settings of each task."""
        self._known = self._topics()
        topics, settings = [self._described(*topic) for topic in self._known.items()], self._settings
        target = self._target
        replication: int = settings["target.replication.factor"]
        target.create_checkpoints(self._context.name, settings["partition.sets"], replication)
        # Claimed first: a topic of another mirror stays as it is.
        target.claim(self._context.name, settings["source.bootstrap.servers"], topics)
        target.create(topics, replication)
        if dead := settings["dead.letter.topic"]:
            target.create([MirroredTopic(dead, dead, 1, {"max.message.bytes": str(_DEAD_LETTER_BYTES)})], replication)
        return [
            {**self._context.config, _PARTITIONS: json.dumps(partitions)}
            for partitions in partitions_of_tasks(topics, settings["partition.sets"], most)
        ]

    def stop(self) -> None:
        if hasattr(self, "_ended"):
            self._ended.set()

    def _topics(self) -> dict[str, int]:
        """
        Return the number of partitions of each topic to mirror.

        Raises:
            ConfigError: No topic of the source has one of the names.
        """
        with SingleConsumer(self._settings["source.bootstrap.servers"]) as consumer:
            names = consumer.topics()
            patterns: list[str] = self._settings["topics"]
            found: dict[str, int] = {}
            for pattern in patterns:
                matching = [name for name in names if fnmatchcase(name, pattern) and name != CLAIMS_TOPIC]
                if not matching:
                    raise ConfigError(f"topics: the source has no topic {pattern!r}")
                found |= {name: len(consumer.partitions_for_topic(name) or ()) for name in matching}
        return dict(sorted(found.items()))

    def _described(self, topic: str, partitions: int) -> MirroredTopic:
        config: Mapping[str, str] | None = None
        if hosts := self._settings["source.zookeeper"]:
            config = ZooKeeperTopics(hosts).describe([topic]).states[0].config
        return MirroredTopic(topic, _target_name(self._settings, topic), partitions, config or {})

    def _watch(self) -> None:
        while not self._ended.wait(self._settings["refresh.interval.ms"] / 1000):
            try:
                if self._topics() != self._known:
                    self._context.request_task_reconfiguration()
            except KielGroupsError as error:
                log.warning("%s: cannot read the topics of the source: %s", self._context.name, error)
            except Exception as error:
                self._context.raise_error(error)
                return
