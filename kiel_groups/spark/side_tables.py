"""
The side tables of an archive. They list the ranges of offsets that the archive's own table lacks, with the reasons.

``_quarantine`` has bad records: messages that could not be decoded, and values that do not fit their schema.
``_losses`` has messages that were deleted before they were read. Both tables are Parquet files. The process that finds
such a range writes it: a worker or the driver. Spark repeats failed tasks and batches. The name of a file depends only
on its rows, so a repeated task replaces the files of the failed task, and each range is in the table once. A batch that
is not done may have written rows, too. Such rows may have offsets that the archive has not reached yet.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pyarrow as pa

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import Loss

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


#: The names of the tables, which are folders in the output of an archive.
QUARANTINE: Final = "_quarantine"
LOSSES: Final = "_losses"

_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
        pa.field("incarnation", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("found_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("raw", pa.binary()),
    ]
)
_SCHEMAS: Final = {QUARANTINE: _SCHEMA, LOSSES: _SCHEMA.remove(_SCHEMA.get_field_index("raw"))}
_MOST_REASON_CHARACTERS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRow:
    """
    A row of a side table: the archive's table lacks the offsets of one partition from ``offset`` to ``end_offset``.

    ``end_offset`` is exclusive. It equals ``offset`` if the end of a lost log is unknown. ``incarnation`` is the
    creation zxid of the topic, or None if unknown. ``raw`` has the bytes of the bad record. It is None if the bytes
    were not kept, and in ``_losses``.
    """

    topic: str
    partition: int
    offset: int
    end_offset: int
    reason: str
    found_at: datetime
    incarnation: int | None = None
    raw: bytes | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def loss(self) -> Loss:
        """This row as a ``Loss``. Its end is None if ``end_offset`` equals ``offset``."""
        end = self.end_offset if self.end_offset > self.offset else None
        return Loss(self.topic_partition, self.offset, end, self.incarnation, self.reason)


def record_loss(archive: str | None, loss: Loss) -> None:
    """
    Write a loss into an archive's ``_losses``. Do nothing if the query is not that of an archive.

    Args:
        archive: The absolute URI of the archive's output, or None for other queries.
        loss: The loss. It replaces an earlier loss that begins at the same offset.

    Raises:
        ConfigError: As for ``file_system``.
        KielGroupsError: The file cannot be written.
    """
    if archive is not None:
        row = SideRow(
            topic=loss.topic_partition.topic,
            partition=loss.topic_partition.partition,
            offset=loss.start,
            end_offset=loss.start if loss.end is None else loss.end,
            reason=loss.reason,
            found_at=datetime.now(UTC),
            incarnation=loss.incarnation,
        )
        write_rows(archive, LOSSES, [row])


def write_rows(archive: str, table: str, rows: Sequence[SideRow]) -> None:
    """
    Write rows of one partition as one file. The file replaces an earlier file whose first row has the same offset.

    Args:
        archive: The absolute URI of the archive's output.
        table: ``QUARANTINE`` or ``LOSSES``.
        rows: At least one row, in the order of the offsets. A repeated task must begin with the same row.

    Raises:
        ConfigError: As for ``file_system``.
        KielGroupsError: The file cannot be written.
    """
    # Imported here: most tasks write no row, and these imports would take a part of their time.
    from pyarrow.parquet import write_table

    first, schema = rows[0], _SCHEMAS[table]
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    columns["reason"] = [row.reason[:_MOST_REASON_CHARACTERS] for row in rows]
    files, folder = file_system(archive)
    # Other names than this could begin with an underscore or a dot, and readers of Parquet ignore such files.
    name = f"offsets-{first.topic}-{first.partition}-{first.incarnation or 0}-{first.offset}.parquet"
    path, draft = f"{folder}/{table}/{name}", f"{folder}/{table}/.{name}-{uuid.uuid4().hex}"
    try:
        files.create_dir(f"{folder}/{table}")
        write_table(pa.table(columns, schema), draft, filesystem=files)
        _replace(files, draft, path)
    except OSError as error:
        raise KielGroupsError(f"{archive}/{table}/{name} cannot be written: {error}") from error


def _replace(files: FileSystem, draft: str, path: str) -> None:
    try:
        files.move(draft, path)
    except OSError:
        # HDFS moves no file to the name of another one.
        with suppress(FileNotFoundError):
            files.delete_file(path)
        files.move(draft, path)


def read_rows(archive: str, table: str) -> list[SideRow]:
    """
    Return the rows of a table, without the bytes of messages. If the table does not exist, return an empty list.

    The rows are in ascending order of partitions, incarnations and offsets.

    Args:
        archive: The absolute URI of the archive's output.
        table: ``QUARANTINE`` or ``LOSSES``.

    Raises:
        ConfigError: As for ``file_system``.
        KielGroupsError: The table cannot be read.
    """
    from pyarrow.dataset import dataset
    from pyarrow.fs import FileType

    files, folder = file_system(archive)
    try:
        if files.get_file_info(f"{folder}/{table}").type == FileType.NotFound:
            return []
        found = dataset(f"{folder}/{table}", filesystem=files, format="parquet", schema=_SCHEMAS[table])
        rows = found.to_table(columns=_SCHEMAS[LOSSES].names).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise KielGroupsError(f"{archive}/{table} cannot be read: {error}") from error
    made = (SideRow(**row) for row in rows)
    return sorted(made, key=lambda row: (row.topic_partition, row.incarnation or 0, row.offset))


def file_system(archive: str) -> tuple[FileSystem, str]:
    """
    Return Arrow's file system for a URI, and the path in that file system.

    Raises:
        ConfigError: Arrow does not know the file system, or lacks a library for it.
    """
    from pyarrow.fs import FileSystem, LocalFileSystem

    if archive.startswith("file://"):
        return LocalFileSystem(), archive.removeprefix("file://")
    # Spark's names for S3; Arrow knows only ``s3``.
    archive = re.sub("^s3[an]:", "s3:", archive)
    try:
        # Like Hadoop's URIs, that of an archive has no escapes.
        found: tuple[FileSystem, str] = FileSystem.from_uri(quote(archive, safe=":/@?&=%+~"))
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"output: {archive} cannot be reached from Python, which records bad records and losses there, and verifies"
            f" archives: {str(error).splitlines()[0]}; name a folder of file:, hdfs:, s3: or gs:, with its libraries"
            " here and on every worker"
        ) from error
    return found


#: A file has rows of one block of offsets: a repeated task has the same files, even if it ends at another offset.
_BLOCK_OFFSETS: Final = 1_000
#: The size of waiting bad records at which they are written, in bytes.
_MOST_WAITING_BYTES: Final = 32 << 20


class Quarantine:
    """
    Collects the bad records of one range of offsets, and writes them into the archive's ``_quarantine``.

    Args:
        archive: The absolute URI of the archive's output.
    """

    def __init__(self, archive: str) -> None:
        self._archive = archive
        self._waiting: list[SideRow] = []
        self._waiting_bytes = 0

    def add(self, row: SideRow) -> None:
        """
        Add the next bad record of the range. This may write the rows collected before.

        Raises:
            KielGroupsError: The rows cannot be written.
        """
        is_other = bool(self._waiting) and self._waiting[0].offset // _BLOCK_OFFSETS != row.offset // _BLOCK_OFFSETS
        if is_other or self._waiting_bytes > _MOST_WAITING_BYTES:
            self.flush()
        self._waiting.append(row)
        self._waiting_bytes += len(row.raw or b"")

    def flush(self) -> None:
        """Write the collected rows. The caller must call this before the task ends. Raises as ``write_rows``."""
        if self._waiting:
            write_rows(self._archive, QUARANTINE, self._waiting)
            self._waiting, self._waiting_bytes = [], 0
