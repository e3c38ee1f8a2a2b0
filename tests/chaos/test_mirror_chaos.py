"""The comparison of a copy with its source, and the schedule, of ``tests.mirror_chaos``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.mirror_chaos import KINDS, compare, make_schedule

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("numbers", "checkpoint", "duplicates", "findings"),
    [
        ([0, 1, 2], (2, 2), 0, []),
        ([0, 1, 0, 1, 2, 1], (2, 4), 3, []),
        ([0, 2], (0, 0), 0, ["at offset 1, 2 follows 0: records are missing"]),
        ([0, 1], (2, 2), 0, ["1 records are missing at the end"]),
        ([0, 1, 2], (1, 2), 0, ["skips records"]),
        ([0, 1, 2], (2, 1), 0, ["repeats records"]),
        # A task that was killed has written three batches, of which its successor writes all again.
        ([0, 1, 2, 0, 1, 2], (1, 4), 3, []),
        # A task that was frozen writes one of them again.
        ([0, 1, 2, 0], (1, 4), 1, ["skips records"]),
    ],
    ids=[
        "sound",
        "duplicates",
        "a gap",
        "no end",
        "a checkpoint that skips",
        "a checkpoint that repeats",
        "a checkpoint of duplicates",
        "a checkpoint behind late duplicates",
    ],
)
def test_a_copy_is_compared_with_its_source(
    numbers: Sequence[int], checkpoint: tuple[int, int], duplicates: int, findings: Sequence[str]
) -> None:
    """Gaps are findings, and checkpoints that do not divide the copy; late duplicates are counted."""
    source, target = checkpoint
    found = compare(0, 3, list(enumerate(numbers)), [{"source": source, "target": target}])
    assert found.duplicates == duplicates
    assert len(found.findings) == len(findings)
    assert all(text in finding for text, finding in zip(findings, found.findings, strict=True))


def test_a_schedule_has_each_kind_in_its_share() -> None:
    """A seed always gives the same faults, and each kind once before any kind occurs again."""
    faults = make_schedule(7, 2 * len(KINDS))
    assert faults == make_schedule(7, 2 * len(KINDS)) != make_schedule(8, 2 * len(KINDS))
    assert set(Counter(fault.kind for fault in faults).values()) == {2}
