"""Verify that a mirror has every record of its source: read both clusters, and compare their partitions."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, groupby, islice, takewhile
from typing import NamedTuple

from kiel_groups import model
from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.mirror.checkpoints import MirroredPartition, aligned
from kiel_groups.mirror.comparison import (
    ALL,
    BEFORE,
    DELETED,
    EITHER,
    UNLIKE,
    WAITING,
    Beginning,
    Comparison,
    PartitionComparison,
    Records,
    beginning_of,
    digest_of,
    found_beginning,
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


class _Copy(NamedTuple):
    """
    A partition that is copied in one direction.

    Args:
        result: The result for it. With a refusal, nothing is compared.
        log: The start and the end of the log that had the records first: that of the source or, on the way back, that
            of the target.
        copies: The same of the logs with the copies, by number of their partition.
        limits: The checkpoints, ascending on both sides.
        position: The offset of ``log`` up to which it is copied.
        is_compacted: Whether the topic of the target is compacted.
        dead_letters: The offsets of ``log`` whose records are dead letters.
        is_hashed: Whether the keys of the topic are hashed anew.
    """

    result: PartitionComparison
    log: tuple[int, int]
    copies: Mapping[int, tuple[int, int]]
    limits: Sequence[tuple[int, int]]
    position: int
    is_compacted: bool = False
    dead_letters: Collection[int] = ()
    is_hashed: bool = False

    @property
    def source_logs(self) -> Iterable[tuple[int, int]]:
        """The starts and the ends of the logs of the source."""
        return self.copies.values() if self.result.is_back else [self.log]


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
        self._progress = progress
        self._done = self._total = 0
        #: The end of what was read of each partition of the source. The search for a beginning reads records before
        #: the comparison does, and they count once.
        self._read_to: dict[model.TopicPartition, int] = {}
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
            copies = self._copies(source, topics)
            self._total = sum(end - start for each in copies for start, end in each.source_logs)
            for topic, found in groupby(copies, key=lambda each: each.result.partition.topic):
                own = list(found)
                if any(each.is_hashed for each in own):
                    yield self._compare_hashed(topic, own, source)
                else:
                    yield from (self._compare(each, source) for each in own)

    def _copies(self, source: SingleConsumer, topics: Mapping[str, tuple[str, Claim]]) -> list[_Copy]:
        """Return what is to be compared of the topics, in their order: what was mirrored, then what was copied back."""
        # The mirror may be at work. In this order, the target's log has each record before a position, and the source's
        # log each record of the target.
        mirrored = self._target.mirrored(self._mirror)
        logs, sources = self._target.logs(name for name, _ in topics.values()), source_logs(source, topics)
        settings = self._target.settings(sorted({each.topic for each in logs}))
        compacted = {topic for topic, each in settings.items() if "compact" in each.get("cleanup.policy", "")}
        copies = [
            *self._forward(topics, sources, mirrored, logs, compacted),
            *self._back(topics, sources, mirrored, compacted),
        ]
        return sorted(copies, key=lambda each: each.result.partition.topic)

    def _forward(
        self,
        topics: Mapping[str, tuple[str, Claim]],
        sources: Mapping[model.TopicPartition, tuple[int, int]],
        mirrored: Mapping[model.TopicPartition, MirroredPartition],
        logs: Mapping[model.TopicPartition, tuple[int, int]],
        compacted: Collection[str],
    ) -> Iterator[_Copy]:
        """Yield what is mirrored."""
        dead_letters = self._dead_letters()
        hashed = {each.topic for each, how_far in mirrored.items() if how_far.is_hashed}
        for each, log in sources.items():
            (name, claim), how_far, number = topics[each.topic], mirrored.get(each), each.partition
            position = how_far.position if how_far else log[0]
            copies = {other.partition: found for other, found in logs.items() if other.topic == name}
            if is_back := claim.direction in (BACK, RETURNING):
                # What follows was written on the target, and copied back at least once.
                log = _cut(log, position)
                # Of a partition that is newer than the turn, no record was mirrored.
                copies = {other: _cut(found, claim.start(other)) for other, found in copies.items()}
            result = PartitionComparison(each, name, part=_PARTS[is_back, bool(claim.resumes)])
            is_hashed = each.topic in hashed
            limits = [] if how_far is None or is_hashed else aligned(how_far, number)
            if number not in copies:
                result.refusal = f"{name} has no such partition"
            elif resumed := claim.resume(number) or 0:
                # The part says that earlier records, which may be doubled on both sides, are not compared.
                limits = [limit for limit in limits if limit[0] >= resumed]
                if limits:
                    log = max(log[0], limits[0][0]), log[1]
                    copies[number] = max(copies[number][0], limits[0][1]), copies[number][1]
                else:
                    result.refusal = (
                        "the mirror has not continued since its topic was turned forward; verify again when it has"
                    )
            dead = dead_letters.get(each, ())
            yield _Copy(result, log, copies, limits, position, name in compacted, dead, is_hashed)

    def _back(
        self,
        topics: Mapping[str, tuple[str, Claim]],
        sources: Mapping[model.TopicPartition, tuple[int, int]],
        mirrored: Mapping[model.TopicPartition, MirroredPartition],
        compacted: Collection[str],
    ) -> Iterator[_Copy]:
        """Yield what is copied back, since its turn round. The ends of the source were read before."""
        back = {name: (topic, claim) for topic, (name, claim) in topics.items() if claim.direction in (BACK, RETURNING)}
        for (name, number), (start, end) in (self._target.logs(back) if back else {}).items():
            topic, claim = back[name]
            partition, begun = model.TopicPartition(topic, number), claim.start(number)
            result = PartitionComparison(partition, name, part=_PART_BACK, is_back=True)
            log = sources.get(partition)
            if log is None:
                if begun >= end:
                    continue
                result.refusal = "the source has no such partition, so the records wait"
                log = 0, 0
            # At the turn, all records of the source were mirrored.
            turned = mirrored[partition].position if partition in mirrored else log[0]
            if partition not in mirrored and claim.ends:
                # It had none, and may have deleted records since that were copied back. One that is newer begins at 0.
                turned = next(iter(claim.ends[number : number + 1]), 0)
            log = max(turned, log[0]), log[1]
            position = max(begun, self._copied_back(model.TopicPartition(name, number)))
            limits = [(begun, turned)]
            yield _Copy(result, (max(begun, start), end), {number: log}, limits, position, name in compacted)

    def _compare(self, each: _Copy, source: SingleConsumer) -> PartitionComparison:
        """Compare the records of a partition, from the first place on that both logs have."""
        result, limits = each.result, each.limits
        if result.refusal:
            return result
        number = result.partition.partition
        of_source = partial(self._of_source, source, result.partition)
        of_target = partial(self._of_target, result.target_topic, number)
        # On the way back, the target is compared as if it were the source.
        log, copies = (of_target, of_source) if result.is_back else (of_source, of_target)
        starts, ends = zip(each.log, each.copies[number], strict=True)
        begun = beginning_of(limits, starts)
        beginning = found_beginning(limits, starts, ends, log, copies) if begun.skips == EITHER else begun
        if beginning is None:
            result.refusal = "each side has deleted what the other side has left"
            return result
        result.compared = (beginning.source, ends[0]), (beginning.target, ends[1])
        _note_earlier(result, starts, limits, beginning)
        Comparison(
            result,
            limits,
            beginning,
            log(beginning.source, ends[0]),
            copies(beginning.target, ends[1]),
            ends[0],
            position=each.position,
            dead_letters=each.dead_letters,
            is_compacted=each.is_compacted,
        ).run()
        if result.is_back:
            result.turn_sides()
        return result

    def _compare_hashed(self, topic: str, copies: Sequence[_Copy], source: SingleConsumer) -> PartitionComparison:
        """Compare the number and the sum of the records of a topic whose keys are hashed anew."""
        target, sums, waiting = copies[0].result.target_topic, [[0, 0], [0, 0]], 0
        for each in copies:
            start, end = _cut(each.log, each.position)
            waiting += each.log[1] - end
            for records in self._of_source(source, each.result.partition, start, end):
                pairs = zip(records.offsets, records.digests, strict=True)
                _add(sums[0], [digest for offset, digest in pairs if offset not in each.dead_letters])
        for number, log in copies[0].copies.items():
            for records in self._of_target(target, number, *log):
                _add(sums[1], records.digests)
        (count, total), (other, other_total) = sums
        result = PartitionComparison(model.TopicPartition(topic, ALL), target, records=(count + waiting, other))
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
                self._show(partition, position, min(columns.next_offset, end))
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

    def _show(self, partition: model.TopicPartition, start: int, end: int) -> None:
        """Count records that were read, and show the progress about twice a second."""
        self._done += max(0, end - max(start, self._read_to.get(partition, 0)))
        self._read_to[partition] = max(end, self._read_to.get(partition, 0))
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


def _cut(log: tuple[int, int], end: int) -> tuple[int, int]:
    """Return the start of a log, and its end or an earlier one."""
    return log[0], max(log[0], min(log[1], end))


def _note_earlier(
    result: PartitionComparison, starts: tuple[int, int], limits: Sequence[tuple[int, int]], beginning: Beginning
) -> None:
    """Report the records before the beginning of a comparison, which the other side never had, or has deleted."""
    first = limits[0] if limits else starts
    for side, start, at in ((0, starts[0], beginning.source), (1, starts[1], beginning.target)):
        begun = min(max(first[side], start), at)
        for kind, one, other in ((BEFORE, start, begun), (DELETED, begun, at)):
            if one < other:
                own = one, other
                result.add_range(kind, own if side == 0 else None, own if side == 1 else None, other - one)
