"""Ranges of offsets that an archive has, lacks, or has twice: compared with counting single offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.model import TopicPartition
from kiel_groups.spark.archive_coverage import (
    Account,
    Difference,
    Interval,
    LogCoverage,
    Range,
    Rows,
    common,
    compared_with_log,
    coverages,
    layers,
    less,
    minus,
    missing_in_log,
    size,
)
from tests.helpers.examples import examples

pytestmark = pytest.mark.unit

quick = settings(deadline=None, max_examples=examples(200))
VIEWS = TopicPartition("views", 0)
OLD, NEW = 7, 9

offsets = st.integers(0, 12)
ranges = st.lists(st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair))), max_size=6)
incarnations = st.sampled_from([None, OLD, NEW])


def counted(found: Iterable[Range]) -> Counter[int]:
    """Return how often each offset occurs."""
    return Counter(offset for start, end in found for offset in range(start, end))


def is_list(found: list[Range]) -> bool:
    """Return whether ranges are in order, not empty, and do not touch."""
    return all(start < end for start, end in found) and all(one[1] < other[0] for one, other in pairwise(found))


@quick
@given(ranges, ranges)
def test_ranges_have_the_offsets_of_sets(one: list[Range], other: list[Range]) -> None:
    """Layers count how often each offset occurs; the first layers of two lists behave as sets."""
    whole = layers(one)
    assert all(is_list(layer) for layer in whole)
    for number, layer in enumerate(whole, 1):
        assert set(counted(layer)) == {offset for offset, count in counted(one).items() if count >= number}
    assert sum(map(size, whole)) == counted(one).total()
    left, right = (layers(each)[0] if layers(each) else [] for each in (one, other))
    assert set(counted(common(left, right))) == set(counted(left)) & set(counted(right))
    assert set(counted(minus(left, right))) == set(counted(left)) - set(counted(right))
    taken = common(left, right)
    reduced = counted(each for layer in less(whole, taken) for each in layer)
    assert reduced == counted(one) - counted(taken)


@quick
@given(
    st.lists(st.tuples(offsets, offsets, incarnations), max_size=4),
    st.dictionaries(incarnations, ranges, max_size=3),
    st.lists(st.tuples(st.sampled_from(["quarantined", "lost"]), offsets, offsets, incarnations), max_size=3),
    st.booleans(),
)
def test_all_rows_and_all_planned_offsets_are_accounted_for(
    intervals: list[tuple[int, int, int | None]],
    rows: dict[int | None, list[Range]],
    accounts: list[tuple[str, int, int, int | None]],
    whole_history: bool,
) -> None:
    """What was planned is in the table, or among the differences; what the table has beyond that, too."""
    read = [Interval(min(begin, end), max(begin, end), incarnation) for begin, end, incarnation in intervals]
    told = [Account(kind, start, end, "why", incarnation) for kind, start, end, incarnation in accounts]
    table = {incarnation: Rows(runs, []) for incarnation, runs in rows.items()}
    found = coverages(VIEWS, read, table, told, whole_history=whole_history)
    there = lacking = beyond = Counter[int]()
    for each in found:
        kinds: dict[str, list[Range]] = {}
        for difference in each.differences:
            kinds.setdefault(difference.kind, []).append((difference.start, difference.end))
        beyond = counted([*kinds.get("doubled", []), *kinds.get("unplanned", [])])
        lacking = counted([*kinds.get("missing", []), *kinds.get("quarantined", []), *kinds.get("lost", [])])
        assert not beyond.keys() & lacking.keys()
        assert each.rows == size(each.planned) - lacking.total() + beyond.total()
        there = there + (counted(each.planned) - lacking + beyond)
    assert there == counted(run for runs in rows.values() for run in runs)
    for interval in read:
        assert not counted([interval[:2]]) - counted(run for log in found for run in log.planned)


@quick
@given(ranges, offsets, offsets)
def test_each_offset_of_one_log_is_judged_as_if_alone(runs: list[Range], begin: int, length: int) -> None:
    """An offset is missing if it was planned and has no row, doubled if it has two, or unplanned."""
    (found,) = coverages(VIEWS, [Interval(begin, begin + length)], {None: Rows(runs, [])}, [], whole_history=True)
    rows = counted(runs)
    for kind, expected in (
        ("missing", Counter(dict.fromkeys(set(range(begin, begin + length)) - set(rows), 1))),
        ("unplanned", Counter(dict.fromkeys(set(rows) - set(range(begin, begin + length)), 1))),
        ("doubled", Counter({offset: count - 1 for offset, count in rows.items() if count > 1})),
    ):
        assert counted(each[1:3] for each in found.differences if each.kind == kind) == expected


@quick
@given(ranges, ranges, ranges, st.tuples(offsets, offsets))
def test_each_missing_offset_is_judged_as_if_alone(
    runs: list[Range], told: list[Range], present: list[Range], bounds: Range
) -> None:
    """A side table explains it, or compaction does if the log goes on without it; otherwise nothing explains it."""
    log = (min(bounds), max(bounds))
    accounts = [Account("lost", *each, "why") for each in told]
    (files,) = coverages(VIEWS, [Interval(0, 13)], {None: Rows(runs, [])}, accounts, whole_history=True)
    there = [each for layer in layers(present)[:1] for each in layer]
    found = compared_with_log(files, log, common(there, missing_in_log(files, log)))
    lacking = set(range(13)) - set(counted(runs))
    lost = lacking & set(counted(told))
    compacted = ((lacking - lost) & set(range(*log))) - set(counted(present))
    for kind, expected in (("lost", lost), ("compacted", compacted), ("missing", lacking - lost - compacted)):
        assert counted(each[1:3] for each in found.differences if each.kind == kind) == Counter(expected)


def of(*runs: Range) -> Rows:
    return Rows(list(runs), [])


def differences(found: LogCoverage) -> list[tuple[str, int, int]]:
    return [(each.kind, each.start, each.end) for each in found.differences]


def test_a_log_made_anew_may_have_the_same_offsets_again() -> None:
    """Its incarnation tells the rows apart or, without one, the intervals of reading: the second begins lower."""
    old, new = coverages(
        VIEWS,
        [Interval(0, 60, OLD), Interval(0, 2, NEW)],
        {OLD: of((0, 60)), NEW: of((0, 2))},
        [Account("lost", 60, 60, "the topic was created again", OLD)],
        whole_history=True,
    )
    assert differences(old) == [("lost", 60, 60)]
    assert not old.unexplained
    assert (new.rows, new.first, new.last, new.reached, new.differences) == (2, 0, 1, 2, ())
    (both,) = coverages(VIEWS, [Interval(0, 60), Interval(0, 2)], {None: of((0, 60), (0, 2))}, [], whole_history=True)
    assert both.differences == ()
    (twice,) = coverages(VIEWS, [Interval(0, 60)], {None: of((0, 60), (0, 2))}, [], whole_history=True)
    assert differences(twice) == [("doubled", 0, 2)]


def test_rows_without_an_incarnation_count_for_the_log_that_lacks_them() -> None:
    """An archive that an earlier release began continues with the same log."""
    (found,) = coverages(
        VIEWS, [Interval(0, 100, NEW)], {None: of((0, 60)), NEW: of((60, 100))}, [], whole_history=False
    )
    assert (found.rows, found.incarnation, found.differences) == (100, NEW, ())


def test_skipped_offsets_need_an_account() -> None:
    """Between two intervals of one log, offsets were skipped: retention was faster than the archive."""
    intervals = [Interval(0, 10), Interval(40, 50)]
    rows: dict[int | None, Rows] = {None: of((0, 10), (40, 45), (46, 50))}
    (found,) = coverages(VIEWS, intervals, rows, [], whole_history=True)
    assert differences(found) == [("missing", 10, 40), ("missing", 45, 46)]
    told = [Account("lost", 10, 40, "retention"), Account("quarantined", 45, 46, "the checksum is wrong")]
    (found,) = coverages(VIEWS, intervals, rows, told, whole_history=True)
    assert found.differences == (Difference("lost", 10, 40, "retention"), Difference("quarantined", 45, 46, told[1][3]))
    assert not found.unexplained


def test_batches_that_spark_has_forgotten_are_known_by_their_rows() -> None:
    """Without the first batches, rows before the first known interval were planned; gaps among them still show."""
    (found,) = coverages(VIEWS, [Interval(50, 60)], {None: of((3, 20), (30, 60))}, [], whole_history=False)
    assert differences(found) == [("missing", 20, 30)]
    (found,) = coverages(VIEWS, [], {None: of((3, 20), (30, 60))}, [], whole_history=False)
    assert (differences(found), found.reached) == ([("missing", 20, 30)], None)


def test_the_log_tells_compacted_offsets_from_missing_ones() -> None:
    """A missing offset is gone by compaction if the log has its neighbours, and not the offset itself."""
    (files,) = coverages(VIEWS, [Interval(0, 60)], {None: of((0, 5), (10, 20), (25, 50))}, [], whole_history=True)
    assert missing_in_log(files, (12, 70)) == [(20, 25), (50, 60)]
    found = compared_with_log(files, (12, 70), [(24, 25)])
    assert [(each.kind, each.start, each.end, each.is_explained) for each in found.differences] == [
        ("missing", 5, 10, False),
        ("compacted", 20, 24, True),
        ("missing", 24, 25, False),
        ("compacted", 50, 60, True),
    ]
    assert (found.log, found.waiting) == ((12, 70), 10)


@pytest.mark.parametrize(("log", "kind", "start", "end"), [((0, 40), "other log", 40, 60), ((70, 80), "gone", 60, 70)])
def test_a_log_that_does_not_fit_is_a_difference(log: Range, kind: str, start: int, end: int) -> None:
    """The log ends before what was archived: it is another one. Or it begins after that: records are lost."""
    (files,) = coverages(VIEWS, [Interval(0, 60)], {None: of((0, 60))}, [], whole_history=True)
    assert differences(compared_with_log(files, log, [])) == [(kind, start, end)]
    dropped = compared_with_log(files, log, [], continues=False)
    assert (dropped.differences, dropped.waiting) == ((), None)
