"""Folders that are read by pyarrow, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiel_groups.spark.folders import ArrowFolder, FolderError

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


def test_a_folder_that_cannot_be_read_gives_one_line(tmp_path: Path) -> None:
    """The error names the folder."""
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=f"^file://{tmp_path} cannot be read: [^\\n]+$"):
        ArrowFolder(f"file://{tmp_path}").names("file")
