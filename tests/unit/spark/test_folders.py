"""Folders that are read by pyarrow, without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kiel_groups.spark.folders import ArrowFolder, FolderError, HadoopFolder

pytestmark = pytest.mark.unit


def test_a_folder_is_read_by_pyarrow(tmp_path: Path) -> None:
    """What does not exist is no error, and damaged characters are replaced."""
    (tmp_path / "far away").mkdir()
    (tmp_path / "far away" / "a").write_bytes("größer".encode() + b"\xff")
    folder = ArrowFolder(f"file://{tmp_path}")
    assert (folder.names(), folder.names("far away"), folder.names("none")) == (["far away"], ["a"], [])
    assert (folder.read("far away/a"), folder.read("none"), folder.read("far away")) == ("größer\ufffd", None, None)
    with folder.opened("far away/a") as file:
        assert file.read(2) == b"gr"
    with pytest.raises(FolderError, match=r"/none cannot be written without Spark$"):
        folder.write("none", "text")


def test_an_address_that_java_does_not_parse_gives_one_line() -> None:
    """Pyspark turns some exceptions of Java into its own."""

    def path(uri: str) -> None:
        raise PySparkException(f"java.net.URISyntaxException: Expected a host: {uri}\n\nJVM stacktrace: …")

    java = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=Mock(Path=path)))))
    with pytest.raises(FolderError, match=r"^s3a:x cannot be used: java.net.URISyntaxException: [^\n]*$"):
        HadoopFolder(cast("SparkSession", Mock(_jvm=java)), "s3a:x")


def test_a_folder_that_cannot_be_read_gives_one_line(tmp_path: Path) -> None:
    """The error names the folder."""
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=f"^file://{tmp_path} cannot be read: [^\\n]+$"):
        ArrowFolder(f"file://{tmp_path}").names("file")
