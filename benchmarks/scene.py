"""A group at work on real servers, and what an event in it costs, seen from outside."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO

import click

from benchmarks.contenders import Contender, Group
from benchmarks.cpu import CpuTime
from benchmarks.ownership import Ownership
from benchmarks.transaction_log import TransactionLog
from kiel_groups.embedded import Cluster

__all__ = ["Figures", "Scene", "scene_of"]

#: Moments come from ZooKeeper's log, not from when it is looked at.
POLL_S = 0.01
LIMIT_S = 180.0

#: Longer than any debounce: whatever still follows an event belongs to it, not to the next one.
REST_S = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """
    What one event cost.

    Until all is owned and equal again: seconds, partition-seconds without an owner, transactions, and how many cores
    the members and the servers kept busy; ``moved`` counts partitions that moved without need.
    """

    s: float
    unowned: float
    moved: int
    writes: int
    cores: float


class Scene:
    """The members of one group, each a process."""

    def __init__(self, contender: Contender, group: Group, cluster: Cluster) -> None:
        self._contender = contender
        self._group = group
        self._log = TransactionLog(cluster.zookeeper.folder / "data")
        spread = len(group.topics) if contender.balances_topics else 1
        self._seen = Ownership(contender.paths(group), group.partitions, spread)
        self._cpu = CpuTime()
        for server in cluster.servers:
            self._cpu.add(server.pid)
        #: Each with what it prints.
        self._processes: dict[subprocess.Popen[str], IO[str]] = {}
        self._stack = ExitStack()

    def start(self, members: int = 1) -> subprocess.Popen[str]:
        command = self._contender.command(self._group, members)
        said = self._stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 -- the stack closes it
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, text=True)
        self._processes[process] = said
        self._cpu.add(process.pid)
        return process

    def gather(self, members: int) -> None:
        """The members that stay all the time."""
        if self._contender.one_process:
            self.start(members)
        else:
            for _ in range(members):
                self.start()
        self._settle(members)

    def _settle(self, members: int) -> None:
        """Wait until so many members are equal, and have been for a while."""
        deadline_s = time.monotonic() + LIMIT_S
        balanced_s: float | None = None
        while balanced_s is None or time.monotonic() < balanced_s + REST_S:
            self._cpu.sample()
            last_ms = self._seen.last_ms
            changes = list(self._log.read())
            if changes or balanced_s is None:
                self._seen.take(changes)
                if not self._seen.balanced(members):
                    balanced_s = None
                elif balanced_s is None or self._seen.last_ms != last_ms:
                    balanced_s = time.monotonic()
            self._check(deadline_s, members)
            time.sleep(POLL_S)

    def _check(self, deadline_s: float, members: int) -> None:
        failed = [process for process in self._processes if process.poll() not in (None, 0, -9)]
        if failed:
            said = self._processes[failed[0]]
            said.seek(0)
            raise click.ClickException(f"a member of {self._contender.name} failed: {said.read()[-2_000:]}")
        if time.monotonic() > deadline_s:
            seen = Counter(self._seen.owners().values())
            raise click.ClickException(
                f"{self._contender.name}: not settled within {LIMIT_S:g} s: {len(self._seen.members)} members for"
                f" {members}, with {sorted(seen.values())} of {self._group.partitions} partitions"
            )

    def measure(self, event: str, members: int, happen: Callable[[], object]) -> Figures:
        """Let something happen, and look until so many members are equal again."""
        self._seen.take(self._log.read())
        before, known = dict(self._seen.owners()), set(self._seen.members)
        self._seen.unowned_ms, zxid = 0, max(self._seen.writes)
        asked_ms = time.time_ns() // 1_000_000
        happen()
        self._settle(members)
        after = self._seen.owners()
        moved = sum(1 for partition, owner in before.items() if after[partition] != owner)
        if event == "join":
            (new,) = self._seen.members - known
            begun_ms = self._seen.joined_ms[new]
            needed = sum(1 for owner in after.values() if owner == new)
        else:
            (gone,) = known - self._seen.members
            begun_ms = self._seen.ended_ms[gone] if event == "kill" else asked_ms
            needed = sum(1 for owner in before.values() if owner == gone)
        ended_ms = self._seen.last_ms
        return Figures(
            s=(ended_ms - begun_ms) / 1000,
            unowned=self._seen.unowned_ms / 1000,
            moved=moved - needed,
            writes=self._seen.between(zxid, ended_ms),
            cores=round(self._cpu.cores(begun_ms, ended_ms), 2),
        )

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._stack.close()


@contextmanager
def scene_of(contender: Contender, group: Group, cluster: Cluster) -> Iterator[Scene]:
    scene = Scene(contender, group, cluster)
    try:
        yield scene
    finally:
        scene.close()
