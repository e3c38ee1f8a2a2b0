"""
The folders of an archive: what says whose they are, which batches are done, and which files count.

Spark's sink writes files under their final names, and then, in ``_spark_metadata``, a list of those of a batch: only
what is listed counts, and each batch is listed once. What a batch that was cut short has left is not listed, and its
records come again in other files. Spark reads by the lists; other readers take what they find, so leftovers are put
aside where that is safe: on this machine, where a lock proves that nobody else is at work. Nothing is ever deleted:
lists can be lost, and files can be somebody's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.spark.checkpoint.query_offsets import Positions, Span
from kiel_groups.spark.jobs.archive_settings import ArchiveSettings
from kiel_groups.spark.jobs.folders import draft_of, local_path, made_folder, moved, obstacle, open_folder
from kiel_groups.wording import counted

__all__ = ["ArchiveHome"]

log = logging.getLogger(__name__)

#: In both folders: each must name the other, and nobody else.
_IN_OUTPUT: Final = "_archive.json"
_IN_CHECKPOINT: Final = "archive.json"
_LOCK: Final = "archive.lock"
_LISTS: Final = "_spark_metadata"
_COMPACT: Final = ".compact"
#: What every list begins with.
_VERSION: Final = "v1"
#: With this in front, readers pass over it.
_ASIDE: Final = "_leftovers"
_MOST_NAMES: Final = 3


class ArchiveHome:
    """
    The folders of one archive; nothing is written before ``claim``.

    Args:
        settings: Which, and for what.
        spark: Needed where one of them is not on this machine.

    Raises:
        ConfigError: They cannot be written, or belong to something else, or to another archive; says what to do.
    """

    def __init__(self, settings: ArchiveSettings, spark: SparkSession | None) -> None:
        self._settings = settings
        _check_place("output", settings.output_uri)
        _check_place("checkpoint", settings.checkpoint_uri)
        self._output = open_folder(settings.output_uri, spark)
        self._checkpoint = open_folder(settings.checkpoint_uri, spark)
        self._known = self._recorded()

    @property
    def is_new(self) -> bool:
        """Whether no run has begun it yet."""
        return self._known is None

    # ------------------------------------------------------------------ whose it is

    def _recorded(self) -> dict[str, Any] | None:
        """What an earlier run has written down, checked against the settings."""
        settings = self._settings
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
                f"checkpoint: {settings.checkpoint_uri} was emptied; without it nobody knows what the archive has."
                " Restore it, or begin a new archive in another folder"
            )
        self._check_topics(found[-1])
        self._check_batches()
        return found[-1]

    def _check_batches(self) -> None:
        """What is done is listed, and what is listed was planned: else one of the folders has lost something."""
        settings = self._settings
        compacted, listed = self._lists()
        unlisted = [number for number in _numbers(self._checkpoint.names("commits")) if number > compacted]
        for number in sorted({*unlisted, *range(compacted + 1, max(listed, default=compacted))}):
            if number not in listed or not (self._list(str(number)) or "").startswith(_VERSION):
                raise ConfigError(
                    f"output: {settings.output_uri}/{_LISTS} does not say which files batch {number} has made, and that"
                    " is done. Restore it: without it nobody knows which files count; or begin a new archive in another"
                    " folder"
                )
        newest = max(listed, default=compacted)
        if newest > max(_numbers(self._checkpoint.names("offsets")), default=-1):
            raise ConfigError(
                f"checkpoint: {settings.checkpoint_uri} does not know batch {newest}, which the output has: it was"
                " emptied, or is an old one. Restore it, or begin a new archive in another folder"
            )

    def _check_empty(self) -> None:
        """Also files that only begin with a dot belong to somebody."""
        settings = self._settings
        inside = settings.checkpoint_uri.removeprefix(f"{settings.output_uri}/").partition("/")[0]
        for name, folder, uri in (
            ("output", self._output, settings.output_uri),
            ("checkpoint", self._checkpoint, settings.checkpoint_uri),
        ):
            ours = {inside, _LOCK, draft_of(_IN_CHECKPOINT)}
            if strange := sorted(set(folder.names()) - ours):
                more = ", …" if len(strange) > _MOST_NAMES else ""
                raise ConfigError(
                    f"{name}: {uri} is no archive, and is not empty ({', '.join(strange[:_MOST_NAMES])}{more}); name"
                    " a new folder, an empty one, or that of an archive"
                )

    def _check_places(self, known: dict[str, Any]) -> None:
        settings = self._settings
        if known["output"] != settings.output_uri:
            raise ConfigError(
                f"output: {settings.output_uri} given; this checkpoint is that of the archive at {known['output']}."
                " Name that, or another checkpoint (a moved archive is read, and not continued)"
            )
        if known["checkpoint"] != settings.checkpoint_uri:
            raise ConfigError(
                f"checkpoint: {settings.checkpoint_uri} given; what this archive has stands in"
                f" {known['checkpoint']}. Name that, or another output"
            )

    def _check_topics(self, known: dict[str, Any]) -> None:
        topics, pattern = self._settings.topics, self._settings.pattern
        if known["pattern"] != pattern:
            told = "names" if known["pattern"] is None else f"the pattern {known['pattern']!r}"
            raise ConfigError(f"topics: this archive was begun with {told}; go on so, or name another output")
        if missing := sorted(set(known["topics"]) - set(topics)):
            raise ConfigError(
                f"topics: {', '.join(missing)} missing, which this archive has; name it too (others may be added), or"
                " name another output"
            )

    def check_brokers(self, brokers: Collection[str]) -> None:
        """
        Make sure that the offsets of the archive are those of this cluster.

        Args:
            brokers: All brokers, ``host:port``.

        Raises:
            ConfigError: None of them is one that the last run has seen.
        """
        if self._known is not None and not set(brokers).intersection(self._known["brokers"]):
            raise ConfigError(
                f"brokers: this archive was read from {', '.join(self._known['brokers'])}, and {', '.join(brokers)} are"
                " others, whose offsets mean other records. Name another output; or, if the cluster has moved, change"
                f" 'brokers' in {self._settings.checkpoint_uri}/{_IN_CHECKPOINT}"
            )

    def claim(self, brokers: Collection[str]) -> None:
        """Write down whose the folders are; ``brokers`` as for ``check_brokers``."""
        settings = self._settings
        document = {
            "output": settings.output_uri,
            "checkpoint": settings.checkpoint_uri,
            "topics": list(settings.topics),
            "pattern": settings.pattern,
            "brokers": sorted(brokers),
        }
        text = f"{json.dumps(document, indent=2)}\n"
        # The checkpoint first: with the other one alone, it would look emptied.
        self._checkpoint.write(_IN_CHECKPOINT, text)
        self._output.write(_IN_OUTPUT, text)

    @contextmanager
    def locked(self, spark: SparkSession) -> Iterator[None]:
        """
        Keep other runs out for the block, where the checkpoint is on this machine.

        The lock is that of Spark's Java process, which is who writes: it may outlive a driver that was killed.
        Elsewhere Spark itself notices a second run when it writes down a batch.

        Raises:
            ConfigError: Another run goes on.
        """
        path = local_path(self._settings.checkpoint_uri)
        if path is None:
            yield
            return
        path.mkdir(parents=True, exist_ok=True)
        java: Any = spark._jvm
        file = java.java.io.RandomAccessFile(str(path / _LOCK), "rw")
        try:
            if not _lock(file):
                raise ConfigError(
                    f"checkpoint: another archive runs on {self._settings.checkpoint_uri}; wait for its end, or name"
                    " another output"
                )
            yield
        finally:
            file.close()

    # ------------------------------------------------------------------ what it has

    def positions(self) -> Positions | None:
        """
        How far it is done; None where no run has planned anything yet.

        Raises:
            ProtocolError: Somebody else wrote the checkpoint.
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
        """Where a batch ends: what the source said stands in the last line."""
        text = self._checkpoint.read(f"offsets/{batch}")
        if text is None:
            raise ProtocolError(f"{self._settings.checkpoint_uri}/offsets/{batch} is missing; restore the checkpoint")
        return Positions.from_json(json.loads(text.splitlines()[-1]))

    def files(self) -> dict[str, int]:
        """The files that count, by their paths, and their sizes in bytes."""
        compacted, listed = self._lists()
        names = [f"{compacted}{_COMPACT}"] if compacted >= 0 else []
        names += [str(number) for number in sorted(listed)]
        entries = [
            json.loads(line) for name in names for line in (self._list(name) or "").splitlines() if line.startswith("{")
        ]
        return {entry["path"]: entry["size"] for entry in entries}

    def _lists(self) -> tuple[int, set[int]]:
        """The last batch of the newest compacted list, -1 without one, and the batches that are listed after it."""
        names = self._output.names(_LISTS)
        compacted = max(
            _numbers([name.removesuffix(_COMPACT) for name in names if name.endswith(_COMPACT)]), default=-1
        )
        return compacted, {number for number in _numbers(names) if number > compacted}

    def _list(self, name: str) -> str | None:
        return self._output.read(f"{_LISTS}/{name}")

    def sweep(self) -> int:
        """
        Put files that do not count aside, where the archive is on this machine; only under ``locked``.

        They go to ``_leftovers``, where no reader looks.

        Returns:
            How many there were.
        """
        output = local_path(self._settings.output_uri)
        if output is None or local_path(self._settings.checkpoint_uri) is None:
            return 0
        self._check_batches()
        listed = {path.rpartition("/")[2] for path in self.files()}
        left = [path for path in output.glob("topic=*/date=*/part-*.parquet") if path.name not in listed]
        for path in left:
            aside = output / _ASIDE / path.relative_to(output)
            made_folder(aside.parent)
            moved(path, aside)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        if left:
            files = counted(left, "file that no batch lists was", "files that no batch lists were")
            log.warning("%s moved into %s", files, output / _ASIDE)
        return len(left)


def _check_place(name: str, uri: str) -> None:
    """Before Spark is started for it; other file systems tell by themselves."""
    path = local_path(uri)
    if path is not None and (found := obstacle(path)):
        raise ConfigError(f"{name}: {found}; name a folder that can be written, or one that can be made")


def _document(text: str, uri: str, name: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(text)
        if {"output", "checkpoint", "topics", "pattern", "brokers"} <= document.keys():
            return document
    except (ValueError, AttributeError):
        pass
    raise ConfigError(f"{uri}/{name} is not what an archive has written; restore it, or name another output")


def _numbers(names: Collection[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit()]


def _lock(file: Any) -> bool:
    """Whether nobody has it, in this Java process or in another."""
    try:
        return file.getChannel().tryLock() is not None
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == "OverlappingFileLockException":
            return False
        raise
