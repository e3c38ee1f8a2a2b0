"""
The cache of jars: ``$XDG_CACHE_HOME/kiel-groups/jars/<class path>/``.

A folder is either absent or complete. Jars are fetched into a scratch folder beside it, together with a manifest of
their sizes and SHA-256 hashes, and then renamed into place. One lock for the whole cache allows concurrent runs, which
Maven's own repository does not. Each process verifies a folder against its manifest before the first use. A folder that
is truncated, altered or made from another table is fetched again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from kiel_groups.embedded.jars import download
from kiel_groups.embedded.jars.classpaths import ClassPath
from kiel_groups.embedded.jars.download import Progress, no_progress
from kiel_groups.embedded.processes.file_lock import file_lock
from kiel_groups.errors import ServerError

__all__ = ["cache_folder", "jar_folder", "java_class_path"]

_MANIFEST = "manifest.json"
_SCRATCH = ".fetching-"

#: Folders that this process has verified once. Later changes of their files are not detected.
_verified: set[Path] = set()


def cache_folder() -> Path:
    """
    Return ``$XDG_CACHE_HOME/kiel-groups``, by default ``~/.cache/kiel-groups``.

    Raises:
        ServerError: The user has no home folder, and the variable names no other one.
    """
    # The XDG base directory specification says to ignore an XDG_CACHE_HOME that is empty or relative.
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = given if given.startswith("/") else os.path.expanduser("~/.cache")
    if not folder.startswith("/"):
        raise ServerError(
            "there is no folder for the cache of jars: this user has neither HOME nor a passwd entry; set HOME, or"
            " XDG_CACHE_HOME to a folder that can be written"
        )
    return Path(folder) / "kiel-groups"


def java_class_path(wanted: ClassPath) -> str:
    """Return the argument of ``java -cp`` for this class path. Fetch the jars if they are not in the cache."""
    return f"{jar_folder(wanted)}/*"


def jar_folder(wanted: ClassPath, progress: Progress = no_progress) -> Path:
    """
    Return the verified folder with the jars of a class path. Fetch the jars if they are not in the cache.

    Raises:
        ServerError: The jars could not be fetched, or the cache cannot be used.
    """
    folder = cache_folder() / "jars" / wanted.name
    if folder in _verified:
        return folder
    try:
        with file_lock(folder.parent / ".lock"):
            if not _is_intact(folder, wanted):
                _fetch(wanted, folder, progress)
    except OSError as error:
        raise ServerError(f"the cache of jars at {folder.parent} cannot be used: {error}; check its disk") from error
    _verified.add(folder)
    return folder


def _fetch(wanted: ClassPath, folder: Path, progress: Progress) -> None:
    for leftover in folder.parent.glob(f"{_SCRATCH}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder.parent) as scratch:
        fetched = download.fetch(wanted, Path(scratch), progress)
        manifest = {"made_from": _made_from(wanted), "jars": {jar.name: _describe(jar) for jar in _jars(fetched)}}
        (fetched / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        fetched.rename(folder)


def _is_intact(folder: Path, wanted: ClassPath) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        described = {jar.name: _describe(jar) for jar in _jars(folder)}
    except (OSError, ValueError, ServerError):
        return False
    return bool(manifest == {"made_from": _made_from(wanted), "jars": described})


def _jars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jar"))


def _describe(jar: Path) -> dict[str, Any]:
    content = jar.read_bytes()
    if not zipfile.is_zipfile(jar):
        raise ServerError(
            f"{jar.name} as fetched is no jar file ({len(content)} bytes); try again, or check the mirror"
        )
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _made_from(wanted: ClassPath) -> list[str]:
    return [str(coordinate) for coordinate in wanted.coordinates]
