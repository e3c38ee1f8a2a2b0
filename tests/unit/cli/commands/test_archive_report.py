"""The plan and the summary of an archive, as text and as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from kiel_groups.cli.commands.spark import plan_lines, summary_document, summary_lines
from kiel_groups.model import TopicPartition
from kiel_groups.spark import ArchivePlan, ArchiveSummary
from kiel_groups.spark.checkpoint import Loss, OffsetRange
from kiel_groups.spark.side_tables import SideRow

pytestmark = pytest.mark.unit

RANGES = tuple(OffsetRange(TopicPartition("views", number), 10, 20 + number) for number in range(5))


def test_a_plan_is_plain_text() -> None:
    """The text has topics, number of records, and folders."""
    plan = ArchivePlan(RANGES, "file:///lake", "file:///lake/_checkpoint", True, ("kafka:9092",))
    assert list(plan_lines(plan)) == [
        "would read 60 records at most",
        "  views: 60 offsets in 5 partitions (0: 10–20, 1: 10–21, 2: 10–22, 3: 10–23, …)",
        "into file:///lake, a new archive; checkpoint file:///lake/_checkpoint",
    ]


def test_a_summary_is_plain_text() -> None:
    """The JSON document has each partition. Records without a time, and values without fields, are counted."""
    summary = ArchiveSummary(RANGES, 60, 4, 52_100_000, 2.0, "lake", "file:///lake", untimed=3)
    assert list(summary_lines(summary)) == [
        "archived 60 records in 2.0 s, 30 records/s",
        "  views: 60 offsets in 5 partitions (0: 10–20, 1: 10–21, 2: 10–22, 3: 10–23, …)",
        "into file:///lake: 4 new files, 52.1 MB",
        "3 records without a time in --time-field: in the folders of their arrival",
        "committed for the group lake",
    ]
    document = json.loads(json.dumps(summary_document(summary)))
    assert document["untimed"] == 3
    assert document["topics"]["views"]["4"] == {"from": 10, "to": 24}


def test_the_summary_of_a_run_without_records() -> None:
    """The summary has no rate and no number of files."""
    nothing = tuple(OffsetRange(TopicPartition("views", number), 20, 20) for number in range(1))
    assert list(summary_lines(ArchiveSummary(nothing, 0, 0, 0, 2.0, "lake", "file:///lake"))) == [
        "archived nothing new in 2.0 s",
        "  views: 0 offsets in 1 partition (0: 20–20)",
        "into file:///lake: no new files",
        "committed for the group lake",
    ]


def test_bad_records_and_topics_that_are_left_out_are_reported() -> None:
    """Offsets of bad records do not count as archived. Reasons have the names of the command's options."""
    bad = SideRow(
        topic="views", partition=0, offset=12, end_offset=15, reason="a wrong CRC", found_at=datetime.now(UTC)
    )
    reason = "orders:0 at offset 5: a wrong CRC; to pass it, set bad_records to 'quarantine' or 'skip'"
    summary = ArchiveSummary(
        RANGES[:1],
        7,
        1,
        2_000,
        2.0,
        "lake",
        "file:///lake",
        bad_records=(bad,),
        not_archived={"orders": reason},
        dropped=("clicks",),
    )
    assert list(summary_lines(summary))[1:] == [
        "  views: 7 offsets in 1 partition (0: 10–20)",
        "into file:///lake: 1 new file, 2.0 kB",
        "committed for the group lake",
        "bad records, not in the table: 3 offsets:",
        "  views: 0: 12–15",
        "each with its reason is in file:///lake/_quarantine",
        "no longer named, kept at the reached offsets: clicks",
    ]
    document = json.loads(json.dumps(summary_document(summary)))
    assert document["bad_records"] == {
        "offsets": 3,
        "topics": {"views": {"0": [{"from": 12, "to": 15, "incarnation": None, "reason": "a wrong CRC"}]}},
    }
    translated = "orders:0 at offset 5: a wrong CRC; to pass it, give --bad-records quarantine or skip"
    assert (document["not_archived"], document["dropped"]) == ({"orders": translated}, ["clicks"])
    plan = ArchivePlan((), "file:///lake", "file:///lake/_checkpoint", False, (), not_archived={"orders": reason})
    assert list(plan_lines(plan))[1] == f"not orders, which would be tried again: {translated}"


def loss(partition: int, start: int, end: int | None, incarnation: int | None = None) -> Loss:
    return Loss(TopicPartition("views", partition), start, end, incarnation, "the log begins later")


def test_lost_offsets_are_accounted_and_not_counted_as_archived() -> None:
    """
    Overlapping ranges, as a repeated task may record, count once, and offsets of another log are in no range of this
    one. It may be unknown how far a deleted log went.
    """
    ranges = (OffsetRange(TopicPartition("views", 0), 0, 19_000), OffsetRange(TopicPartition("views", 1), 0, 50, 7))
    lost = (loss(0, 0, 16_000), loss(0, 15_000, 16_034), loss(1, 40, 60), loss(1, 45, 70, 7))
    summary = ArchiveSummary(ranges, 3_011, 4, 52_100_000, 2.0, "lake", "file:///lake", lost=lost)
    assert list(summary_lines(summary))[1:] == [
        "  views: 3,011 offsets in 2 partitions (0: 0–19000, 1: 0–50)",
        "into file:///lake: 4 new files, 52.1 MB",
        "committed for the group lake",
        "lost 16,079 offsets:",
        "  views: 0: 0–16000, 0: 15000–16034, 1: 40–60, 1: 45–70",
        "each loss with its reason is in file:///lake/_losses",
    ]
    document = json.loads(json.dumps(summary_document(summary)))["lost"]
    assert document["offsets"] == 16_079
    row = {"from": 45, "to": 70, "incarnation": 7, "reason": "the log begins later"}
    assert document["topics"]["views"]["1"][1] == row
    plan = ArchivePlan((), "file:///lake", "file:///lake/_checkpoint", False, (), (loss(0, 0, 3), loss(0, 300, None)))
    assert list(plan_lines(plan))[1:3] == [
        "lost 3 offsets and the rest of deleted logs, if they had more:",
        "  views: 0: 0–3, 0: 300–?",
    ]
