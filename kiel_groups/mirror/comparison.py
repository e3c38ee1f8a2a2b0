"""
Compare a partition of the source with its mirror in one pass and in bounded memory.

A comparison reads both sides as sequences of digests. While the sides are equal, it compares whole lists of digests. At
a difference, it searches for the next place at which both sides are equal again, and reports the records before that
place as missing, doubled, changed, out of order, or not of the source. So each record of the source is counted once, as
equal or as a difference.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from hashlib import blake2b
from itertools import islice, pairwise, product
from typing import NamedTuple, TypeAlias

from kiel_groups.model import TopicPartition

#: The kinds of differences that nothing explains, and ``DOUBLED``, which a restart of an at-least-once mirror explains.
MISSING, DOUBLED, CHANGED, EXTRA, LATE = "missing", "doubled", "changed", "not of the source", "out of order"
#: On the way back, the kinds ``EXTRA`` and ``WAITING`` have other names.
EXTRA_BACK, WAITING_BACK = "not of the target", "not copied back yet"
#: Up to the next checkpoint, the sides have no place in common.
UNLIKE = "different"
#: The other kinds have an explanation.
DEAD, WAITING, COMPACTED = "dead letter", "not mirrored yet", "compacted"
DELETED, BEFORE = "deleted on the other side", "before the mirror began"
EXPLAINED = frozenset({DEAD, WAITING, WAITING_BACK, COMPACTED, DELETED, BEFORE})
_NAMES_BACK = {EXTRA: EXTRA_BACK, WAITING: WAITING_BACK}

#: How far an equal place is looked for, in records: at first, then further.
_WINDOWS = (64, 2_048, 50_000)
#: How many records in a row have to be equal there.
_RUN = 8
#: The records of the source that a doubled record may be a copy of.
_HISTORY = 1_000_000
#: The most missing records that may still come out of order.
_MOST_MISSING = 200_000
#: The most ranges of differences that are kept, and the most places at which a partition may differ.
_MOST_RANGES, _MOST_PLACES = 1_000, 5_000
#: The most ranges of checkpoints with a checksum.
_MOST_SUMS = 32
#: The most pairs of records of which the pairs that are equal in order are looked for.
_LARGEST_BLOCK = 250_000
#: The size of a digest, in bytes.
_SIZE = 8
#: A greater number than any offset.
_NO_LIMIT = 1 << 63

#: In place of the number of a partition: all partitions of a topic.
ALL = -1
#: In place of the side that a comparison skips: one of them.
EITHER = "either"


class Records(NamedTuple):
    """Successive records of one side: their offsets, and a digest of the key and the value of each."""

    offsets: Sequence[int]
    digests: list[bytes]


#: Reads the records of one side between two offsets.
Reader: TypeAlias = Callable[[int, int], Iterator[Records]]


def digest_of(key: bytes | None, value: bytes | None) -> bytes:
    """Return a digest of a record. Null differs from an empty key or value."""
    prefix = b"n" if key is None else b"%d:" % len(key)
    parts = (prefix, key or b"", b"n" if value is None else b"v", value or b"")
    return blake2b(b"".join(parts), digest_size=_SIZE).digest()


def is_explained(kind: str, *, is_exactly_once: bool) -> bool:
    """Return whether differences of a kind have an explanation."""
    return kind in EXPLAINED or (kind == DOUBLED and not is_exactly_once)


class Difference(NamedTuple):
    """
    Some records that are on one side only, or differ.

    Args:
        kind: What is wrong with them.
        source: Their first offset on the source and the one after their last, or None.
        target: The same on the target.
        records: Their number.
    """

    kind: str
    source: tuple[int, int] | None
    target: tuple[int, int] | None
    records: int


class RangeSum(NamedTuple):
    """The records of one side between two offsets: their number, and a checksum of their keys and values."""

    start: int
    records: int
    checksum: str


@dataclass(slots=True)
class PartitionComparison:
    """
    The result for one partition.

    Args:
        partition: The partition of the source. Its number is ``ALL`` for a topic whose keys are hashed anew: then only
            the numbers of all its records, and their checksums, are compared.
        target_topic: The topic on the target.
        refusal: Why the partition cannot be compared, or "".
        records: The number of records that were compared on the source, and on the target.
        equal: The number of records that are equal on both sides.
        counts: The number of other records, by kind.
        differences: The ranges of these records, in the order in which they were found; at most 1,000.
        sums: Between checkpoints, the records of the source and those of the target.
        is_cut: Whether the comparison ended early, because the sides differ at too many places.
        part: Which records of the topic are compared, and why no others, if the topic was turned; else "".
        compared: The offsets between which the records were compared on the source, and on the target; or None.
        is_back: Whether these are the records that were copied back: the target had them first, and a record is missing
            if the source lacks it.
    """

    partition: TopicPartition
    target_topic: str
    refusal: str = ""
    records: tuple[int, int] = (0, 0)
    equal: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    sums: list[tuple[RangeSum, RangeSum]] = field(default_factory=list)
    is_cut: bool = False
    part: str = ""
    compared: tuple[tuple[int, int], tuple[int, int]] | None = None
    is_back: bool = False

    def turn_sides(self) -> None:
        """Swap the sides after a comparison of records that were copied back, which takes the target for the source."""
        self.counts = Counter({_NAMES_BACK.get(kind, kind): count for kind, count in self.counts.items()})
        self.differences = [
            Difference(_NAMES_BACK.get(kind, kind), source, target, records)
            for kind, target, source, records in self.differences
        ]
        self.records = self.records[::-1]
        self.sums = [(source, target) for target, source in self.sums]
        self.compared = self.compared and self.compared[::-1]

    def add(self, kind: str, source: Sequence[int], target: Sequence[int]) -> None:
        """Add records that differ, by their offsets on the sides that have them."""
        ranges = [(each[0], each[-1] + 1) if each else None for each in (source, target)]
        self.add_range(kind, ranges[0], ranges[1], len(source) or len(target))

    def add_range(
        self, kind: str, source: tuple[int, int] | None, target: tuple[int, int] | None, records: int
    ) -> None:
        """Add a range of differences. A range that continues the last one becomes a part of it."""
        self.counts[kind] += records
        last = self.differences[-1] if self.differences else None
        if last is not None and last.kind == kind:
            sides = ((last.source, source), (last.target, target))
            if all((old is None) == (new is None) and (not old or not new or old[1] == new[0]) for old, new in sides):
                joined = [(old[0], new[1]) if old and new else None for old, new in sides]
                self.differences[-1] = Difference(kind, joined[0], joined[1], last.records + records)
                return
        if len(self.differences) < _MOST_RANGES:
            self.differences.append(Difference(kind, source, target, records))

    def unexplained(self, *, is_exactly_once: bool) -> int:
        """
        Return the number of records without an explanation. If the comparison ended early, it is at least 1.

        Records are copied back at least once, however the mirror writes to the target.
        """
        once = is_exactly_once and not self.is_back
        found = sum(count for kind, count in self.counts.items() if not is_explained(kind, is_exactly_once=once))
        return max(found, int(self.is_cut or bool(self.refusal)))


class Beginning(NamedTuple):
    """
    Where a comparison begins on each side.

    Args:
        source: The first offset on the source.
        target: The first offset on the target.
        skips: The side, ``source`` or ``target``, that has records which the other side has deleted; ``EITHER`` if it
            is not known which side that is; or "".
    """

    source: int
    target: int
    skips: str = ""


def beginning_of(limits: Sequence[tuple[int, int]], starts: tuple[int, int]) -> Beginning:
    """
    Return where the comparison of a partition begins. If it skips ``EITHER``, ``found_beginning`` finds the place.

    Args:
        limits: The checkpoints of the partition, ascending on both sides. The first one is where the mirror begins.
        starts: The starts of the logs of the source and of the target.
    """
    if not limits:
        return Beginning(*starts)
    passed = [each for each in limits if each[0] <= starts[0] or each[1] <= starts[1]]
    source, target = passed[-1] if passed else limits[0]
    skips = {(False, False): "", (True, False): "target", (False, True): "source", (True, True): EITHER}
    is_deleted = source < starts[0], target < starts[1]
    return Beginning(max(source, starts[0]), max(target, starts[1]), skips[is_deleted])


class _Side:
    """One side of a comparison: an iterator of records, of which the next ones are in memory."""

    def __init__(self, chunks: Iterator[Records], bounds: Sequence[int]) -> None:
        self._chunks = chunks
        self._bounds = bounds
        self.offsets: list[int] = []
        self.digests: list[bytes] = []
        self.records = 0
        self._sums = [(0, blake2b(digest_size=_SIZE)) for _ in bounds]

    def fill(self, count: int) -> None:
        """Read until a number of records are in memory, or the side has ended."""
        while len(self.digests) < count and (chunk := next(self._chunks, None)) is not None:
            self.records += len(chunk.digests)
            self.offsets += chunk.offsets
            self.digests += chunk.digests
            self._add(chunk)

    def take(self, count: int) -> Records:
        """Remove and return the next records in memory."""
        taken = Records(self.offsets[:count], self.digests[:count])
        del self.offsets[:count], self.digests[:count]
        return taken

    def take_until(self, offset: int) -> tuple[int, int]:
        """Remove the records before an offset. Return their number, and the offset after the last one."""
        count = end = 0
        while taken := self.take(bisect_left(self.offsets, offset)).offsets:
            count, end = count + len(taken), taken[-1] + 1
            self.fill(_WINDOWS[-1])
        return count, end

    def sums(self) -> list[RangeSum]:
        """Return the sum of each range between two bounds."""
        return [
            RangeSum(start, count, checksum.hexdigest())
            for start, (count, checksum) in zip(self._bounds, self._sums, strict=True)
        ]

    def _add(self, chunk: Records) -> None:
        cuts = [0, *(bisect_left(chunk.offsets, bound) for bound in self._bounds[1:]), len(chunk.digests)]
        for number, (start, stop) in enumerate(pairwise(cuts)):
            if start < stop:
                count, checksum = self._sums[number]
                checksum.update(b"".join(islice(chunk.digests, start, stop)))
                self._sums[number] = count + stop - start, checksum


def found_beginning(
    limits: Sequence[tuple[int, int]], starts: tuple[int, int], ends: tuple[int, int], source: Reader, target: Reader
) -> Beginning | None:
    """
    Return where the comparison of a partition begins whose logs both begin between the same two checkpoints.

    The first records of each log are looked for in the other log, up to the next checkpoint. If they are in neither,
    the comparison begins at both starts, and reports what differs.

    Args:
        limits: The checkpoints of the partition.
        starts: The starts of the logs of the source and of the target.
        ends: Their ends.
        source: Reads the records of the source.
        target: Reads the records of the target.

    Returns:
        The beginning, or None if the logs begin after the last checkpoint, and have no place in common.
    """
    later = next((each for each in limits if each[0] > starts[0] and each[1] > starts[1]), None)
    until = later or ends
    firsts = [_first(source(starts[0], until[0])), _first(target(starts[1], until[1]))]
    if not all(firsts):
        return Beginning(*later) if later else None
    if (at := _find(firsts[0], target(starts[1], until[1]))) is not None:
        return Beginning(starts[0], at)
    if (at := _find(firsts[1], source(starts[0], until[0]))) is not None:
        return Beginning(at, starts[1])
    return Beginning(*starts) if later else None


def _first(chunks: Iterator[Records]) -> list[bytes]:
    """Return the digests of the first records, as many as have to be equal in a row."""
    side = _Side(chunks, (0,))
    side.fill(_RUN)
    return side.digests[:_RUN]


def _find(run: list[bytes], chunks: Iterator[Records]) -> int | None:
    """Return the offset of the first place with a run of digests, which may be cut off by the end; or None."""
    side = _Side(chunks, (0,))
    while True:
        side.fill(_WINDOWS[-1])
        at, count = _place_of(run, side.digests), len(side.digests)
        if at + len(run) <= count or count < _WINDOWS[-1]:
            return side.offsets[at] if at < count else None
        side.take(at)


class _History:
    """The last records of the source, in which copies are looked for."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self.offsets = array("q")

    def add(self, records: Records) -> None:
        """Add the next records, and drop the oldest ones if there are too many."""
        self._digests += b"".join(records.digests)
        self.offsets.extend(records.offsets)
        if (surplus := len(self.offsets) - 2 * _HISTORY) > 0:
            surplus += _HISTORY
            del self.offsets[:surplus], self._digests[: surplus * _SIZE]

    def find(self, digests: Sequence[bytes]) -> int | None:
        """Return the last index from which on the records have the given digests, or None."""
        wanted = b"".join(digests)
        end = len(self._digests)
        while (at := self._digests.rfind(wanted, 0, end)) >= 0:
            if at % _SIZE == 0:
                return at // _SIZE
            end = at + len(wanted) - 1
        return None

    def equal(self, index: int, digests: Sequence[bytes]) -> int:
        """Return how many records from an index on have the given digests."""
        start = index * _SIZE
        known = self._digests[start : start + len(digests) * _SIZE]
        return _common([bytes(known[at : at + _SIZE]) for at in range(0, len(known), _SIZE)], digests)


class _TooManyError(Exception):
    """The sides differ at too many places."""


class Comparison:
    """
    Compares both sides of a partition, record by record where they differ, and adds what it finds to a result.

    Args:
        result: The result of the partition.
        limits: The checkpoints of the partition, ascending on both sides.
        beginning: Where the records begin.
        source: The records of the source.
        target: The records of the target.
        end: The end of the log of the source.
        position: The offset of the source up to which the partition is mirrored.
        dead_letters: The source offsets of records that are dead letters.
        is_compacted: Whether the topic is compacted.
    """

    def __init__(
        self,
        result: PartitionComparison,
        limits: Sequence[tuple[int, int]],
        beginning: Beginning,
        source: Iterator[Records],
        target: Iterator[Records],
        end: int,
        *,
        position: int,
        dead_letters: Collection[int] = (),
        is_compacted: bool = False,
    ) -> None:
        self._result, self._beginning = result, beginning
        #: The checkpoints after the beginning.
        self._limits = later = [each for each in limits if each[0] > beginning.source and each[1] > beginning.target]
        shown = [later[at * len(later) // _MOST_SUMS] for at in range(_MOST_SUMS)] if len(later) > _MOST_SUMS else later
        self._source = _Side(source, [beginning.source, *(each[0] for each in shown)])
        self._target = _Side(target, [beginning.target, *(each[1] for each in shown)])
        self._position, self._end = position, end
        self._dead_letters = dead_letters
        self._is_compacted = is_compacted
        self._history = _History()
        #: The offsets of records that the target lacks so far.
        self._missing: dict[int, None] = {}
        #: The records of the source that are not read, because they are not mirrored yet.
        self._unread = 0
        self._places = 0

    def run(self) -> None:
        """Compare both sides to their ends, or until they differ at too many places."""
        result, source, target = self._result, self._source, self._target
        try:
            if self._beginning.skips:
                self._skip(self._beginning.skips)
            self._compare()
        except _TooManyError:
            result.is_cut = True
        self._report_missing()
        result.records = source.records + self._unread, target.records
        sums = zip(source.sums(), target.sums(), strict=True)
        result.sums = [(one, other) for one, other in sums if one.records or other.records]

    def _compare(self) -> None:
        source, target = self._source, self._target
        while True:
            source.fill(_WINDOWS[-1])
            target.fill(_WINDOWS[-1])
            if count := _common(source.digests, target.digests):
                self._history.add(source.take(count))
                target.take(count)
                self._result.equal += count
            elif not target.digests and (not source.digests or source.offsets[0] >= self._position):
                self._report_waiting()
                return
            else:
                self._differ()

    def _skip(self, name: str) -> None:
        """
        Skip the first records of one side, which the other side has deleted.

        Without the first record of the other side, skip to the next checkpoint, or to the position of the mirror.
        """
        is_source = name == "source"
        far, near = (self._source, self._target) if is_source else (self._target, self._source)
        near.fill(_RUN)
        last = self._position if is_source else _NO_LIMIT
        end = min((each[not is_source] for each in self._limits), default=last)
        while True:
            far.fill(_WINDOWS[-1])
            at = _place_of(near.digests[:_RUN], far.digests)
            is_found = at < len(far.digests)
            taken = far.take(min(at, bisect_left(far.offsets, end))).offsets
            if taken:
                self._result.add(DELETED, *((taken, ()) if is_source else ((), taken)))
            if is_found or not taken:
                return

    def _report_missing(self, count: int = _MOST_MISSING + _WINDOWS[-1]) -> None:
        """Report the oldest records that the target lacks so far. If they come later, they count as doubled."""
        for offset in list(islice(self._missing, count)):
            del self._missing[offset]
            is_dead, other = offset in self._dead_letters, self._kind_of(MISSING)
            self._result.add(DEAD if is_dead else other, [offset], ())

    def _kind_of(self, kind: str) -> str:
        return COMPACTED if self._is_compacted else kind

    def _report_waiting(self) -> None:
        """Report the rest of the source, which is not mirrored yet. It is not read."""
        if self._source.offsets:
            begin, end = self._source.offsets[0], self._end
            self._result.add_range(WAITING, (begin, end), None, end - begin)
            self._unread = end - begin - len(self._source.offsets)

    def _differ(self) -> None:
        """Report the next records, which differ, up to a place at which both sides are equal again."""
        source, target = self._source, self._target
        if not source.digests:
            self._replace(0, len(target.digests))
            return
        if not target.digests:
            self._replace(bisect_left(source.offsets, self._position), 0)
            return
        self._count_place()
        place = _next_equal(source.digests, target.digests)
        at = self._history.find(target.digests[:_RUN])
        copied = 0 if at is None else self._history.equal(at, target.digests)
        # A long copy of earlier records goes before a place that is within the copy, by records that occur often.
        if copied and (place is None or copied > max(place[1], _RUN - 1)):
            self._replace(0, copied)
        elif place is not None:
            self._replace(*place)
        elif (at := self._history.find(target.digests[:1])) is not None:
            self._replace(0, self._history.equal(at, target.digests))
        else:
            self._skip_to_limit()

    def _count_place(self) -> None:
        """Count a place at which the sides differ. Raise _TooManyError if there are too many."""
        self._places += 1
        if self._places > _MOST_PLACES:
            raise _TooManyError

    def _replace(self, from_source: int, from_target: int) -> None:
        """Report the next records of both sides, except those that are equal in order."""
        lacking, extra = self._source.take(from_source), self._target.take(from_target)
        self._history.add(lacking)
        parts = [(slice(0, from_source), slice(0, from_target))]
        if 0 < from_source * from_target <= _LARGEST_BLOCK:
            codes = SequenceMatcher(None, lacking.digests, extra.digests, autojunk=False).get_opcodes()
            parts = [(slice(a, b), slice(c, d)) for name, a, b, c, d in codes if name != "equal"]
        different = [(lacking.offsets[own], Records(extra.offsets[its], extra.digests[its])) for own, its in parts]
        self._result.equal += from_source - sum(len(offsets) for offsets, _ in different)
        for offsets, _ in different:
            self._missing.update(dict.fromkeys(offsets))
        # A record that is missing here may be out of order there.
        for (offsets, _), others in zip(different, [self._copies(each) for _, each in different], strict=True):
            left = [each for each in offsets if each in self._missing]
            for offset, other in zip(left, others, strict=False):
                del self._missing[offset]
                self._result.add(CHANGED, [offset], [other])
            for other in others[len(left) :]:
                self._result.add(self._kind_of(EXTRA), (), [other])
        if len(self._missing) > _MOST_MISSING:
            self._report_missing(_MOST_MISSING // 2)

    def _copies(self, extra: Records) -> list[int]:
        """Report records of the target that are copies of records of the source. Return the offsets of the others."""
        others: list[int] = []
        at = 0
        while at < len(extra.digests):
            # A search takes some milliseconds.
            self._count_place()
            index = self._history.find(extra.digests[at : at + _RUN])
            if index is None and (index := self._history.find(extra.digests[at : at + 1])) is None:
                others.append(extra.offsets[at])
                at += 1
                continue
            count = self._history.equal(index, extra.digests[at:])
            self._report_copies(self._history.offsets[index : index + count], extra.offsets[at : at + count])
            at += count
        return others

    def _report_copies(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Report copies of records: each is doubled, or out of order if the target lacked the record before."""
        for offset, other in zip(source, target, strict=True):
            if offset in self._missing:
                del self._missing[offset]
                self._result.add(LATE, [offset], [other])
            else:
                self._result.add(DOUBLED, [offset], [other])

    def _skip_to_limit(self) -> None:
        """Report both sides as different up to the next checkpoint or their ends; record by record if few are left."""
        source, target = self._source, self._target
        begin = source.offsets[0], target.offsets[0]
        if begin[0] >= self._position:
            # These records of the source are not mirrored yet, so those of the target are no changed ones.
            self._replace(0, len(target.digests))
            return
        later = (each for each in self._limits if each[0] > begin[0] and each[1] > begin[1])
        limit = next(later, (self._position, _NO_LIMIT))
        counts = bisect_left(source.offsets, limit[0]), bisect_left(target.offsets, limit[1])
        if counts[0] * counts[1] <= _LARGEST_BLOCK:
            self._replace(*counts)
            return
        ends = source.take_until(limit[0]), target.take_until(limit[1])
        records = max(count for count, _ in ends)
        self._result.add_range(UNLIKE, (begin[0], ends[0][1]), (begin[1], ends[1][1]), records)


def _common(some: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Return how many digests are equal at the beginning of two lists."""
    count = min(len(some), len(others))
    if some[:count] == others[:count]:
        return count
    return next(at for at, (each, other) in enumerate(zip(some, others, strict=False)) if each != other)


def _place_of(run: list[bytes], digests: list[bytes]) -> int:
    """Return the index of a run of digests in a list, which may cut off the end of the run; else the list's length."""
    at = -1
    while run:
        try:
            at = digests.index(run[0], at + 1)
        except ValueError:
            break
        if digests[at : at + len(run)] == run[: len(digests) - at]:
            return at
    return len(digests)


def _next_equal(source: list[bytes], target: list[bytes]) -> tuple[int, int] | None:
    """Return how many records to skip on each side to the next equal ones, at best few; None if none are in reach."""
    for window, run in product(_WINDOWS, (_RUN, 1)):
        # Runs tell apart records that occur often. Before the end, only a shorter run may be left.
        first: dict[bytes, int] = {}
        for at in range(min(window, len(source) - run + 1)):
            first.setdefault(b"".join(source[at : at + run]), at)
        best: tuple[int, int] | None = None
        for at in range(min(window, len(target) - run + 1)):
            if best is not None and at >= sum(best):
                break
            begin = first.get(b"".join(target[at : at + run]))
            if begin is None or (best is not None and begin + at >= sum(best)):
                continue
            count = min(len(source) - begin, len(target) - at, _RUN)
            if source[begin : begin + count] == target[at : at + count]:
                best = begin, at
        if best is not None:
            return best
    return None
