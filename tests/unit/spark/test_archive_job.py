"""The ranges that a run of an archive reports."""

from __future__ import annotations

import pytest

from kiel_groups.model import TopicPartition
from kiel_groups.spark.archive_job import _ranges
from kiel_groups.spark.checkpoint import Loss, OffsetRange, Positions, Span

pytestmark = pytest.mark.unit

P0 = TopicPartition("views", 0)


@pytest.mark.parametrize(
    ("before", "after", "lost", "start"),
    [
        (None, Span(7, 50, 1), [], 7),
        (Span(0, 20, 1), Span(0, 50, 1), [], 20),
        (Span(0, 20, 1), Span(40, 50, 2), [Loss(P0, 30, 40, None, "")], 20),
        (Span(0, 20, 1, None, 5), Span(0, 50, 2, None, 6), [Loss(P0, 20, None, 5, "")], 0),
        (Span(0, 20, 1), Span(30, 50, 2), [Loss(P0, 20, None, None, "")], 30),
        (Span(0, 20, 1), Span(0, 50, 2), [], 0),
        (Span(20, 20), Span(50, 50), [], 20),
    ],
    ids=[
        "the first run",
        "the interval continues",
        "retention took a part in the middle of the run",
        "a new log",
        "a new log that begins later",
        "a new log, found by a run that was interrupted",
        "no interval is known",
    ],
)
def test_a_run_reports_what_it_has_passed(before: Span | None, after: Span, lost: list[Loss], start: int) -> None:
    """In the same log the range begins at the end of the last run, and includes what was lost."""
    found = _ranges(None if before is None else Positions({P0: before}), Positions({P0: after}), lost)
    assert found == (OffsetRange(P0, start, after.to, after.incarnation),)
