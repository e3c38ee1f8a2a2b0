"""The ranges that a run of an archive reports, and the topic that an error of its query is about."""

from __future__ import annotations

import pytest

from kiel_groups.model import TopicPartition
from kiel_groups.spark.archive_job import _ranges, topic_of
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


KNOWN = [TopicPartition("views", 0), TopicPartition("views", 12), TopicPartition("web.orders", 1)]


@pytest.mark.parametrize(
    ("error", "topic"),
    [
        ("views:0 at offset 7: a message that does not match its CRC", "views"),
        (
            "nothing could be read for 122 s; the last reason: web.orders:1 has no leader: LEADER_NOT_AVAILABLE (5)",
            "web.orders",
        ),
        ("views:0: offset 60 is to be read next, and views:12 has another message", "views"),
        ("no broker knows the topic orders; check the name, or create it first", "orders"),
        ("no broker knows the topic orders, clicks; check the name, or create it first", "orders"),
    ],
)
def test_the_topic_of_an_error_is_known(error: str, topic: str) -> None:
    """Errors name a partition, or topics that no longer exist."""
    assert topic_of(error, KNOWN, ["orders", "clicks"]) == topic


@pytest.mark.parametrize(
    "error",
    [
        "no broker answered: views:9092: cannot connect",
        "views:0 and web.orders:1 have no leader",
        "my-views:0 at offset 7: a message that does not match its CRC",
        "views:1 at offset 7: a message that does not match its CRC",
        "no broker knows the topic orders, veiws; check the name, or create it first",
        "Spark failed: No space left on device",
    ],
)
def test_other_errors_are_about_no_single_topic(error: str) -> None:
    """A host may have the name of a topic. A topic that has never existed is a mistake."""
    assert topic_of(error, KNOWN, ["orders"]) is None
