"""The tutorial of workers: its commands run as printed, in one shell, and print what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from kazoo.client import KazooClient

from tests.helpers.commands import REPOSITORY, environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PAGES = {name: (REPOSITORY / "docs" / name).read_text("utf-8") for name in ("tutorial-workers.rst", "workers.rst")}
#: What only reads, and is repeated until it prints what the page shows.
READING = re.compile(r"cat|tail|curl|kiel-groups (lag|workers describe|connector-plugins|connectors (list|status))\b")
LIMIT_S = 60.0


class Step(NamedTuple):
    """A command of the page, and the lines that it prints."""

    command: str
    shown: list[str]


def steps() -> list[Step]:
    found: list[Step] = []
    for block in publish_doctree(PAGES["tutorial-workers.rst"]).findall(nodes.literal_block):
        for line in block.astext().splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:], []))
            else:
                found[-1].shown.append(line)
    return found


def cells(line: str) -> list[str]:
    """Return the cells of a line; columns are as wide as their contents."""
    return [cell for cell in re.split(r"\s{2,}", line.strip()) if cell]


def shows(printed: list[str], shown: list[str]) -> bool:
    """Return whether the lines of the page are among the printed ones, in their order."""
    rest = iter([cells(line) for line in printed])
    return all(any(_matches(line, cells(expected)) for line in rest) for expected in shown)


def _matches(line: list[str], expected: list[str]) -> bool:
    patterns = [re.escape(cell).replace("…", ".*") for cell in expected]
    return len(line) == len(patterns) and all(map(re.fullmatch, patterns, line))


class Shell:
    """A shell in an empty folder, with this checkout's commands and with clusters of its own."""

    def __init__(self, folder: Path) -> None:
        programs, temporary, empty = (folder / name for name in ("bin", "tmp", "empty"))
        for each in (programs, temporary, empty):
            each.mkdir()
        program = programs / "kiel-groups"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kiel_groups "$@"\n')
        program.chmod(0o755)
        self._ports = dict(zip(("8083", "8084"), _free_ports(2), strict=True))
        self._variables = {name: value for name, value in environment().items() if not name.startswith("KIEL_GROUPS")}
        self._variables |= {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(temporary),
            "KIEL_GROUPS_WORKERS_RUN_PORT": self._ports["8083"],
            "KIEL_GROUPS_WORKER_URL": f"http://127.0.0.1:{self._ports['8083']}",
        }
        self._process = subprocess.Popen(
            ["bash"],
            cwd=empty,
            env=self._variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.folder = empty

    def with_ports(self, text: str) -> str:
        """Return a text of the page with the ports of this run."""
        return re.sub("8083|8084", lambda found: self._ports[found[0]], text)

    def run(self, command: str) -> tuple[int, list[str]]:
        """Run a command, and return its exit status and the lines that it has printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f'{self.with_ports(command)}\nprintf "\\n=done= $?\\n"\n')
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
        """End the workers and the cluster, if the test has failed before the page did."""
        self.run("kill $(jobs -p)")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        subprocess.run(["kiel-groups", "cluster", "down"], env=self._variables, capture_output=True, check=False)


def _free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [str(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


def test_the_commands_print_what_the_page_shows(shell: Shell) -> None:
    """Commands that change something run once and succeed; those that read are repeated until the group is ready."""
    found = steps()
    assert len(found) >= 25
    for step in found:
        if step.command.startswith("curl ") and shutil.which("curl") is None:
            continue
        if step.command.startswith("kill -9"):
            check_znodes(shell)
        end_s = time.monotonic() + LIMIT_S
        while True:
            status, printed = shell.run(step.command)
            is_as_shown = status == 0 and shows(printed, [shell.with_ports(line) for line in step.shown])
            if is_as_shown or not READING.match(step.command) or time.monotonic() > end_s:
                break
            time.sleep(0.2)
        assert is_as_shown, (step, status, printed, shell.logs())


def check_znodes(shell: Shell) -> None:
    """Check that the page about workers explains each znode of a group's workers, and none that does not exist."""
    paths = re.findall(r"^``(/kiel-groups/<group>/(?:connect|workers)[^`]*)``", PAGES["workers.rst"], re.MULTILINE)
    assert len(paths) >= 8
    patterns = {path: re.sub("<[a-z ]+>", "[^/]+", path) for path in paths}
    _, (zookeeper,) = shell.run('echo "$KIEL_GROUPS_ZOOKEEPER"')
    client = KazooClient(zookeeper)
    client.start()
    try:
        root = "/kiel-groups/copiers"
        leaves = [path for name in ("connect", "workers") for path in _with_data(client, f"{root}/{name}")]
    finally:
        client.stop()
        client.close()
    unexplained = [leaf for leaf in leaves if not any(re.fullmatch(pattern, leaf) for pattern in patterns.values())]
    assert unexplained == []
    absent = [path for path, pattern in patterns.items() if not any(re.fullmatch(pattern, leaf) for leaf in leaves)]
    assert absent == []


def _with_data(client: KazooClient, path: str) -> list[str]:
    """Return the paths of the znodes that have data, from a path on."""
    data, _ = client.get(path)
    below = [each for name in client.get_children(path) for each in _with_data(client, f"{path}/{name}")]
    return ([path] if data else []) + below
