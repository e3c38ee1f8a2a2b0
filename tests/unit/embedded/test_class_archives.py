"""Archives of classes: when they are written, used and left out. That servers start with them, most tests show."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiel_groups.embedded.class_archives import archive_options, archive_path, recorded_archives
from kiel_groups.errors import ServerError

pytestmark = pytest.mark.unit

MAIN = "org.example.Server"


@pytest.fixture
def java(tmp_path: Path) -> str:
    """Return the path of a file in the place of ``java``."""
    command = tmp_path / "java"
    command.touch()
    return str(command)


def record(java: str, jars: Path) -> None:
    """Write an archive as a server would do at its end."""
    with recorded_archives():
        file = archive_options(java, jars, MAIN)[0].partition("=")[2]
        assert archive_options(java, jars, MAIN)[0] == f"-XX:ArchiveClassesAtExit={file}"
        Path(file).write_text("classes")


def test_an_archive_is_written_once_and_used_by_the_same_java(java: str, tmp_path: Path) -> None:
    """Another build of Java uses no archive, and replaces it by its own."""
    assert archive_options(java, tmp_path, MAIN) == []
    record(java, tmp_path)
    archive = archive_path(java, tmp_path, MAIN)
    assert [*archive.parent.iterdir()] == [archive]
    use = archive_options(java, tmp_path, MAIN)
    assert use[0] == f"-XX:SharedArchiveFile={archive}"
    with recorded_archives():
        assert archive_options(java, tmp_path, MAIN) == use
        assert archive_options(java, tmp_path, f"{MAIN}Tool")[0] != use[0]
        archive_path(java, tmp_path, f"{MAIN}Tool").with_suffix(".unfinished").touch()
    Path(java).write_text("another build")
    assert archive_options(java, tmp_path, MAIN) == []
    record(java, tmp_path)
    assert not archive.exists()
    assert len([*archive.parent.iterdir()]) == 2


def test_a_run_that_fails_leaves_no_archive(java: str, tmp_path: Path) -> None:
    """An archive may be incomplete if its server was killed, or missing if its server did not write it."""

    def fail() -> None:
        Path(archive_options(java, tmp_path, MAIN)[0].partition("=")[2]).touch()
        raise ServerError("killed")

    with pytest.raises(ServerError), recorded_archives():
        fail()
    with pytest.raises(FileNotFoundError), recorded_archives():
        archive_options(java, tmp_path, MAIN)
    assert [*archive_path(java, tmp_path, MAIN).parent.iterdir()] == []
    assert archive_options(java, tmp_path, MAIN) == []
