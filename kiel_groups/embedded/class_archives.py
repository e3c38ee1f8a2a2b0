"""
Use archives of the classes of servers, with which Java starts them in two thirds to three quarters of the time.

Java maps such an archive into memory instead of loading and verifying most classes. The archives are beside the jars
that they were made from, and are removed with them. ``python -m kiel_groups.embedded`` makes them. Java ignores an
archive of another build of Java, or of other jars.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = "archives"
#: Without these, Java would print a warning for an archive that it ignores.
_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")

#: Set while servers write missing archives, and the files that they write.
_is_recording = threading.Event()
_recorded: set[Path] = set()


def archive_options(java: str, jars: Path, main: str) -> list[str]:
    """
    Return the options with which Java uses the archive of a program, if there is one.

    Args:
        java: The path of the command.
        jars: The folder of the program's jars.
        main: The class with the main method.
    """
    archive = archive_path(java, jars, main)
    if archive.exists():
        return [f"-XX:SharedArchiveFile={archive}", *_SILENT]
    if not _is_recording.is_set():
        return []
    archive.parent.mkdir(exist_ok=True)
    _recorded.add(archive)
    return [f"-XX:ArchiveClassesAtExit={_unfinished(archive)}", *_SILENT]


def archive_path(java: str, jars: Path, main: str) -> Path:
    """Return the path of the archive of a program, for the arguments of ``archive_options``."""
    command = Path(java).resolve()
    status = command.stat()
    build = hashlib.sha256(f"{command} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:12]
    return jars / _FOLDER / f"{main.rpartition('.')[2]}-{build}.jsa"


@contextmanager
def recorded_archives() -> Iterator[None]:
    """
    Let programs that start during the block write their archives, unless they have archives.

    A program writes its archive when it ends, or is ended by SIGTERM. The block has to wait for that. If the block
    fails, no archive is kept.
    """
    _is_recording.set()
    try:
        yield
        for archive in _recorded:
            _remove_former(archive)
            _unfinished(archive).replace(archive)
    finally:
        _is_recording.clear()
        for archive in _recorded:
            _unfinished(archive).unlink(missing_ok=True)
        _recorded.clear()


def _unfinished(archive: Path) -> Path:
    return archive.with_suffix(".unfinished")


def _remove_former(archive: Path) -> None:
    """Remove the archives of the same program that other builds of Java have made."""
    program = archive.name.rpartition("-")[0]
    for former in archive.parent.glob(f"{program}-*.jsa"):
        former.unlink(missing_ok=True)
