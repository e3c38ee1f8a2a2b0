"""The demo as a process: it runs to its end, continues with --keep, is interrupted, or is killed."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from kiel_groups.demo import demo_run
from kiel_groups.demo.demo_run import PARTITIONS, Walkthrough
from kiel_groups.demo.records import GROUP, Proof, prove
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_client import zookeeper
from kiel_groups.ops.zookeeper_reader import read_group
from tests.helpers.waiting import eventually_blocking

pytestmark = pytest.mark.integration


class Demo:
    """A demo in a process of its own. A thread collects its output."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "kiel_groups", "demo", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = ""
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self.output += line
                self._grown.notify_all()

    def wait_for(self, text: str, timeout_s: float) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: text in self.output, timeout_s), self.output

    def children(self) -> list[int]:
        """The process ids of the servers and consumers that the demo has started."""
        listed = subprocess.run(["ps", "--ppid", str(self.process.pid), "-o", "pid="], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]

    def end(self, number: int, timeout_s: float) -> int:
        """Send a signal, wait for the end of the demo, and return its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(timeout_s)
        self._reader.join(5)
        return status


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Demo]]:
    """
    Provide a function that starts a demo with its files below ``tmp_path``. The fixture kills each demo at the end of
    the test.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def assert_nothing_left(children: list[int], folder: Path, within_s: float) -> None:
    eventually_blocking(lambda: all(map(has_ended, children)), f"the processes {children} have ended", within_s)
    assert not list(folder.glob("kiel-groups-*/run-*"))


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not collected its exit status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.slow
def test_the_demo_proves_that_no_record_is_lost_and_keeps_the_cluster(
    demo: Callable[..., Demo], tmp_path: Path
) -> None:
    """
    The whole demo takes less than two minutes. With --keep the group continues until Ctrl-C, and the status is then 0.
    """
    began_s = time.monotonic()
    running = demo("--keep")
    running.wait_for("proved: no record was lost", timeout_s=120)
    assert time.monotonic() - began_s < 120
    running.wait_for("The cluster keeps running", timeout_s=30)
    output = running.output
    for act in (
        "starting 3 consumer processes",
        "a fourth member",
        "kill -9 consumer-",
        "stopping consumer-",
        "a new leader",
    ):
        assert act in output
    assert re.search(r"sent +100,000\nreceived at least once +100,000\nreceived more than once +[\d,]+ ", output)
    instructions = output[output.index("The cluster keeps running") :].splitlines()
    assert max(len(line) for line in instructions if "zkCli" not in line) <= 80
    with zookeeper(argument_of(output, "describe demo --zookeeper")) as client:
        view = view_group(GROUP, read_group(client, GROUP), {})
    assert len(view.members) == 2
    assert view.owned == PARTITIONS
    assert sum(partition.committed or 0 for partition in view.partitions) == 100_000
    children = running.children()
    assert len(children) == 4
    assert_zk_cli_starts(output)
    assert_a_foreign_record_is_shown(running)
    assert_the_end_of_a_consumer_is_shown(running)
    assert running.end(signal.SIGINT, timeout_s=20) == 0
    assert_nothing_left(children, tmp_path, within_s=5)


def argument_of(output: str, option: str) -> str:
    """Return the word that follows an option in the instructions that the demo prints at its end."""
    match = re.search(rf"{option} (\S+)", output)
    assert match is not None, output
    return match[1]


def assert_zk_cli_starts(output: str) -> None:
    match = re.search(r"^  (\S+/zkCli)$", output, re.MULTILINE)
    assert match is not None, output
    done = subprocess.run([match[1], "ls", "/consumers/demo/owners"], capture_output=True, text=True, timeout=60)
    assert "[page-views]" in done.stdout + done.stderr


def assert_a_foreign_record_is_shown(running: Demo) -> None:
    """Send a record of another program, and wait until the demo reports it."""
    command = [sys.executable, "-m", "kiel_groups", "produce", "page-views", "--brokers"]
    broker = argument_of(running.output, "produce page-views --brokers")
    subprocess.run([*command, broker], input="/index.html\n", text=True, check=True, timeout=60)
    running.wait_for("received 1 record that the demo did not send: partition ", timeout_s=30)


def assert_the_end_of_a_consumer_is_shown(running: Demo) -> None:
    listed = subprocess.run(
        ["pgrep", "-P", str(running.process.pid), "-f", "kiel_groups.demo.consumer"], capture_output=True, text=True
    )
    os.kill(int(listed.stdout.split()[0]), signal.SIGKILL)
    running.wait_for("ended with status -9; its log ends:", timeout_s=30)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_an_interrupted_demo_leaves_nothing_behind(
    demo: Callable[..., Demo], tmp_path: Path, number: int, status: int
) -> None:
    """SIGINT and SIGTERM end every process and remove every file, without a traceback."""
    running = demo()
    running.wait_for("3 members share", timeout_s=60)
    children = running.children()
    assert len(children) == 5
    assert running.end(number, timeout_s=20) == status
    assert "Traceback" not in running.output
    assert_nothing_left(children, tmp_path, within_s=5)


def test_the_children_of_a_killed_demo_end_within_5_s(demo: Callable[..., Demo], tmp_path: Path) -> None:
    """kill -9 of the demo also ends its servers and consumers. The next run deletes the files."""
    running = demo()
    running.wait_for("3 members share", timeout_s=60)
    children = running.children()
    running.end(signal.SIGKILL, timeout_s=20)
    sweep = "from kiel_groups.embedded.processes import server_folder; server_folder('next')"
    eventually_blocking(lambda: all(map(has_ended, children)), "servers and consumers end with the demo", 5)
    subprocess.run([sys.executable, "-c", sweep], check=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert_nothing_left(children, tmp_path, within_s=0)


def test_a_proof_that_fails_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """If records were not received, the demo names them, and says that nothing is proved. The exit status is 1."""

    async def run(walkthrough: Walkthrough) -> Proof:
        return prove({number: (0, number) for number in range(3)}, [], {0: 3})

    monkeypatch.setattr(Walkthrough, "run", run)
    console = Console(file=io.StringIO(), width=80)
    assert asyncio.run(demo_run._run(console, "3.4.6", keep=False)) == 1
    assert isinstance(console.file, io.StringIO)
    assert "never received: 0, 1, 2" in console.file.getvalue()
    assert "NOT proved" in console.file.getvalue()
