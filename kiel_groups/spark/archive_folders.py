"""
Read and check the folders of an archive: its description, its completed batches and its files.

Spark's sink writes the files of a batch under their final names. Then it writes a list of these files into
``_spark_metadata``. Only listed files belong to the archive, and each batch has one list. An interrupted batch leaves
files that are not listed, and its records are written again into other files. Spark reads only listed files, but other
readers read every file. So unlisted files are moved into ``_leftovers`` if the archive is on this machine, where a lock
proves that no other run is writing. No file of records is ever deleted, because lists can be lost, and because files
can belong to a user.
"""

from __future__ import annotations

import fcntl
import json
import logging
import re
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

from py4j.protocol import Py4JError, Py4JJavaError
from pyarrow import NativeFile
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kiel_groups.errors import ConfigError, KielGroupsError, ProtocolError
from kiel_groups.spark.archive_table import DAY, ArchiveSettings
from kiel_groups.spark.checkpoint import Positions, Span, json_object, without_reading
from kiel_groups.spark.columns import known_schemas, merged_schema, removed_or_changed
from kiel_groups.spark.folders import (
    ArrowFolder,
    draft_of,
    local_path,
    located,
    make_folder_durably,
    moved,
    obstacle,
    open_folder,
)
from kiel_groups.spark.spark_session import JAVA_ENDED
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)

#: The file that describes the archive, in each of its folders. The description names both folders.
_IN_OUTPUT: Final = "_archive.json"
_IN_CHECKPOINT: Final = "archive.json"
_LOCK: Final = "archive.lock"
_LISTS: Final = "_spark_metadata"
_COMPACT: Final = ".compact"
#: The first line of every list.
_VERSION: Final = "v1"
#: Readers of Parquet ignore folders whose names begin with an underscore.
_LEFTOVERS: Final = "_leftovers"


def archive_files(output: str, *, checkpoint: str | None = None) -> list[str]:
    """
    Return the files with the records of an archive, in ascending order, for readers other than Spark.

    The archive's folder may have other files, some of them empty, from a run that is active or was killed.

    Args:
        output: The folder of the archive: a path of this machine, or a URI of a file system that pyarrow supports.
        checkpoint: The folder of the archive's progress. The default is the folder that the archive's description
            names.

    Returns:
        Paths if the archive is on this machine, otherwise URIs.

    Raises:
        ConfigError: There is no archive, or its checkpoint is damaged.
        FolderError: A folder cannot be read.
    """
    uris = map(unquote, ArchiveFolders.existing(output, checkpoint).files())
    return sorted(re.sub("^file:(//)?(?=/)", "", uri) for uri in uris)


class ArchiveFolders:
    """
    The folders of one archive.

    Creating this object checks the folders. The check writes a probe file, and deletes it at once.

    Args:
        settings: The folders, and the topics of the archive.
        spark: A session. It is needed to write if one of the folders is not on this machine.
        writes: Whether to check that the folders can be written.

    Raises:
        ConfigError: The folders cannot be written, have lost files, or belong to another archive or to other topics; or
            they are not empty and have no archive. The message names the remedy.
        FolderError: A folder cannot be read.
    """

    def __init__(self, settings: ArchiveSettings, spark: SparkSession | None, *, writes: bool = True) -> None:
        self.settings = settings
        if writes:
            _check_place("output", settings.output_uri)
            _check_place("checkpoint", settings.checkpoint_uri)
        self._output = open_folder(settings.output_uri, spark)
        self._checkpoint = open_folder(settings.checkpoint_uri, spark)
        self._known = self._recorded()

    @classmethod
    def existing(cls, output: str, checkpoint: str | None = None) -> Self:
        """
        Open the folders of an archive for reading, without Spark.

        Args:
            output: A path or a URI.
            checkpoint: A path or a URI, or None for the checkpoint that the archive's description names.

        Raises:
            ConfigError: There is no archive, or its folders do not fit each other.
            FolderError: A folder cannot be read.
        """
        uri = located(output)
        text = open_folder(uri, None).read(_IN_OUTPUT)
        if text is None:
            raise ConfigError(f"output: {uri} is no archive: {_IN_OUTPUT} is missing there; name the archive's folder")
        known = _document(text, uri, _IN_OUTPUT)
        settings = ArchiveSettings(
            topics=tuple(known["topics"]),
            pattern=known["pattern"],
            output=output,
            checkpoint=checkpoint or known["checkpoint"],
            brokers=",".join(known["brokers"]),
            roll=known.get("roll", DAY),
            time_field=known.get("time_field"),
            schemas=_known_schemas(known, uri),
        )
        return cls(settings, None, writes=False)

    @property
    def is_new(self) -> bool:
        """Whether no run has started this archive yet."""
        return self._known is None

    @property
    def last_topics(self) -> frozenset[str]:
        """The names of the topics in the settings of the last run. Empty without a last run, or if it had a pattern."""
        return frozenset(() if self._known is None else self._known["topics"])

    # ------------------------------------------------------------------ identity

    def _recorded(self) -> dict[str, Any] | None:
        """
        Check the archive's description against the settings, and return the description.

        For a new archive, check that the folders are empty, and return None. Raises ConfigError as the class says.
        """
        settings = self.settings
        output, checkpoint = self._output.read(_IN_OUTPUT), self._checkpoint.read(_IN_CHECKPOINT)
        if output is None and checkpoint is None:
            self._check_empty()
            return None
        places = (settings.output_uri, _IN_OUTPUT), (settings.checkpoint_uri, _IN_CHECKPOINT)
        texts = (output, checkpoint)
        found = [_document(text, *place) for text, place in zip(texts, places, strict=True) if text is not None]
        for each in found:
            self._check_places(each)
        if checkpoint is None:
            raise ConfigError(
                f"checkpoint: {settings.checkpoint_uri} was emptied; without it the archive's contents are unknown."
                " Restore it, or begin a new archive in another folder"
            )
        self._check_topics(found[-1])
        self._check_table(found[-1])
        self._check_batches()
        self._check_checkpoint()
        return found[-1]

    def _check_batches(self) -> None:
        """
        Check that the folders have lost no lists of batches after the newest compacted list.

        A compacted list has the files of all batches up to its own. Each later batch that is completed, or that is
        followed by a listed batch, must have a list of its own. The checkpoint must know the newest batch that has a
        list.

        Raises:
            ConfigError: The output or the checkpoint has lost files.
        """
        settings = self.settings
        compacted, listed = self._lists()
        unlisted = [number for number in _numbers(self._checkpoint.names("commits")) if number > compacted]
        for number in sorted({*unlisted, *range(compacted + 1, max(listed, default=compacted))}):
            if number not in listed or not (self._list(str(number)) or "").startswith(_VERSION):
                raise ConfigError(
                    f"output: {settings.output_uri}/{_LISTS} does not say which files batch {number} has made, and that"
                    " is done. Restore it: without it the files that count are unknown; or begin a new archive in"
                    " another folder"
                )
        newest = max(listed, default=compacted)
        if newest > max(_numbers(self._checkpoint.names("offsets")), default=-1):
            raise ConfigError(
                f"checkpoint: {settings.checkpoint_uri} does not know batch {newest}, which the output has: it was"
                " emptied, or is an old one. Restore it, or begin a new archive in another folder"
            )

    def _check_checkpoint(self) -> None:
        """
        Check the files in the checkpoint from which Spark continues.

        Raises:
            ConfigError: A file is damaged or missing. The message has the remedy.
        """
        for batch in sorted(_numbers(self._checkpoint.names("offsets")))[-2:]:
            self._planned(batch)
        done = _numbers(self._checkpoint.names("commits"))
        self._check_file("metadata", 'then write {"id": "…"} into it, with any UUID: it only names the query')
        if done:
            self._check_file(f"commits/{max(done)}", "the output has the batch, and the next run only records it again")

    def _check_file(self, name: str, remedy: str) -> None:
        text = self._checkpoint.read(name)
        if text is not None and json_object(text.strip().rpartition("\n")[2]) is None:
            raise ConfigError(self._damaged(name, f"delete it and its .crc file; {remedy}"))

    def _damaged(self, name: str, remedy: str) -> str:
        return f"checkpoint: {self.settings.checkpoint_uri}/{name} is damaged or missing; restore it, or {remedy}"

    def _check_empty(self) -> None:
        """
        Check that the folders of a new archive are empty, apart from the archive's own files.

        Raises:
            ConfigError: A folder has other files, which may belong to a user.
        """
        settings = self.settings
        inside = settings.checkpoint_uri.removeprefix(f"{settings.output_uri}/").partition("/")[0]
        for name, folder, uri in (
            ("output", self._output, settings.output_uri),
            ("checkpoint", self._checkpoint, settings.checkpoint_uri),
        ):
            ours = {inside, _LOCK, draft_of(_IN_CHECKPOINT)}
            if strange := sorted(set(folder.names()) - ours):
                raise ConfigError(
                    f"{name}: {uri} is no archive, and is not empty (it has {some(strange, most=3)}); name a new"
                    " folder, an empty one, or that of an archive"
                )

    def _check_places(self, known: dict[str, Any]) -> None:
        given = {"output": self.settings.output_uri, "checkpoint": self.settings.checkpoint_uri}
        for name, other in (("output", "checkpoint"), ("checkpoint", "output")):
            if known[name] != given[name]:
                raise ConfigError(
                    f"{name}: {given[name]} given; the archive with the {other} {given[other]} has {known[name]}. Name"
                    f" that, or another {other} (a moved archive is read, and not continued)"
                )

    def _check_topics(self, known: dict[str, Any]) -> None:
        topics, pattern = self.settings.topics, self.settings.pattern
        if known["pattern"] != pattern:
            selector = "names" if known["pattern"] is None else f"the pattern {known['pattern']!r}"
            raise ConfigError(f"topics: this archive was begun with {selector}; use that, or name another output")
        if topics and not set(known["topics"]).intersection(topics):
            raise ConfigError(
                f"topics: this archive is of {some(known['topics'], most=3)}, and none of them is named; name one of"
                " them too (others may be added or dropped), or name another output"
            )

    def _check_table(self, known: dict[str, Any]) -> None:
        """
        Check that the settings keep the folders and columns of the files that earlier runs have written.

        Raises:
            ConfigError: The settings choose other folders, or remove or change a column.
        """
        settings = self.settings
        compacted, listed = self._lists()
        if compacted < 0 and not listed:
            return
        if (roll := known.get("roll", DAY)) != settings.roll:
            raise ConfigError(
                f"roll: this archive has a folder for each {roll}, and readers know one kind in a table;"
                f" continue with {roll!r}, or name another output"
            )
        if (event_time := known.get("time_field")) != (settings.event_time and str(settings.event_time)):
            begun = "the time of arrival" if event_time is None else f"the event's time, {event_time!r}"
            raise ConfigError(
                f"time_field: {settings.time_field or 'none'} given; the folders of this archive are by {begun}. Go on"
                " so, or name another output; or, if they may differ from now on, change 'time_field' in"
                f" {settings.checkpoint_uri}/{_IN_CHECKPOINT}"
            )
        before = _known_schemas(known, settings.checkpoint_uri)
        for topic in filter(settings.reads, before):
            if taken := removed_or_changed(before[topic], settings.schemas.get(topic, StructType())):
                raise ConfigError(
                    f"schema: of {topic}, {taken}, and this archive has such a column; fields may be added only. Go on"
                    " with this field, or name another output; or, if no file has it, change 'schemas' in"
                    f" {settings.checkpoint_uri}/{_IN_CHECKPOINT}"
                )
        merged_schema({**before, **settings.schemas})

    def check_brokers(self, brokers: Collection[str]) -> None:
        """
        Check that the archive was read from the cluster of these brokers. A new archive passes.

        Args:
            brokers: All brokers of the cluster, as ``host:port``.

        Raises:
            ConfigError: The cluster of the last run had no broker of these addresses.
        """
        if self._known is not None and not set(brokers).intersection(self._known["brokers"]):
            raise ConfigError(
                f"brokers: this archive was read from {', '.join(self._known['brokers'])}, and {', '.join(brokers)} are"
                " others, whose offsets mean other records. Name another output; or, if the cluster has moved, change"
                f" 'brokers' in {self.settings.checkpoint_uri}/{_IN_CHECKPOINT}"
            )

    def claim(self, brokers: Collection[str]) -> None:
        """
        Write the description of the archive into the output and the checkpoint.

        ``brokers`` are all brokers of the cluster, as ``host:port``.
        """
        settings = self.settings
        # Topics that this run does not name keep their columns.
        before = _known_schemas(self._known, settings.checkpoint_uri) if self._known else {}
        schemas = {**before, **settings.schemas}
        document = {
            "output": settings.output_uri,
            "checkpoint": settings.checkpoint_uri,
            "topics": list(settings.topics),
            "pattern": settings.pattern,
            "brokers": sorted(brokers),
            "roll": settings.roll,
            "time_field": settings.event_time and str(settings.event_time),
            "schemas": {topic: each.jsonValue() for topic, each in schemas.items()},
        }
        text = f"{json.dumps(document, indent=2)}\n"
        # The checkpoint first: if only the output had a description, the checkpoint would seem to have been emptied.
        self._checkpoint.write(_IN_CHECKPOINT, text)
        self._output.write(_IN_OUTPUT, text)

    @contextmanager
    def locked(self, spark: SparkSession) -> Iterator[None]:
        """
        Hold the archive's lock during the block, so that no other run starts.

        Without a checkpoint on this machine, there is no lock. Then Spark itself detects a second run when it records
        a batch.

        Spark's Java process holds the lock, because Java writes the files, and may outlive a driver that was killed.

        Raises:
            ConfigError: Another run of this archive is active.
        """
        path = local_path(self.settings.checkpoint_uri)
        if path is None:
            yield
            return
        path.mkdir(parents=True, exist_ok=True)
        java: Any = spark._jvm
        file = java.java.io.RandomAccessFile(str(path / _LOCK), "rw")
        try:
            if not _lock(file):
                raise ConfigError(
                    f"checkpoint: another archive runs on {self.settings.checkpoint_uri}; wait for its end, or name"
                    " another output"
                )
            yield
        finally:
            file.close()

    def sweep_after(self, spark: SparkSession) -> None:
        """
        Call ``sweep`` after a batch has failed within ``locked``. Ignore errors.

        A killed Java process no longer has the lock. In that case, this process takes the lock for the call. If another
        run has it, nothing is moved.
        """
        with suppress(Py4JError, OSError, KielGroupsError):
            java: Any = spark._jvm
            try:
                java.java.lang.System.nanoTime()
            except JAVA_ENDED:
                path = local_path(f"{self.settings.checkpoint_uri}/{_LOCK}")
                if path is not None:
                    with path.open("r+") as file:
                        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        self.sweep()
            else:
                self.sweep()

    # ------------------------------------------------------------------ contents

    def positions(self) -> Positions | None:
        """
        Return the positions that the archive has reached: the end of the last completed batch.

        If no batch is completed, return the start of the first batch. If no batch is planned, return None.

        Raises:
            ConfigError: A file of the checkpoint is damaged or missing.
            ProtocolError: The checkpoint belongs to another data source.
        """
        done = _numbers(self._checkpoint.names("commits"))
        if done:
            return self._planned(max(done))
        if not _numbers(self._checkpoint.names("offsets")):
            return None
        first = self._planned(0)
        spans = {partition: Span(span.begin, span.begin, span.token) for partition, span in first.spans.items()}
        return Positions(spans, first.query)

    def _planned(self, batch: int) -> Positions:
        """
        Return the end of a batch, from the last line of the batch's file in the checkpoint.

        Raises:
            ConfigError: The file is damaged or missing.
        """
        lines = (self._checkpoint.read(f"offsets/{batch}") or "").splitlines()
        document = json_object(lines[-1]) if len(lines) > 2 else None
        if document is not None:
            with suppress(ProtocolError):
                return Positions.from_json(document)
        compacted, listed = self._lists()
        is_listed = batch <= max(listed, default=compacted)
        remedy = (
            "begin a new archive in another folder"
            if is_listed
            else "delete it and its .crc file; nothing of the batch is archived, and the next run plans it again"
        )
        raise ConfigError(self._damaged(f"offsets/{batch}", remedy))

    def hold(self, topics: Collection[str]) -> dict[str, Any]:
        """
        Exclude topics from the next batches, and return their positions for the source's option ``kiel.archive.held``.

        If a batch is planned and not done, change it, so that it reads nothing of these topics. Call this method only
        within ``locked``, so that no other run writes the batch.

        Raises:
            ConfigError: A batch has to be changed, the file system has no lock, and ``is_only_run`` is not set. Or a
                file of the checkpoint is damaged or missing.
        """
        number = max(_numbers(self._checkpoint.names("offsets")), default=None)
        if number is None:
            return {topic: {} for topic in topics}
        planned = self._planned(number)
        listed = self.listed_batch()
        done = [*_numbers(self._checkpoint.names("commits")), -1 if listed is None else listed]
        if number > max(done):
            before = self._planned(number - 1) if number else None
            changed = without_reading(topics, before, planned)
            if changed != planned:
                self._change_batch(number, changed)
            planned = changed
        held = Positions({each: span for each, span in planned.spans.items() if each.topic in topics}).to_json()
        return {topic: held.get(topic, {}) for topic in topics}

    def _change_batch(self, number: int, end: Positions) -> None:
        checkpoint = local_path(self.settings.checkpoint_uri)
        if checkpoint is not None:
            # Spark refuses a file that its checksum does not fit, and reads one without a checksum.
            (checkpoint / "offsets" / f".{number}.crc").unlink(missing_ok=True)
        elif not self.settings.is_only_run:
            raise ConfigError(
                f"checkpoint: batch {number} is planned and not done, and only a run with all of its topics can finish"
                " it, as another run may be writing it: there is no lock, which needs a checkpoint on this machine. If"
                " there is no other run, set is_only_run, and the other topics are archived"
            )
        lines = (self._checkpoint.read(f"offsets/{number}") or "").splitlines()
        self._checkpoint.write(f"offsets/{number}", "\n".join([*lines[:-1], json.dumps(end.to_json())]))

    def listed_batch(self) -> int | None:
        """Return the number of the last batch whose files are listed, or None if no batch is listed."""
        compacted, listed = self._lists()
        newest = max(listed, default=compacted)
        return newest if newest >= 0 else None

    def history(self, last: int) -> dict[int, Positions]:
        """
        Return the end of each batch that the checkpoint still has, up to the batch ``last``, by batch number. Spark
        deletes old batches.
        """
        return {each: self._planned(each) for each in _numbers(self._checkpoint.names("offsets")) if each <= last}

    def opened(self, path: str) -> NativeFile:
        """Open a listed file for reading. ``path`` is a URI with escapes. Opening and reading may raise OSError."""
        return ArrowFolder(self.settings.output_uri).opened(_inside(path))

    def check_written(self, batch: int) -> None:
        """
        Check that the files of a completed batch are in the output, if the output is a folder of this machine.

        The check passes for a batch whose list is compacted: that list also names older files, which may be deleted.

        Raises:
            ConfigError: A file is missing. Executors on other machines have written it to disks of their own.
        """
        output = local_path(self.settings.output_uri)
        listed = () if output is None else _entries(self._list(str(batch)))
        if missing := [entry["path"] for entry in listed if not Path(f"{output}/{_inside(entry['path'])}").exists()]:
            raise ConfigError(
                f"output: {output} on {socket.gethostname()} does not have {_inside(missing[0])}, which an executor has"
                " written: the executors have other disks. Begin a new archive in a folder that all machines share, as"
                " hdfs://…, s3://… or a network mount"
            )

    def files(self) -> dict[str, int]:
        """Return the size in bytes of every listed file, by its path."""
        compacted, listed = self._lists()
        names = [f"{compacted}{_COMPACT}"] if compacted >= 0 else []
        names += [str(number) for number in sorted(listed)]
        return {entry["path"]: entry["size"] for name in names for entry in _entries(self._list(name))}

    def _lists(self) -> tuple[int, set[int]]:
        """Return the last batch of the newest compacted list, or -1, and the later batches that have lists."""
        names = self._output.names(_LISTS)
        compacted = max(
            _numbers([name.removesuffix(_COMPACT) for name in names if name.endswith(_COMPACT)]), default=-1
        )
        return compacted, {number for number in _numbers(names) if number > compacted}

    def _list(self, name: str) -> str | None:
        return self._output.read(f"{_LISTS}/{name}")

    def sweep(self) -> int:
        """
        Move unlisted files into ``_leftovers``. Do nothing unless both folders are on this machine.

        Call this method only within ``locked``.

        Returns:
            The number of moved files.

        Raises:
            ConfigError: The output or the checkpoint has lost files, so that it is not known which files are listed.
        """
        output = local_path(self.settings.output_uri)
        if output is None or local_path(self.settings.checkpoint_uri) is None:
            return 0
        self._check_batches()
        listed = {path.rpartition("/")[2] for path in self.files()}
        left = [path for path in output.glob("topic=*/date=*/**/part-*.parquet") if path.name not in listed]
        for path in left:
            aside = output / _LEFTOVERS / path.relative_to(output)
            make_folder_durably(aside.parent)
            moved(path, aside)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        if left:
            files = counted(left, "file that no batch lists was", "files that no batch lists were")
            log.warning("%s moved into %s", files, output / _LEFTOVERS)
        return len(left)


def _check_place(name: str, uri: str) -> None:
    """
    Check before Spark starts that a folder of this machine can be written. Spark itself checks other folders.

    Raises:
        ConfigError: The folder cannot be written or created.
    """
    path = local_path(uri)
    if path is not None and (found := obstacle(path)):
        raise ConfigError(f"{name}: {found}; name a folder that can be written, or one that can be made")


def _known_schemas(known: dict[str, Any], uri: str) -> dict[str, StructType]:
    return known_schemas(f"schemas in the description of the archive in {uri}", known.get("schemas", {}))


def _document(text: str, uri: str, name: str) -> dict[str, Any]:
    document = json_object(text)
    if document is not None and {"output", "checkpoint", "topics", "pattern", "brokers"} <= document.keys():
        return document
    raise ConfigError(f"{uri}/{name} is not what an archive has written; restore it, or name another output")


def _entries(listed: str | None) -> list[dict[str, Any]]:
    """Return the entries of a list of files, which Spark writes as a line of JSON each."""
    return [json.loads(line) for line in (listed or "").splitlines() if line.startswith("{")]


def _inside(path: str) -> str:
    """Return the path of a listed file within the output. ``path`` is a URI with escapes."""
    return unquote(f"topic={path.rpartition('/topic=')[2]}")


def _numbers(names: Collection[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit()]


def _lock(file: Any) -> bool:
    """Lock a Java file. Return False if this Java process or another process has locked the file already."""
    try:
        return file.getChannel().tryLock() is not None
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == "OverlappingFileLockException":
            return False
        raise
