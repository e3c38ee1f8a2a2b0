"""
Folders for the data of servers: one for each run, in the system's folder for temporary files.

A run holds the lock of its folder until its process ends. So the next run recognizes and removes the folders of runs
that were killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from kiel_groups.embedded.processes.file_lock import file_lock, try_lock
from kiel_groups.errors import ServerError

__all__ = ["server_folder", "runs_folder", "made_runs_folder"]

_LOCK = "lock"
_RUN = "run-"


def runs_folder() -> Path:
    """Return this user's folder, which contains a folder for each run."""
    return Path(tempfile.gettempdir()) / f"kiel-groups-{os.getuid()}"


def made_runs_folder() -> Path:
    """
    Return ``runs_folder()``. Create the folder if it is missing, so that other users cannot read it.

    Raises:
        ServerError: The folder belongs to another user.
    """
    runs = runs_folder()
    runs.mkdir(mode=0o700, exist_ok=True)
    if runs.stat().st_uid != os.getuid():
        raise ServerError(f"{runs} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return runs


def server_folder(name: str) -> Path:
    """Create and return an empty folder for one server. It is removed with the run's folder when this process ends."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_run.folder()))


class _Run:
    """The folder of this process, created when the first server needs it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: IO[str] | None = None

    def folder(self) -> Path:
        runs = made_runs_folder()
        # One lock for all runs: without it, another run could remove the folder before it is locked.
        with file_lock(runs / _LOCK):
            if self._folder is None:
                _sweep(runs)
                self._folder = Path(tempfile.mkdtemp(prefix=f"{_RUN}{os.getpid()}-", dir=runs))
                self._lock = try_lock(self._folder / _LOCK)
                atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def _sweep(runs: Path) -> None:
    for folder in runs.glob(f"{_RUN}*"):
        try:
            lock = try_lock(folder / _LOCK)
        except OSError:
            continue  # The run's own process is removing the folder at this moment.
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()


_run = _Run()
