"""Verify that a mirror has every record of its source: read both clusters, and compare their partitions."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from itertools import chain, groupby
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kiel_groups import model
from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.mirror.checkpoints import MirroredPartition, aligned
from kiel_groups.mirror.comparison import (
    ALL,
    BEFORE,
    DELETED,
    UNLIKE,
    Beginning,
    Difference,
    PartitionComparison,
    Records,
    beginning_of,
    compare,
    digest_of,
)
from kiel_groups.mirror.target import PASSING, TargetCluster
from kiel_groups.mirror.values import BACK, RETURNING, Claim
from kiel_groups.sync import SingleConsumer
from kiel_groups.wording import some

#: The most records of a read, and how long one read waits, in seconds.
_MOST_RECORDS, _READ_S = 10_000, 0.1
#: How long a side may deliver no record, in seconds.
_PATIENCE_S = 30.0
#: How long the rest of a log that its leader counts may have no record for consumers, in seconds.
_REST_S = 3.0
#: How often the progress is shown, in seconds.
_SHOW_S = 0.5

#: Called with the partition, and with how many records of the source are read, of how many at most.
Progress = Callable[[model.TopicPartition, int, int], object]

#: The headers of a dead letter that name its source.
_PARTITION_HEADER, _OFFSET_HEADER = "kiel.source.partition", "kiel.source.offset"


class _Partition(NamedTuple):
    """A partition to compare: the ends of its log and of those of the target topic, and how far it is mirrored."""

    partition: model.TopicPartition
    target: str
    source_log: tuple[int, int]
    target_logs: Mapping[int, tuple[int, int]]
    mirrored: MirroredPartition | None
    dead_letters: Collection[int]
    is_compacted: bool
    #: Where the mirror has continued on the source after the last turn forward, or 0.
    resumed: int


class MirrorVerification:
    """
    Compares a mirror with its source: each record once, in order, by digests of key and value.

    The mirror may continue meanwhile. Records after the present ends of the logs are not compared. The calls block.

    Args:
        brokers: The brokers of the source: ``host:port``, separated by commas.
        target: The target of the mirror.
        mirror: The name of the mirror's connector.
        topics: The topics of the source to compare. In a name, * matches any characters, and ? matches one.
        dead_letter_topic: The topic of the target with the dead letters of the mirror, or "".
        progress: Called about twice a second.

    Raises:
        ConfigError: The target has no such mirror, the mirror has no such topic, or the source has lost one.
        KielGroupsError: A cluster does not answer.
    """

    def __init__(
        self,
        brokers: str,
        target: TargetCluster,
        mirror: str,
        *,
        topics: Sequence[str] = ("*",),
        dead_letter_topic: str = "",
        progress: Progress = lambda *_: None,
    ) -> None:
        self._brokers = brokers
        self._target = target
        self._mirror = mirror
        self._topics = topics
        self._dead_letter_topic = dead_letter_topic
        self._progress = progress
        self._done = self._total = 0
        self._shown_s = 0.0

    def run(self) -> Iterator[PartitionComparison]:
        """Compare one partition after the other, and yield the result of each."""
        claims = self._target.claims_of(self._mirror)
        names = {claim.topic: target for target, claim in sorted(claims.items())}
        matching = {pattern: [each for each in names if fnmatchcase(each, pattern)] for pattern in self._topics}
        if missing := [pattern for pattern, found in matching.items() if not found]:
            known = some(sorted(names)) or "none"
            raise ConfigError(f"the mirror {self._mirror!r} has no topic {some(missing)}; its topics are {known}")
        names = {topic: names[topic] for topic in sorted(set(chain.from_iterable(matching.values())))}
        with (
            SingleConsumer(self._brokers, auto_offset_reset="none") as source,
            closing(self._target.consumer()) as target,
        ):
            partitions = self._partitions(source, {topic: (name, claims[name]) for topic, name in names.items()})
            self._total = sum(end - start for each in partitions for start, end in [each.source_log])
            for topic, own in groupby(partitions, key=lambda each: each.partition.topic):
                listed = list(own)
                if any(each.mirrored is not None and each.mirrored.is_hashed for each in listed):
                    yield self._compare_hashed(topic, listed, source, target)
                else:
                    yield from (self._compare(each, source, target) for each in listed)

    def _partitions(self, source: SingleConsumer, topics: Mapping[str, tuple[str, Claim]]) -> list[_Partition]:
        names = {topic: name for topic, (name, _) in topics.items()}
        # In this order, each record before the end of the target is before the end of the source.
        target_logs = self._target.logs(names.values())
        mirrored = self._target.mirrored(self._mirror)
        if gone := sorted(names.keys() - source.topics()):
            raise ConfigError(f"the source {self._brokers} has no topic {some(gone)}")
        wanted = [
            model.TopicPartition(topic, number)
            for topic in names
            for number in sorted(source.partitions_for_topic(topic) or ())
        ]
        starts, ends = source.beginning_offsets(wanted), source.end_offsets(wanted)
        targets = {each.topic for each in target_logs}
        settings = self._target.settings(sorted(targets))
        dead_letters = self._dead_letters()
        found: list[_Partition] = []
        for each in wanted:
            name, claim = topics[each.topic]
            own = {other.partition: log for other, log in target_logs.items() if other.topic == name}
            source_log, how_far = (starts[each], ends[each]), mirrored.get(each)
            if claim.direction in (BACK, RETURNING):
                # What follows was written on the target, and copied back at least once.
                source_log = starts[each], min(ends[each], how_far.position if how_far else 0)
                own = {
                    number: (start, min(end, claim.starts[number]))
                    for number, (start, end) in own.items()
                    if number < len(claim.starts)
                }
            is_compacted = "compact" in settings.get(name, {}).get("cleanup.policy", "")
            dead: Collection[int] = dead_letters.get(each, ())
            resumed = max(claim.resumes[each.partition :][:1], default=0)
            found.append(_Partition(each, name, source_log, own, how_far, dead, is_compacted, resumed))
        return found

    def _compare(self, each: _Partition, source: SingleConsumer, target: Consumer) -> PartitionComparison:
        """Compare one partition."""
        result, begun, number = PartitionComparison(each.partition, each.target), self._done, each.partition.partition
        if (target_log := each.target_logs.get(number)) is None:
            result.refusal = f"{each.target} has no such partition"
            return result
        limits = [] if each.mirrored is None else aligned(each.mirrored, number)
        # Before the last turn forward, each side may have records twice that were copied back.
        limits = [limit for limit in limits if limit[0] >= each.resumed]
        starts = each.source_log[0], target_log[0]
        beginning = beginning_of(limits, starts)
        if each.resumed and not limits:
            result.refusal = "the mirror has not continued since its topic was turned forward"
            return result
        if beginning is None:
            result.refusal = "each side has deleted what the other side has left"
            return result
        _note_earlier(result, starts, limits, beginning)
        compare(
            result,
            each.mirrored,
            limits,
            beginning,
            self._of_source(source, each.partition, beginning.source, each.source_log[1]),
            self._of_target(target, each.target, number, beginning.target, target_log[1]),
            each.source_log[1],
            dead_letters=each.dead_letters,
            is_compacted=each.is_compacted,
        )
        self._done = begun + each.source_log[1] - each.source_log[0]
        return result

    def _compare_hashed(
        self, topic: str, partitions: Sequence[_Partition], source: SingleConsumer, target: Consumer
    ) -> PartitionComparison:
        """Compare the number and the sum of the records of a topic whose keys are hashed anew."""
        first, sums = partitions[0], [[0, 0], [0, 0]]
        for each in partitions:
            end = min(each.source_log[1], each.mirrored.position if each.mirrored else 0)
            for records in self._of_source(source, each.partition, each.source_log[0], end):
                pairs = zip(records.offsets, records.digests, strict=True)
                _add(sums[0], [digest for offset, digest in pairs if offset not in each.dead_letters])
        for number, (start, end) in first.target_logs.items():
            for records in self._of_target(target, first.target, number, start, end):
                _add(sums[1], records.digests)
        (count, total), (other, other_total) = sums
        result = PartitionComparison(model.TopicPartition(topic, ALL), first.target, records=(count, other))
        if (count, total) == (other, other_total):
            result.equal = count
        else:
            result.counts[UNLIKE] = max(1, abs(count - other))
            result.differences.append(Difference(UNLIKE, None, None, result.counts[UNLIKE]))
        return result

    def _of_source(
        self, consumer: SingleConsumer, partition: model.TopicPartition, start: int, end: int
    ) -> Iterator[Records]:
        """Yield the records of a partition of the source between two offsets."""
        if start >= end:
            return
        consumer.unsubscribe()
        consumer.subscribe(partition.topic, {partition: start}, [partition.partition])
        position, idle_s = start, time.monotonic()
        while position < end:
            try:
                found = consumer.consume_batches(timeout_ms=1_000, max_records=_MOST_RECORDS)
            except OffsetOutOfRangeError as error:
                raise KielGroupsError(f"the source has deleted records while they were compared: {error}") from error
            for columns in found.get(partition, ()):
                count = bisect_left(columns.offsets, end)
                keys, values = columns.keys.to_list()[:count], columns.values.to_list()[:count]
                position, idle_s = columns.next_offset, time.monotonic()
                yield Records(list(columns.offsets[:count]), list(map(digest_of, keys, values)))
                self._show(partition, count)
            waited_s = time.monotonic() - idle_s
            # The last offsets may be those of markers of transactions.
            if waited_s > _REST_S and (consumer.highwater(partition) or 0) >= end:
                return
            if waited_s > _PATIENCE_S:
                raise KielGroupsError(f"the source does not deliver the records of {partition} from {position} on")

    def _of_target(self, consumer: Consumer, topic: str, number: int, start: int, end: int) -> Iterator[Records]:
        """Yield the committed records of a partition of the target between two offsets."""
        if start >= end:
            return
        consumer.assign([TopicPartition(topic, number, start)])
        idle_s = time.monotonic()
        while True:
            found: list[Message] = []
            for message in consumer.consume(_MOST_RECORDS, _READ_S):
                if (error := message.error()) is None and (message.offset() or 0) < end:
                    found.append(message)
                elif error is None or error.code() == KafkaError._PARTITION_EOF:
                    yield _records(found)
                    return
                elif error.code() not in PASSING:
                    raise self._target.failure(f"read {topic}", KafkaException(error))
            if found:
                idle_s = time.monotonic()
                yield _records(found)
            elif time.monotonic() - idle_s > _PATIENCE_S:
                raise KielGroupsError(f"the target {self._target.servers} does not answer: cannot read {topic}")

    def _show(self, partition: model.TopicPartition, count: int) -> None:
        self._done += count
        if (now_s := time.monotonic()) - self._shown_s > _SHOW_S:
            self._shown_s = now_s
            self._progress(partition, self._done, self._total)

    def _dead_letters(self) -> dict[model.TopicPartition, set[int]]:
        """Return the source offsets of the dead letters."""
        topic = self._dead_letter_topic
        found: dict[model.TopicPartition, set[int]] = {}
        if topic:
            if (count := self._target.partitions().get(topic)) is None:
                raise ConfigError(f"the target {self._target.servers} has no topic of dead letters {topic!r}")
            for message in self._target.messages(topic, *range(count)):
                headers = dict(message.headers() or ())
                # Another message of the topic is no dead letter of a mirror.
                with suppress(ValueError):
                    partition = model.TopicPartition.parse(_text(headers.get(_PARTITION_HEADER)))
                    found.setdefault(partition, set()).add(int(_text(headers.get(_OFFSET_HEADER))))
        return found


def _text(header: str | bytes | None) -> str:
    return header.decode("utf-8", "replace") if isinstance(header, bytes) else header or ""


def _records(messages: list[Message]) -> Records:
    digests = [digest_of(message.key(), message.value()) for message in messages]
    return Records([message.offset() or 0 for message in messages], digests)


def _add(total: list[int], digests: Sequence[bytes]) -> None:
    """Add digests to the number and the sum of others."""
    total[0] += len(digests)
    total[1] = (total[1] + sum(int.from_bytes(each) for each in digests)) % (1 << 64)


def _note_earlier(
    result: PartitionComparison, starts: tuple[int, int], limits: Sequence[tuple[int, int]], beginning: Beginning
) -> None:
    """Report the records before the beginning of a comparison: of these, the other side has none, or has none left."""
    first = limits[0] if limits else starts
    for side, start, at in ((0, starts[0], beginning.source), (1, starts[1], beginning.target)):
        begun = min(max(first[side], start), at)
        for kind, one, other in ((BEFORE, start, begun), (DELETED, begun, at)):
            if one < other:
                result.counts[kind] += other - one
                own = one, other
                result.add_range(kind, own if side == 0 else None, own if side == 1 else None, other - one)
