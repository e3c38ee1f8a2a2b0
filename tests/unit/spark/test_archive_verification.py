"""Archives on disk, compared by offsets with their checkpoints and side tables: without Spark, and without brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.cli.app import run
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition
from kiel_groups.spark import archive_files, verify_archive
from kiel_groups.spark.side_tables import LOSSES, QUARANTINE
from tests.helpers.spark.archive_folder import Archive, Row

pytestmark = pytest.mark.unit


def span(begin: int, to: int, token: int = 1, incarnation: int | None = None) -> dict[str, Any]:
    given = {"from": begin, "to": to, "token": token}
    return given if incarnation is None else {**given, "incarnation": incarnation}


def rows(partition: int, start: int, end: int, incarnation: int | None = None) -> list[Row]:
    return [(partition, offset, incarnation) for offset in range(start, end)]


def found(archive: Archive) -> list[tuple[int, int | None, int, list[tuple[str, int, int]]]]:
    """Verify an archive. Return partition, incarnation, number of rows and differences of each log."""
    return [
        (
            each.topic_partition.partition,
            each.incarnation,
            each.rows,
            [(difference.kind, difference.start, difference.end) for difference in each.differences],
        )
        for each in verify_archive(str(archive.output)).logs
    ]


def test_a_complete_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Rows of partitions may be mixed in a file, files of earlier releases have no incarnation, and a batch whose files
    are not listed does not count.
    """
    archive = Archive(tmp_path)
    archive.add({"0": span(3, 10), "1": span(0, 2)}, rows(0, 3, 10), rows(1, 0, 2), labelled=False)
    mixed = [row for pair in zip(rows(0, 10, 20, 7), rows(1, 2, 12, 7), strict=True) for row in pair]
    archive.add({"0": span(3, 20, 1, 7), "1": span(0, 12, 1, 7)}, mixed)
    archive.add({"0": span(3, 90, 1, 7), "1": span(0, 12, 1, 7)}, rows(0, 20, 30, 7), listed=False)
    assert found(archive) == [(0, 7, 17, []), (1, 7, 12, [])]
    result = verify_archive(str(archive.output))
    assert (result.is_complete, result.batch, result.files, result.compared_with_log) == (True, 1, 3, False)
    # The file of the batch that is not done is there, too.
    assert len(archive_files(str(archive.output))) == 3
    assert set(archive_files(str(archive.output))) < {str(path) for path in archive.output.glob("topic=*/**/*.parquet")}
    assert result.logs[0].topic_partition == TopicPartition("views", 0)
    assert run(["spark", "verify", "--output", str(archive.output)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"file://{archive.output}, up to batch 1: complete",
        "  views: 2 partitions, 29 records: complete",
        "29 records in 3 files, of 29 planned offsets",
        "only files were compared: what compaction has removed, and what the logs have beyond the archive, needs"
        " --brokers",
    ]


def test_each_difference_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, doubled and out of order rows, files that cannot be read, and what the side tables explain."""
    archive = Archive(tmp_path)
    first = [*rows(0, 0, 4, 7), *rows(0, 6, 9, 7), *rows(0, 4, 6, 7), *rows(0, 8, 10, 7)]
    archive.add({"0": span(0, 15, 1, 7), "1": span(0, 5, 1, 7)}, first, rows(1, 0, 5, 7))
    # Retention was faster, up to offset 30; then the topic was created again.
    archive.add({"0": span(30, 40, 2, 7), "1": span(0, 5, 1, 7)}, rows(0, 30, 35, 7), rows(0, 36, 40, 7))
    archive.add({"0": span(0, 2, 3, 9), "1": span(0, 5, 1, 7)}, rows(0, 0, 2, 9))
    archive.add_side_row(QUARANTINE, 35, 36, 7, "the checksum is wrong")
    # A batch that is not done has found this one.
    archive.add_side_row(QUARANTINE, 40, 41, 7, "the checksum is wrong")
    archive.add_side_row(LOSSES, 15, 30, 7, "retention was faster")
    archive.add_side_row(LOSSES, 40, 40, 7, "the topic was created again")
    listed = "topic=views/date=2026-11-28"
    (archive.output / listed / "part-0-1.parquet").write_bytes(b"PAR1")
    assert found(archive) == [
        (
            0,
            7,
            20,
            [
                ("out of order", 4, 6),
                ("doubled", 8, 9),
                ("missing", 10, 15),
                ("lost", 15, 30),
                ("quarantined", 35, 36),
                ("lost", 40, 40),
            ],
        ),
        (0, 9, 2, []),
        (1, 7, 0, [("missing", 0, 5)]),
    ]
    assert run(["spark", "verify", "--output", str(archive.output)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"file://{archive.output}, up to batch 2: 3 ranges unexplained, 1 file unreadable"
    assert lines[1].startswith("  views/date=2026-11-28/part-0-1.parquet cannot be read: ")
    assert lines[2:] == [
        "  views: 2 partitions, 22 records: 3 ranges unexplained, 4 ranges explained",
        "    views:0 of incarnation 7 doubled offset 8",
        "    views:0 of incarnation 7 missing 5 offsets, 10 to 14",
        "    views:1 of incarnation 7 missing 5 offsets, 0 to 4",
        "    views:0 of incarnation 7 out of order 2 offsets, 4 to 5: Spark sorts a batch by folders, and the sort"
        " keeps no order once it needs the disk",
        "    views:0 of incarnation 7 lost 15 offsets, 15 to 29: retention was faster",
        "    views:0 of incarnation 7 quarantined offset 35: the checksum is wrong",
        "    views:0 of incarnation 7 lost from offset 40 on, if there was more: the topic was created again",
        "22 records in 5 files, of 47 planned offsets",
        "offsets: 1 quarantined, 15 lost, 2 out of order, 10 missing, 1 doubled",
        lines[-1],
    ]
    assert run(["spark", "verify", "--output", str(archive.output), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["complete"], document["batch"], len(document["logs"])) == (False, 2, 3)
    assert document["logs"][0]["ranges"][3] == {
        "kind": "lost",
        "from": 15,
        "to": 30,
        "explained": True,
        "reason": "retention was faster",
    }
    totals = document["totals"]
    lacking = sum(totals[kind] for kind in ("quarantined", "lost", "compacted", "missing"))
    assert totals["rows"] == totals["planned"] - lacking + totals["doubled"] + totals["unplanned"]


def test_a_folder_that_is_no_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line. An archive without a batch has nothing that could differ."""
    with pytest.raises(ConfigError, match=r"is no archive: _archive\.json is missing there"):
        verify_archive(str(tmp_path))
    assert run(["spark", "verify", "--output", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --output: file://{tmp_path} is no archive")
    empty = Archive(tmp_path)
    assert run(["spark", "verify", "--output", str(empty.output)]) == 0
    assert capsys.readouterr().out.startswith(f"file://{empty.output}: nothing is archived yet\n")


def test_batches_before_spark_4_2(tmp_path: Path) -> None:
    """There, only the first batch says where it begins, and a new log begins at offset 0."""
    archive = Archive(tmp_path)
    archive.add({"0": {"from": 5, "to": 10}}, rows(0, 5, 10))
    archive.add({"0": {"to": 20}}, rows(0, 10, 18))
    archive.add({"0": {"to": 3}}, rows(0, 0, 3))
    archive.add_side_row(LOSSES, 20, 20, None, "the log ends at 3")
    assert found(archive) == [(0, None, 16, [("missing", 18, 20), ("lost", 20, 20)])]


def test_a_removed_loss_is_a_difference(tmp_path: Path) -> None:
    """
    Whenever a batch does not continue where the one before has ended, ``_losses`` has to say why: because a new log
    was read, because retention was faster, or because the topic was deleted.
    """
    archive = Archive(tmp_path)
    archive.add({"0": span(0, 10, 1, 7)}, rows(0, 0, 10, 7))
    archive.add({"0": span(0, 5, 2, 9)}, rows(0, 0, 5, 9))
    archive.add({"0": span(8, 10, 3, 9)}, rows(0, 8, 10, 9))
    archive.add({})
    losses = [(10, 10, 7), (5, 8, 9), (10, 10, 9)]
    for start, end, incarnation in losses:
        archive.add_side_row(LOSSES, start, end, incarnation, "it is gone")
    assert verify_archive(str(archive.output)).is_complete
    expected = [("ended", 10, 10), ("missing", 5, 8), ("ended", 10, 10)]
    for (start, end, incarnation), difference in zip(losses, expected, strict=True):
        (archive.output / LOSSES / f"offsets-views-0-{incarnation}-{start}.parquet").unlink()
        unexplained = [each[:3] for log in verify_archive(str(archive.output)).logs for each in log.unexplained]
        assert unexplained == [difference]
        archive.add_side_row(LOSSES, start, end, incarnation, "it is gone")
