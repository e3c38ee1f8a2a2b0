"""A folder whose data outlives its cluster: whose it is, and what it is data of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from kiel_groups.embedded.processes.file_lock import try_lock
from kiel_groups.errors import ConfigError, ServerError

__all__ = ["claim_data"]

_LOCK = "lock"
_KIND = "cluster.json"


def claim_data(folder: Path, kind: Mapping[str, object]) -> IO[str]:
    """
    Take a folder for one cluster; it is made where it is missing.

    Args:
        folder: Where the servers are to keep what they write.
        kind: Versions and numbers of servers, for which the data is good.

    Returns:
        The open file that holds the folder until it is closed.

    Raises:
        ConfigError: It cannot be written, holds other files, or the data of another kind of cluster.
        ServerError: A running cluster has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / _KIND).exists():
            raise ConfigError(f"data: {folder} holds files of somebody else; expected an empty folder or a cluster's")
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
        raise ConfigError(f"data: {path.parent} is of {_told(found)}, not of {_told(kind)}; choose another folder")


def _told(kind: object) -> str:
    return ", ".join(f"{key} {value}" for key, value in kind.items()) if isinstance(kind, Mapping) else "no known kind"
