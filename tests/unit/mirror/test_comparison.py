"""Partitions and their mirrors, compared record by record: what is missing, doubled, changed or out of order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kiel_groups.mirror import comparison as module
from kiel_groups.mirror.comparison import (
    EITHER,
    Beginning,
    Comparison,
    PartitionComparison,
    Records,
    beginning_of,
    digest_of,
    found_beginning,
)
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

PARTITION, START = TopicPartition("a", 0), Beginning(0, 0)


def chunks(values: Sequence[object], first: int, size: int = 7) -> Iterator[Records]:
    for at in range(0, len(values), size):
        part = values[at : at + size]
        yield Records(range(first + at, first + at + len(part)), [digest_of(None, b"%r" % (each,)) for each in part])


def compared(
    source: Sequence[object],
    target: Sequence[object],
    *,
    position: int | None = None,
    limits: Sequence[tuple[int, int]] = (),
    beginning: Beginning = START,
    **more: Any,
) -> PartitionComparison:
    result = PartitionComparison(PARTITION, "copy")
    end = beginning.source + len(source)
    at = end if position is None else position
    sides = chunks(source, beginning.source), chunks(target, beginning.target)
    Comparison(result, limits, beginning, *sides, end, position=at, **more).run()
    return result


def shown(result: PartitionComparison) -> list[tuple[object, ...]]:
    return [(each.kind, each.source, each.target, each.records) for each in result.differences]


N = list(range(100))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (N, []),
        (N[:40] + N[43:], [("missing", (40, 43), None, 3)]),
        (N[:40] + N[39:], [("doubled", (39, 40), (40, 41), 1)]),
        (N[:60] + N[20:], [("doubled", (20, 60), (60, 100), 40)]),
        (N + N[95:], [("doubled", (95, 100), (100, 105), 5)]),
        ([*N[:40], "x", *N[41:]], [("changed", (40, 41), (40, 41), 1)]),
        ([*N[:40], "x", 41, "y", *N[43:]], [("changed", (40, 41), (40, 41), 1), ("changed", (42, 43), (42, 43), 1)]),
        ([*N[:40], "x", "y", *N[40:]], [("not of the source", None, (40, 42), 2)]),
        ([*N[:40], 41, 40, *N[42:]], [("out of order", (41, 42), (40, 41), 1)]),
        (N[:10] + N[11:50] + [10] + N[50:], [("out of order", (10, 11), (49, 50), 1)]),
        (N[:99], [("missing", (99, 100), None, 1)]),
        ([], [("missing", (0, 100), None, 100)]),
        (N[:30] + ["x"] * 10 + N[35:], [("changed", (30, 35), (30, 35), 5), ("not of the source", None, (35, 40), 5)]),
    ],
)
def test_each_difference_is_named_with_its_offsets(target: list[object], expected: list[object]) -> None:
    """A record of the source is either equal to one of the target, or reported."""
    result = compared(N, target)
    assert shown(result) == expected
    lacking = sum(result.counts[kind] for kind in ("missing", "changed", "out of order"))
    assert result.equal + lacking == 100
    assert result.records == (100, len(target))


def test_records_that_are_not_mirrored_yet_are_not_missing() -> None:
    """Only records before the position of the mirror can be missing. Later ones may be on the target already."""
    assert shown(compared(N, N[:60], position=60)) == [("not mirrored yet", (60, 100), None, 40)]
    assert shown(compared(N, N[:70], position=60)) == [("not mirrored yet", (70, 100), None, 30)]
    assert shown(compared(N, N[:58], position=60)) == [
        ("not mirrored yet", (60, 100), None, 40),
        ("missing", (58, 60), None, 2),
    ]


def test_records_that_are_not_mirrored_yet_count_as_those_of_the_source() -> None:
    """They are not read, and belong to the records of which others are equal."""
    result = compared(range(120_000), range(1_000), position=1_000)
    assert (result.records, result.equal) == ((120_000, 1_000), 1_000)
    assert result.counts == {"not mirrored yet": 119_000}


def test_dead_letters_and_compaction_explain_missing_records() -> None:
    """A missing record is unexplained unless it is a dead letter, or a compacted topic may have removed it."""
    result = compared(N, N[:40] + N[43:], dead_letters={40, 42})
    assert result.counts == {"dead letter": 2, "missing": 1}
    assert result.unexplained(is_exactly_once=True) == 1
    result = compared(N, N[:40] + N[43:], is_compacted=True)
    assert result.counts == {"compacted": 3}
    assert result.unexplained(is_exactly_once=True) == 0


def test_doubled_records_are_explained_at_least_once_only() -> None:
    """An exactly-once mirror has no reason to write a record twice."""
    result = compared(N, N[:60] + N[20:])
    assert [result.unexplained(is_exactly_once=each) for each in (False, True)] == [0, 40]


def test_a_long_run_of_doubled_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubled records are found in the past of the source, also if they are more than the records in memory."""
    monkeypatch.setattr(module, "_WINDOWS", (4, 8))
    assert shown(compared(N, N[:60] + N[20:])) == [("doubled", (20, 60), (60, 100), 40)]


def test_a_copy_of_earlier_records_does_not_hide_a_missing_one() -> None:
    """A lost record is named although the records that were written again include one that is equal to it."""
    source: list[object] = [None if number % 15 == 0 else number for number in range(301)]
    result = compared(source, source[:300] + source[250:300])
    assert shown(result) == [("doubled", (250, 300), (300, 350), 50), ("missing", (300, 301), None, 1)]


def test_a_range_without_a_common_record_ends_at_the_next_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a range cannot be aligned, the comparison continues at the next checkpoint. Each range has its checksums."""
    monkeypatch.setattr(module, "_WINDOWS", (4, 8))
    monkeypatch.setattr(module, "_LARGEST_BLOCK", 60)
    target: list[object] = [*N[:10], *("x" * number for number in range(1, 31)), *N[50:]]
    result = compared(N, target, limits=[(0, 0), (10, 10), (50, 40), (90, 80)])
    assert shown(result) == [("different", (10, 50), (10, 40), 40)]
    assert [(one.start, one.records, other.start, other.records) for one, other in result.sums] == [
        (0, 10, 0, 10),
        (10, 40, 10, 30),
        (50, 40, 40, 40),
        (90, 10, 80, 10),
    ]
    assert [one.checksum == other.checksum for one, other in result.sums] == [True, False, True, True]


def test_too_many_differences_end_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of different topics ends early, and is not complete."""
    monkeypatch.setattr(module, "_MOST_PLACES", 3)
    result = compared(N, [each for each in N if each % 20])
    assert result.is_cut
    assert result.unexplained(is_exactly_once=False) > 0


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ((0, 0), Beginning(0, 0)),
        ((30, 0), Beginning(30, 10, "target")),
        ((50, 0), Beginning(50, 45)),
        ((0, 30), Beginning(10, 30, "source")),
        ((0, 45), Beginning(50, 45)),
        ((20, 30), Beginning(20, 30, EITHER)),
        ((95, 93), Beginning(95, 93, EITHER)),
    ],
)
def test_where_a_comparison_begins(starts: tuple[int, int], expected: Beginning) -> None:
    """Retention may have deleted the first records of each side."""
    assert beginning_of([(0, 0), (10, 10), (50, 45), (90, 85)], starts) == expected


def test_records_that_one_side_has_deleted_are_skipped() -> None:
    """The first record that both sides have is found between two checkpoints."""
    limits = [(0, 0), (10, 10), (50, 45)]
    result = compared(N[30:], N[10:], limits=limits, beginning=Beginning(30, 10, "target"), position=100)
    assert shown(result) == [("deleted on the other side", None, (10, 30), 20)]
    result = compared(N[10:], N[30:], limits=limits, beginning=Beginning(10, 30, "source"), position=100)
    assert shown(result) == [("deleted on the other side", (10, 30), None, 20)]
    assert result.unexplained(is_exactly_once=True) == 0


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [
        ((20, 15), (100, 95), Beginning(20, 15)),
        ((20, 12), (100, 95), Beginning(20, 15)),
        ((20, 30), (100, 95), Beginning(35, 30)),
        ((93, 86), (100, 95), Beginning(93, 88)),
        ((93, 91), (100, 95), Beginning(96, 91)),
        # The target has only records that the source has deleted, and the next ones are not mirrored yet.
        ((93, 86), (100, 88), None),
        ((93, 88), (100, 88), None),
    ],
)
def test_the_first_record_that_both_sides_have_is_found(
    starts: tuple[int, int], ends: tuple[int, int], expected: Beginning | None
) -> None:
    """Both sides have deleted records since the same checkpoint: one of them has deleted more."""
    limits = [(0, 0), (10, 10), (50, 45), (90, 85)]

    def source(start: int, end: int) -> Iterator[Records]:
        return chunks(N[start:end], start)

    def target(start: int, end: int) -> Iterator[Records]:
        return chunks(N[start + 5 : end + 5], start)

    assert found_beginning(limits, starts, ends, source, target) == expected


def test_both_sides_are_compared_from_their_starts_if_their_first_records_differ() -> None:
    """Before a checkpoint, both sides have the same records, so that is reported."""
    limits = [(0, 0), (50, 50)]
    found = found_beginning(
        limits,
        (20, 20),
        (100, 100),
        lambda start, end: chunks(["x", *N[21:end]], start),
        lambda start, end: chunks([N[20], "y", *N[22:end]], start),
    )
    assert found == Beginning(20, 20)
    # A range that has no records, such as one with the marker of a transaction only, begins at the checkpoint.
    found = found_beginning(limits, (20, 49), (100, 100), lambda *_: chunks(N[20:50], 20), lambda *_: iter(()))
    assert found == Beginning(50, 50)


def test_records_that_are_not_mirrored_yet_are_not_deleted() -> None:
    """The target has deleted all that was mirrored since the last checkpoint."""
    result = compared(N[90:], [], limits=[(0, 0), (90, 85)], beginning=Beginning(90, 88, "source"), position=93)
    assert shown(result) == [
        ("deleted on the other side", (90, 93), None, 3),
        ("not mirrored yet", (93, 100), None, 7),
    ]


@pytest.mark.parametrize("values", [2, 5, 1_000_000])
@pytest.mark.parametrize("seed", range(20))
def test_no_record_of_the_source_is_overlooked(seed: int, values: int) -> None:
    """For any damage and any number of distinct contents, each record of the source is equal to one, or reported."""
    chance = random.Random(seed)
    source: list[object] = [chance.randrange(values) for _ in range(400)]
    target = list(source)
    for _ in range(chance.randrange(6)):
        at, size = chance.randrange(len(target)), chance.randrange(1, 30)
        match chance.randrange(4):
            case 0:
                del target[at : at + size]
            case 1:
                target[at:at] = target[max(0, at - size) : at]
            case 2:
                target[at : at + 1] = ["x"]
            case _:
                target[at : at + 2] = reversed(target[at : at + 2])
    result = compared(source, target)
    one_sided = sum(result.counts[kind] for kind in ("missing", "changed", "out of order"))
    others = sum(result.counts[kind] for kind in ("doubled", "changed", "not of the source", "out of order"))
    assert result.equal + one_sided == len(source)
    assert result.equal + others == len(target)
    assert bool(result.differences) == (source != target)
