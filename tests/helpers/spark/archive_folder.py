"""Archives that a test writes itself, without Spark: batches, files and side tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kiel_groups.spark import ArchiveSettings
from kiel_groups.spark.archive_folders import ArchiveFolders
from kiel_groups.spark.side_tables import SideRow, write_rows

__all__ = ["Archive", "Row"]

#: A row: the partition, the offset, and the incarnation of the topic.
Row = tuple[int, int, int | None]


class Archive:
    """An archive of one topic, in a folder whose name needs escapes in URIs."""

    def __init__(self, folder: Path, topic: str = "views", brokers: Sequence[str] = ("h:1",)) -> None:
        self.output = folder / "the lake"
        self._topic = topic
        settings = ArchiveSettings(topics=(topic,), output=str(self.output), brokers=",".join(brokers))
        ArchiveFolders(settings, None).claim(brokers)
        for name in ("_checkpoint/offsets", "_checkpoint/commits", "_spark_metadata"):
            (self.output / name).mkdir(parents=True)
        self._batches = 0

    def add(self, positions: dict[str, Any], *files: Sequence[Row], labelled: bool = True, listed: bool = True) -> None:
        """Add a batch with its end positions and its files."""
        number, self._batches = self._batches, self._batches + 1
        document = {"@query": "q", self._topic: positions}
        (self.output / f"_checkpoint/offsets/{number}").write_text(f"v1\n{{}}\n{json.dumps(document)}")
        entries = ["v1"]
        for part, rows in enumerate(files):
            path = self.output / f"topic={self._topic}" / "date=2026-11-28" / f"part-{number}-{part}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            columns = {"partition": pa.array([row[0] for row in rows], pa.int32())}
            columns["offset"] = pa.array([row[1] for row in rows], pa.int64())
            if labelled:
                columns["incarnation"] = pa.array([row[2] for row in rows], pa.int64())
            pq.write_table(pa.table(columns), path)
            uri = f"file://{path}".replace(" ", "%20")
            entries.append(json.dumps({"path": uri, "size": path.stat().st_size, "action": "add"}))
        if listed:
            (self.output / f"_spark_metadata/{number}").write_text("\n".join(entries))
            (self.output / f"_checkpoint/commits/{number}").write_text("v1\n{}")

    def add_side_row(self, table: str, offset: int, end: int, incarnation: int | None, reason: str) -> None:
        """Add a row about partition 0 to the quarantine or to the losses."""
        row = SideRow(
            topic=self._topic,
            partition=0,
            offset=offset,
            end_offset=end,
            reason=reason,
            found_at=datetime(2026, 11, 28, tzinfo=UTC),
            incarnation=incarnation,
        )
        write_rows(f"file://{self.output}", table, [row])
