"""Run the commands and programs of a page as a reader does, in one shell, and compare what they print."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.core import publish_doctree

from kiel_groups.embedded.processes import ReservedPort
from tests.helpers.commands import REPOSITORY, environment

__all__ = ["Shell", "Step", "check_steps", "page", "programs", "steps"]

#: What only reads, and is repeated until it prints what the page shows.
_READING = re.compile(
    r"cat|tail|curl"
    r"|kiel-groups (describe|lag|members|mirror status|workers describe|connector-plugins|connectors (list|status))\b"
)
_LIMIT_S = 30.0
#: The ports that the pages use, in place of which a test uses free ones.
_PORTS = ("2181", "8083", "8084")


class Step(NamedTuple):
    """A command of a page, and the lines that it prints."""

    command: str
    shown: list[str]


def page(name: str) -> str:
    """Return the text of a page by its path in the repository."""
    return (REPOSITORY / name).read_text(encoding="utf-8")


def steps(text: str) -> list[Step]:
    """Return the commands of a page, which begin with ``$``."""
    found: list[Step] = []
    for block in publish_doctree(text).findall(nodes.literal_block):
        lines = block.astext().splitlines()
        if "code" in block["classes"] or not lines[0].startswith("$ "):
            continue
        for line in lines:
            if line.startswith("$ "):
                found.append(Step(line[2:], []))
            else:
                found[-1].shown.append(line)
    return found


def programs(text: str) -> dict[str, str]:
    """Return the programs that a page tells the reader to save, by file name."""
    found = re.findall(r"``(\w+\.py)``[^\n]*:\n\n\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", text)
    return {name: re.sub(r"^    ", "", program, flags=re.MULTILINE) for name, program in found}


class Shell:
    """
    A shell in which this checkout is installed, with clusters of its own.

    Background jobs are process groups, as at a terminal, so that SIGINT reaches them.

    Args:
        folder: An empty folder.
        variables: Further variables of the environment.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        installed, temporary = folder / "bin", folder / "tmp"
        for each in (installed, temporary):
            each.mkdir()
        for name, arguments in (("python", ""), ("kiel-groups", " -m kiel_groups")):
            (installed / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{arguments} "$@"\n')
            (installed / name).chmod(0o755)
        self._folder = folder
        self._reserved = [ReservedPort() for _ in _PORTS]
        self._ports = {shown: str(port.number) for shown, port in zip(_PORTS, self._reserved, strict=True)}
        inherited = {name: value for name, value in environment().items() if not name.startswith("KIEL_GROUPS")}
        self._variables = inherited | {
            "PATH": f"{installed}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(temporary),
            "KIEL_GROUPS_WORKERS_RUN_PORT": self._ports["8083"],
            "KIEL_GROUPS_SERVE_PORT": self._ports["8084"],
            "KIEL_GROUPS_WORKER_URL": f"http://127.0.0.1:{self._ports['8083']}",
            **variables,
        }
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=self._variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # Without a terminal, bash accepts job control as a command only.
        self.run("set -m")
        self.folder = folder

    def enter(self, name: str, text: str) -> None:
        """Enter an empty folder for a page, and save the programs of the page there."""
        self.folder = self._folder / name
        self.folder.mkdir()
        for file, program in programs(text).items():
            (self.folder / file).write_text(self.with_ports(program))
        self.run(f"cd {shlex.quote(str(self.folder))}")

    def with_ports(self, text: str) -> str:
        """Return a text of the page with the ports of this run."""
        return re.sub("|".join(_PORTS), lambda found: self._ports[found[0]], text)

    def run(self, command: str) -> tuple[int, list[str]]:
        """Run a command, and return its exit status and the lines that it has printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Before its prompt, a shell at a terminal reports jobs that have ended, and uses their numbers again.
        self._process.stdin.write(f'{self.with_ports(command)}\nprintf "\\n=done= $?\\n"; jobs > /dev/null\n')
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith("=done= "):
                return int(line.split()[1]), lines[:-1] if lines and not lines[-1] else lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the shell has ended: {lines}")

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """End the jobs and the clusters, if a test has failed before its page did."""
        self.run("kill $(jobs -p)")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        for words in ([], ["--name", "new"]):
            command = ["kiel-groups", "cluster", "down", *words]
            subprocess.run(command, env=self._variables, capture_output=True, check=False)
        for port in self._reserved:
            port.release()


def check_steps(shell: Shell, found: Iterable[Step], before: Callable[[Step], object] = lambda step: None) -> None:
    """
    Run the steps of a page, and check that each prints what the page shows.

    Commands that change something run once and succeed; those that read are repeated until the group is ready.

    Args:
        shell: The shell.
        found: The steps.
        before: Called before each step.
    """
    for step in found:
        if step.command.startswith("curl ") and shutil.which("curl") is None:
            continue
        before(step)
        end_s = time.monotonic() + _LIMIT_S
        while True:
            status, printed = shell.run(step.command)
            is_as_shown = status == 0 and _shows(printed, [shell.with_ports(line) for line in step.shown])
            if is_as_shown or not _READING.match(step.command) or time.monotonic() > end_s:
                break
            time.sleep(0.2)
        # A text, because pytest shortens the values of an assertion, and may leave out what differs.
        assert is_as_shown, "\n".join([step.command, *step.shown, f"status {status}, printed:", *printed, shell.logs()])


def _cells(line: str) -> list[str]:
    """Return the cells of a line; columns are as wide as their contents."""
    return [cell for cell in re.split(r"\s{2,}", line.strip()) if cell]


def _shows(printed: list[str], shown: list[str]) -> bool:
    """Return whether the lines of the page are among the printed ones, in their order."""
    rest = iter([_cells(line) for line in printed])
    return all(any(_matches(line, _cells(expected)) for line in rest) for expected in shown)


def _matches(line: list[str], expected: list[str]) -> bool:
    patterns = [re.escape(cell).replace("…", ".*") for cell in expected]
    return len(line) == len(patterns) and all(map(re.fullmatch, patterns, line))
