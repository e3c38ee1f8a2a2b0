"""The side tables of an archive: a repeated task replaces its files, and every reader of Parquet reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.model import TopicPartition
from kiel_groups.spark import side_tables
from kiel_groups.spark.checkpoint import Loss
from kiel_groups.spark.folders import ArrowFolder
from kiel_groups.spark.side_tables import (
    LOSSES,
    QUARANTINE,
    Quarantine,
    SideRow,
    file_system,
    read_rows,
    record_loss,
    write_rows,
)

pytestmark = pytest.mark.unit

FOUND_AT = datetime(2026, 11, 28, 13, 5, tzinfo=UTC)


def row(offset: int, **given: Any) -> SideRow:
    values = {"topic": "views", "partition": 0, "end_offset": offset + 1, "reason": "a wrong CRC", "found_at": FOUND_AT}
    return SideRow(offset=offset, **{**values, **given})


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Both tables have their rows in order; the bytes are read on request, and losses have none."""
    archive = f"file://{tmp_path}/a lake"
    assert read_rows(archive, QUARANTINE) == []
    write_rows(archive, QUARANTINE, [row(40, raw=b"\xff", incarnation=7), row(50, raw=b"")])
    write_rows(archive, QUARANTINE, [row(9, end_offset=20)])
    write_rows(archive, LOSSES, [row(5)])
    assert read_rows(archive, QUARANTINE) == [row(9, end_offset=20), row(50), row(40, incarnation=7)]
    raw = [
        pa.parquet.read_table(path)["raw"].to_pylist() for path in sorted((tmp_path / "a lake" / QUARANTINE).iterdir())
    ]
    assert raw == [[None], [b"\xff", b""]]
    assert read_rows(archive, LOSSES) == [row(5)]
    assert "raw" not in pa.parquet.read_schema(next((tmp_path / "a lake" / LOSSES).iterdir())).names


def test_a_repeated_task_replaces_its_file(tmp_path: Path) -> None:
    """Rows from the same first one are one file. Its name begins with no character that hides a file from readers."""
    archive = f"file://{tmp_path}"
    for rows in ([row(3, topic="_x")], [row(3, topic="_x", found_at=FOUND_AT + timedelta(1)), row(4, topic="_x")]):
        write_rows(archive, QUARANTINE, rows)
    assert files(tmp_path / QUARANTINE) == ["offsets-_x-0-0-3.parquet"]
    assert [each.offset for each in read_rows(archive, QUARANTINE)] == [3, 4]


def test_a_long_reason_is_cut(tmp_path: Path) -> None:
    """The text of an error, which may quote data, is bounded."""
    write_rows(f"file://{tmp_path}", LOSSES, [row(3, reason="x" * 5_000)])
    (found,) = read_rows(f"file://{tmp_path}", LOSSES)
    assert len(found.reason) == 1_000


def collect(archive: str, bad: list[int], start: int, end: int) -> None:
    quarantine = Quarantine(archive)
    for offset in bad:
        if start <= offset < end:
            quarantine.add(row(offset))
    quarantine.flush()


def test_a_range_that_is_repeated_with_another_end_leaves_no_row_twice(tmp_path: Path) -> None:
    """
    A failed batch may be planned again with other ends. Files cover fixed blocks of offsets, so those of the second
    plan replace all files of the first one.
    """
    archive, bad = f"file://{tmp_path}", [10, 600, 1_200, 1_900, 2_500]
    collect(archive, bad, 5, 3_000)
    for start, end in ((5, 1_500), (1_500, 3_000)):
        collect(archive, bad, start, end)
        assert {each.offset for each in read_rows(archive, QUARANTINE)} >= {each for each in bad if each < end}
    assert [each.offset for each in read_rows(archive, QUARANTINE)] == bad


def test_large_messages_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes in memory are bounded."""
    monkeypatch.setattr(side_tables, "_MOST_WAITING_BYTES", 10)
    quarantine = Quarantine(f"file://{tmp_path}")
    for offset in range(4):
        quarantine.add(row(offset, raw=bytes(6)))
    assert len(files(tmp_path / QUARANTINE)) == 1
    quarantine.flush()
    assert [each.offset for each in read_rows(f"file://{tmp_path}", QUARANTINE)] == [0, 1, 2, 3]


def test_a_file_system_that_arrow_does_not_know_is_refused() -> None:
    """The error is one line, names the folder, and says which file systems there are."""
    file_system("file:///nowhere")
    with pytest.raises(ConfigError, match=r"^output: webhdfs://node/lake cannot be reached .* file:, hdfs:, s3:"):
        file_system("webhdfs://node/lake")


class Elsewhere(SubTreeFileSystem):
    """A file system that, as HDFS does, moves no file to the name of another one."""

    def move(self, src: str, dest: str) -> None:
        if self.get_file_info(dest).is_file:
            raise FileExistsError(dest)
        super().move(src, dest)


def test_tables_can_be_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All paths are those of the file system that Arrow finds for the URI. A repeated task replaces its file there."""
    files_there = Elsewhere(str(tmp_path), LocalFileSystem())
    for module in ("side_tables", "folders"):
        name = f"kiel_groups.spark.{module}.file_system"
        monkeypatch.setattr(name, lambda uri: (files_there, uri.removeprefix("lake://node/")))
    archive = "lake://node/archives/a lake"
    for reason in ("a wrong CRC", "another one"):
        write_rows(archive, QUARANTINE, [row(3, reason=reason)])
    record_loss(archive, Loss(TopicPartition("views", 0), 5, None, 7, "it is gone"))
    assert read_rows(archive, QUARANTINE) == [row(3, reason="another one")]
    (loss,) = read_rows(archive, LOSSES)
    assert (loss.offset, loss.end_offset, loss.reason) == (5, 5, "it is gone")
    assert files(tmp_path / "archives/a lake" / QUARANTINE) == ["offsets-views-0-0-3.parquet"]
    folder = ArrowFolder(archive)
    assert (sorted(folder.names()), folder.names("none")) == ([LOSSES, QUARANTINE], [])


def test_a_table_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Errors of the file system name the table."""
    (tmp_path / QUARANTINE).touch()
    with pytest.raises(KielGroupsError, match=rf"{tmp_path}/{QUARANTINE}/offsets-views-0-0-3.parquet cannot be writ"):
        write_rows(f"file://{tmp_path}", QUARANTINE, [row(3)])
    (tmp_path / LOSSES).mkdir()
    (tmp_path / LOSSES / "offsets-views-0-0-3.parquet").write_bytes(b"garbage")
    with pytest.raises(KielGroupsError, match=rf"{tmp_path}/{LOSSES} cannot be read"):
        read_rows(f"file://{tmp_path}", LOSSES)
