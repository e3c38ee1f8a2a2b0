"""
Where servers keep their data: one folder a run, below the system's folder for temporary files.

A run holds a lock on its folder for as long as its process lives, so that the next run can tell what dead ones left
behind, and sweeps it.
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
    """The folder that holds the runs of this user."""
    return Path(tempfile.gettempdir()) / f"kiel-groups-{os.getuid()}"


def made_runs_folder() -> Path:
    """
    That folder, made where it was missing; nobody else may look into it.

    Raises:
        ServerError: It belongs to somebody else.
    """
    runs = runs_folder()
    runs.mkdir(mode=0o700, exist_ok=True)
    if runs.stat().st_uid != os.getuid():
        raise ServerError(f"{runs} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return runs


def server_folder(name: str) -> Path:
    """A new, empty folder for one server of this run; the run's folder goes when the process ends."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_run.folder()))


class _Run:
    """The folder of this process, made when the first server needs it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: IO[str] | None = None

    def folder(self) -> Path:
        runs = made_runs_folder()
        # Under one lock, so that no other run takes a folder for dead between its making and its locking.
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
            continue  # Its own process is removing it at this moment.
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()


_run = _Run()
