"""Data folders that outlive their cluster: the lock, and the check that the data fits the cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from kiel_groups.embedded.processes.file_lock import try_lock
from kiel_groups.errors import ConfigError, ServerError

__all__ = ["lock_data"]

_LOCK = "lock"
_KIND = "cluster.json"


def lock_data(folder: Path, kind: Mapping[str, object]) -> IO[str]:
    """
    Lock a data folder for one cluster. Create the folder if it is missing.

    Args:
        folder: The folder in which the servers keep their files.
        kind: The versions and numbers of servers. Existing data must be of the same kind.

    Returns:
        The open lock file. Closing it releases the lock.

    Raises:
        ConfigError: The folder cannot be written, has other files, or has the data of another kind of cluster.
        ServerError: A running cluster uses the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / _KIND).exists():
            raise ConfigError(f"data: {folder} has files of another program; expected an empty folder or a cluster's")
        lock = try_lock(folder / _LOCK)
        if lock is None:
            raise ServerError(f"the data in {folder} is used by a cluster that runs; end it, or choose another folder")
        _check_kind(folder / _KIND, kind)
    except OSError as error:
        raise ConfigError(f"data: {folder} cannot be used: {error.strerror}") from error
    return lock


def _check_kind(path: Path, kind: Mapping[str, object]) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        path.write_text(json.dumps(kind) + "\n", encoding="utf-8")
        return
    except ValueError:
        found = None
    if found != kind:
        raise ConfigError(f"data: {path.parent} is of {_text(found)}, not of {_text(kind)}; choose another folder")


def _text(kind: object) -> str:
    return ", ".join(f"{key} {value}" for key, value in kind.items()) if isinstance(kind, Mapping) else "no known kind"
