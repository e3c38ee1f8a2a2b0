"""
Access folders by their URIs: on this machine, on file systems that Spark's Java process knows, or through pyarrow.

A path without a scheme is on this machine. Other folders have URIs, such as ``hdfs://namenode/archive``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from py4j.protocol import Py4JJavaError
from pyarrow import ArrowException, NativeFile
from pyarrow.fs import FileSelector
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kiel_groups.errors import KielGroupsError
from kiel_groups.spark.side_tables import file_system

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_LOCAL = "file:"


def names_a_host(text: str) -> bool:
    """Return whether ``text`` is a ``file:`` URI with a host. The archive cannot use such a URI."""
    return re.match(r"file://[^/]", text) is not None


def located(text: str) -> str:
    """Return a path or a URI as an absolute URI, for use in every process. Like Hadoop's URIs, it has no escapes."""
    if _SCHEME.match(text) and not text.startswith(_LOCAL):
        return text.rstrip("/")
    path = re.sub(r"^file:(//)?(?=/)", "", text)
    return f"{_LOCAL}//{Path(path).absolute()}"


def local_path(uri: str) -> Path | None:
    """Return the path of a URI on this machine, or None if the URI is on another file system."""
    return Path(uri.removeprefix(f"{_LOCAL}//")) if uri.startswith(_LOCAL) else None


def obstacle(folder: Path) -> str | None:
    """Return the reason why a folder of this machine cannot be written or created, or None if it can."""
    # Not Path.exists, which raises an error if this user may not list the parent folder.
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    if not there.is_dir():
        return f"{there} is a file"
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return f"this user may not write into {there}"
    try:
        # For root, os.access always succeeds; /proc, a full disk or a read-only one refuse only an actual write.
        with TemporaryDirectory(dir=there, prefix=".probe-") as probe:
            (Path(probe) / "probe").write_bytes(b"probe")
    except OSError as error:
        return f"nothing can be made in {there}: {error.strerror}"
    return None


def moved(source: Path, target: Path) -> None:
    """
    Move a file on this machine. Even after a crash of the machine, the complete file is at one of the two paths.

    Without syncs, the disk may get the new name before the contents of the file, or not get the new name at all.
    """
    _synced(source)
    source.replace(target)
    for folder in dict.fromkeys((target.parent, source.parent)):
        _synced(folder)


def make_folder_durably(path: Path) -> None:
    """Create a folder on this machine, and its parents, so that they survive a crash of the machine."""
    if not path.is_dir():
        make_folder_durably(path.parent)
        path.mkdir(exist_ok=True)
        _synced(path.parent)


def _synced(path: Path) -> None:
    """Sync a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FolderError(KielGroupsError):
    """A folder cannot be read or written. The message names the folder and the reason."""


def draft_of(name: str) -> str:
    """Return the name that a file has until it is complete. A killed process may leave a file of this name."""
    return f".{name}.draft"


class HadoopFolder:
    """A ``Folder`` on any file system that Spark knows. It is read and written through Spark's Java process."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        java: Any = spark._jvm
        self._path_of = java.org.apache.hadoop.fs.Path
        self._uri = uri
        with self._reaching():
            self._files = self._path_of(uri).getFileSystem(spark._jsc.hadoopConfiguration())

    def names(self, folder: str = "") -> list[str]:
        with self._reaching():
            path = self._path(folder)
            found: Iterable[Any] = self._files.listStatus(path) if self._files.exists(path) else ()
            return [each.getPath().getName() for each in found]

    def read(self, name: str) -> str | None:
        with self._reaching():
            path = self._path(name)
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(stream.readAllBytes()).decode(errors="replace")
            finally:
                stream.close()

    def write(self, name: str, text: str) -> None:
        with self._reaching():
            stream = self._files.create(self._path(name), True)
            try:
                stream.write(text.encode())
            finally:
                stream.close()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn an exception of Java, or the exception that pyspark makes of it, into a FolderError of one line."""
        try:
            yield
        except (Py4JJavaError, PySparkException) as error:
            text = str(error if isinstance(error, PySparkException) else error.java_exception.toString())
            raise FolderError(f"{self._uri} cannot be used: {text.strip().partition(chr(10))[0]}") from error

    def _path(self, name: str) -> Any:
        return self._path_of(f"{self._uri}/{name}" if name else self._uri)


class ArrowFolder:
    """A ``Folder`` on any file system that pyarrow knows, without Spark. It can only be read."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._files, self._path = file_system(uri)

    def names(self, folder: str = "") -> list[str]:
        with self._reading():
            selector = FileSelector(f"{self._path}/{folder}", allow_not_found=True)
            return [each.base_name for each in self._files.get_file_info(selector)]

    def read(self, name: str) -> str | None:
        with self._reading():
            if not self._files.get_file_info(f"{self._path}/{name}").is_file:
                return None
            with self.opened(name) as file:
                return bytes(file.read()).decode(errors="replace")

    def write(self, name: str, text: str) -> None:
        raise FolderError(f"{self._uri}/{name} cannot be written without Spark")

    def opened(self, name: str) -> NativeFile:
        """Open a file for reading. Opening and reading may raise OSError."""
        return self._files.open_input_file(f"{self._path}/{name}")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ArrowException) as error:
            raise FolderError(f"{self._uri} cannot be read: {str(error).partition(chr(10))[0]}") from error


class LocalFolder(ArrowFolder):
    """A ``Folder`` on this machine. It can be read and written."""

    def write(self, name: str, text: str) -> None:
        path = Path(f"{self._path}/{name}")
        try:
            make_folder_durably(path.parent)
            draft = path.with_name(draft_of(path.name))
            draft.write_text(text, encoding="utf-8")
            moved(draft, path)
        except OSError as error:
            raise FolderError(f"{path} cannot be written: {error.strerror or error}") from error


#: A folder, which may not exist yet. ``names`` returns the names of the entries in any order, or no name if the folder
#: does not exist. ``read`` returns the text of a file with damaged characters replaced, or None if the file does not
#: exist. ``write`` creates or replaces a file, and creates its missing folders. Names are relative paths. All methods
#: may raise FolderError.
Folder: TypeAlias = "ArrowFolder | HadoopFolder"


def open_folder(uri: str, spark: SparkSession | None) -> Folder:
    """
    Return the folder of a URI.

    Args:
        uri: An absolute URI, as ``located`` returns it.
        spark: A session. Without a session, a folder that is not on this machine can only be read.

    Raises:
        ConfigError: Without a session, as for ``side_tables.file_system``.
        FolderError: Spark cannot use the file system.
    """
    if local_path(uri) is not None:
        return LocalFolder(uri)
    return ArrowFolder(uri) if spark is None else HadoopFolder(spark, uri)
