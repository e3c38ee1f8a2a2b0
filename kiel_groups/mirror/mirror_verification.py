"""Verify that a mirror has every record of its source: read both clusters, and compare their partitions."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, groupby, islice, takewhile
from typing import Any, NamedTuple

from kiel_groups import model
from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.mirror.checkpoints import MirroredPartition, aligned
from kiel_groups.mirror.comparison import (
    ALL,
    BEFORE,
    DELETED,
    UNLIKE,
    WAITING,
    Beginning,
    Comparison,
    PartitionComparison,
    Records,
    beginning_of,
    digest_of,
)
from kiel_groups.mirror.mirror_view import source_logs
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import BACK, RETURNING, Claim
from kiel_groups.sync import SingleConsumer
from kiel_groups.wording import some

#: The most records of a read.
_MOST_RECORDS = 10_000
#: How long the source may deliver no record, in seconds.
_PATIENCE_S = 30.0
#: How long the rest of a log that its leader counts may have no record for consumers, in seconds.
_REST_S = 3.0
#: How often the progress is shown, in seconds.
_SHOW_S = 0.5

#: Which mirrored records of a topic are compared, and why no others: by whether they end at a turn round, and whether
#: they begin at a turn forward.
_PARTS = {
    (False, False): "",
    (False, True): "only records since its last turn forward are compared, as each side may have earlier ones twice",
    (True, False): "records before its turn round",
    (True, True): "only records between its last turn forward and its turn round are compared, as each side may have"
    " earlier ones twice",
}
_PART_BACK = "records since its turn round, which are copied back"

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
    #: Which records are compared: one of ``_PARTS``.
    part: str


class _WayBack(NamedTuple):
    """
    A partition that is copied back: its logs since the turn on the target and, if it has the partition, on the source.

    ``begun`` has the offsets of the turn on both sides, and ``position`` is the offset of the target up to which it is
    copied back.
    """

    partition: model.TopicPartition
    target: str
    begun: tuple[int, int]
    target_log: tuple[int, int]
    source_log: tuple[int, int] | None
    position: int
    is_compacted: bool


class MirrorVerification:
    """
    Compares a mirror with its source: each record once, in order, by digests of key and value.

    Of a topic that was turned round, the records that were copied back since then are compared, too.

    The mirror may continue meanwhile. Records after the present ends of the logs are not compared. The calls block.

    Args:
        brokers: The brokers of the source: ``host:port``, separated by commas.
        target: The target of the mirror.
        mirror: The name of the mirror's connector.
        topics: The topics of the source to compare. In a name, * matches any characters, and ? matches one.
        dead_letter_topic: The topic of the target with the dead letters of the mirror, or "".
        copied_back: Returns the offset up to which a partition of the target is copied back. Without it, records that
            the source lacks count as not copied back yet.
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
        copied_back: Callable[[model.TopicPartition], int] = lambda _: 0,
        progress: Progress = lambda *_: None,
    ) -> None:
        self._brokers = brokers
        self._target = target
        self._mirror = mirror
        self._topics = topics
        self._dead_letter_topic = dead_letter_topic
        self._copied_back = copied_back
        #: What is copied back of the topics, which ``_partitions`` sets.
        self._ways_back: list[_WayBack] = []
        self._progress = progress
        self._done = self._total = 0
        self._shown_s = 0.0

    def run(self) -> Iterator[PartitionComparison]:
        """Compare one partition after the other, and yield the result of each, and for each direction."""
        known = {claim.topic: (name, claim) for name, claim in self._target.claims_of(self._mirror).items()}
        names = {pattern: [each for each in known if fnmatchcase(each, pattern)] for pattern in self._topics}
        if missing := [pattern for pattern, found in names.items() if not found]:
            others = some(sorted(known)) or "none"
            raise ConfigError(f"the mirror {self._mirror!r} has no topic {some(missing)}; its topics are {others}")
        topics = {topic: known[topic] for topic in sorted({*chain(*names.values())})}
        with SingleConsumer(self._brokers, auto_offset_reset="none") as source:
            partitions = self._partitions(source, topics)
            logs = [each.source_log for each in partitions] + [each.source_log for each in self._ways_back]
            self._total = sum(end - start for start, end in filter(None, logs))
            for topic, own in groupby(partitions, key=lambda each: each.partition.topic):
                listed = list(own)
                if any(each.mirrored is not None and each.mirrored.is_hashed for each in listed):
                    yield self._compare_hashed(topic, listed, source)
                else:
                    yield from (self._compare(each, source) for each in listed)
                back = [each for each in self._ways_back if each.partition.topic == topic]
                yield from (self._compare_back(each, source) for each in back)

    def _partitions(self, source: SingleConsumer, topics: Mapping[str, tuple[str, Claim]]) -> list[_Partition]:
        # In this order, each record before the end of the target is before the end of the source.
        target_logs = self._target.logs(name for name, _ in topics.values())
        mirrored, sources = self._target.mirrored(self._mirror), source_logs(source, topics)
        settings = self._target.settings(sorted({each.topic for each in target_logs}))
        dead_letters = self._dead_letters()
        self._ways_back = list(self._found_back(topics, sources, mirrored, settings))
        found: list[_Partition] = []
        for each, source_log in sources.items():
            name, claim = topics[each.topic]
            own = {other.partition: log for other, log in target_logs.items() if other.topic == name}
            how_far = mirrored.get(each)
            if is_back := claim.direction in (BACK, RETURNING):
                # What follows was written on the target, and copied back at least once.
                source_log = _cut(source_log, how_far.position if how_far else 0)
                # Of a partition that is newer than the turn, no record was mirrored.
                starts = dict(enumerate(claim.starts))
                own = {number: _cut(log, starts.get(number, 0)) for number, log in own.items()}
            dead: Collection[int] = dead_letters.get(each, ())
            resumed, part = claim.resume(each.partition) or 0, _PARTS[is_back, bool(claim.resumes)]
            is_compacted = _is_compacted(settings, name)
            found.append(_Partition(each, name, source_log, own, how_far, dead, is_compacted, resumed, part))
        return found

    def _found_back(
        self,
        topics: Mapping[str, tuple[str, Claim]],
        sources: Mapping[model.TopicPartition, tuple[int, int]],
        mirrored: Mapping[model.TopicPartition, MirroredPartition],
        settings: Mapping[str, Mapping[str, str]],
    ) -> Iterator[_WayBack]:
        """Yield what is copied back, since its turn round. The ends of the source were read before."""
        back = {name: (topic, claim) for topic, (name, claim) in topics.items() if claim.direction in (BACK, RETURNING)}
        for copy, (start, end) in (self._target.logs(back) if back else {}).items():
            topic, claim = back[copy.topic]
            partition = model.TopicPartition(topic, copy.partition)
            begun, source_log = claim.start(copy.partition), sources.get(partition)
            if source_log is None and begun >= end:
                continue
            turned = source_log[0] if source_log is not None else 0
            if source_log is not None and partition in mirrored:
                # At the turn, all records of the source were mirrored.
                turned = mirrored[partition].position
                source_log = max(turned, source_log[0]), source_log[1]
            position, log = max(begun, self._copied_back(copy)), (max(begun, start), end)
            compacted = _is_compacted(settings, copy.topic)
            yield _WayBack(partition, copy.topic, (begun, turned), log, source_log, position, compacted)

    def _compare(self, each: _Partition, source: SingleConsumer) -> PartitionComparison:
        """Compare the mirrored records of a partition."""
        result, number = PartitionComparison(each.partition, each.target, part=each.part), each.partition.partition
        if (target_log := each.target_logs.get(number)) is None:
            result.refusal = f"{each.target} has no such partition"
            return result
        source_log, limits = each.source_log, [] if each.mirrored is None else aligned(each.mirrored, number)
        if each.resumed:
            # Before the last turn forward, each side may have records twice that were copied back.
            limits = [limit for limit in limits if limit[0] >= each.resumed]
            if not limits:
                text = "the mirror has not continued since its topic was turned forward; verify again when it has"
                result.refusal = text
                return result
            # The part says that earlier records are not compared.
            source_log = max(source_log[0], limits[0][0]), source_log[1]
            target_log = max(target_log[0], limits[0][1]), target_log[1]
        return _compared(
            result,
            limits,
            (source_log, target_log),
            partial(self._of_source, source, each.partition),
            partial(self._of_target, each.target, number),
            position=each.mirrored.position if each.mirrored else source_log[0],
            dead_letters=each.dead_letters,
            is_compacted=each.is_compacted,
        )

    def _compare_back(self, each: _WayBack, source: SingleConsumer) -> PartitionComparison:
        """Compare what is copied back of a partition, as if the target were the source."""
        result = PartitionComparison(each.partition, each.target, part=_PART_BACK, is_back=True)
        if each.source_log is None:
            result.refusal = "the source has no such partition, so the records wait"
            return result
        _compared(
            result,
            [each.begun],
            (each.target_log, each.source_log),
            partial(self._of_target, each.target, each.partition.partition),
            partial(self._of_source, source, each.partition),
            position=each.position,
            is_compacted=each.is_compacted,
        )
        result.turn_sides()
        return result

    def _compare_hashed(
        self, topic: str, partitions: Sequence[_Partition], source: SingleConsumer
    ) -> PartitionComparison:
        """Compare the number and the sum of the records of a topic whose keys are hashed anew."""
        first, sums, waiting = partitions[0], [[0, 0], [0, 0]], 0
        for each in partitions:
            start, end = _cut(each.source_log, each.mirrored.position if each.mirrored else 0)
            waiting += each.source_log[1] - end
            for records in self._of_source(source, each.partition, start, end):
                pairs = zip(records.offsets, records.digests, strict=True)
                _add(sums[0], [digest for offset, digest in pairs if offset not in each.dead_letters])
        for number, (start, end) in first.target_logs.items():
            for records in self._of_target(first.target, number, start, end):
                _add(sums[1], records.digests)
        (count, total), (other, other_total) = sums
        result = PartitionComparison(model.TopicPartition(topic, ALL), first.target, records=(count + waiting, other))
        if (count, total) == (other, other_total):
            result.equal = count
        else:
            result.add_range(UNLIKE, None, None, max(1, abs(count - other)))
        if waiting:
            result.counts[WAITING] = waiting
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
                yield Records(list(columns.offsets[:count]), list(map(digest_of, keys, values)))
                self._show(partition, min(columns.next_offset, end) - position)
                position, idle_s = columns.next_offset, time.monotonic()
            waited_s = time.monotonic() - idle_s
            # The last offsets may be those of markers of transactions.
            if waited_s > _REST_S and (consumer.highwater(partition) or 0) >= end:
                return
            if waited_s > _PATIENCE_S:
                raise KielGroupsError(f"the source does not deliver the records of {partition} from {position} on")

    def _of_target(self, topic: str, number: int, start: int, end: int) -> Iterator[Records]:
        """Yield the committed records of a partition of the target between two offsets."""
        messages = self._target.messages(topic, number, start=start) if start < end else iter(())
        before_end = takewhile(lambda message: (message.offset() or 0) < end, messages)
        while found := list(islice(before_end, _MOST_RECORDS)):
            digests = [digest_of(message.key(), message.value()) for message in found]
            yield Records([message.offset() or 0 for message in found], digests)

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
                place, offset = (headers.get(name) or b"" for name in (_PARTITION_HEADER, _OFFSET_HEADER))
                # Another message of the topic is no dead letter of a mirror.
                with suppress(ValueError):
                    partition = model.TopicPartition.parse(place.decode() if isinstance(place, bytes) else place)
                    found.setdefault(partition, set()).add(int(offset))
        return found


def _add(total: list[int], digests: Sequence[bytes]) -> None:
    """Add digests to the number and the sum of others."""
    total[0] += len(digests)
    total[1] = (total[1] + sum(int.from_bytes(each) for each in digests)) % (1 << 64)


def _is_compacted(settings: Mapping[str, Mapping[str, str]], topic: str) -> bool:
    return "compact" in settings.get(topic, {}).get("cleanup.policy", "")


def _cut(log: tuple[int, int], end: int) -> tuple[int, int]:
    """Return the start of a log, and its end or an earlier one."""
    return log[0], max(log[0], min(log[1], end))


def _compared(
    result: PartitionComparison,
    limits: Sequence[tuple[int, int]],
    logs: tuple[tuple[int, int], tuple[int, int]],
    source: Callable[[int, int], Iterator[Records]],
    target: Callable[[int, int], Iterator[Records]],
    **more: Any,
) -> PartitionComparison:
    """
    Compare two logs from the first place on that both have, and return the result.

    Args:
        result: The result, to which the differences are added.
        limits: The checkpoints.
        logs: The start and the end of both logs.
        source: Returns the records of the first log between two offsets.
        target: The same of the second log.
        more: More arguments of ``Comparison``.
    """
    starts, ends = (logs[0][0], logs[1][0]), (logs[0][1], logs[1][1])
    if (beginning := beginning_of(limits, starts)) is None:
        result.refusal = "each side has deleted what the other side has left"
        return result
    result.compared = (beginning.source, ends[0]), (beginning.target, ends[1])
    _note_earlier(result, starts, limits, beginning)
    both = source(beginning.source, ends[0]), target(beginning.target, ends[1])
    Comparison(result, limits, beginning, *both, ends[0], **more).run()
    return result


def _note_earlier(
    result: PartitionComparison, starts: tuple[int, int], limits: Sequence[tuple[int, int]], beginning: Beginning
) -> None:
    """Report the records before the beginning of a comparison: of these, the other side has none, or has none left."""
    first = limits[0] if limits else starts
    for side, start, at in ((0, starts[0], beginning.source), (1, starts[1], beginning.target)):
        begun = min(max(first[side], start), at)
        for kind, one, other in ((BEFORE, start, begun), (DELETED, begun, at)):
            if one < other:
                own = one, other
                result.add_range(kind, own if side == 0 else None, own if side == 1 else None, other - one)
