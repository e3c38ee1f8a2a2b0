"""Run a group on real servers, and measure from outside the cost of a join, a leave or a kill."""

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

__all__ = ["Figures", "MeasuredGroup", "measured_group"]

#: The interval, in seconds, at which ZooKeeper's log is read. The measured times are taken from the log.
POLL_S = 0.01
LIMIT_S = 180.0

#: Longer than any debounce, so that every change after an event belongs to this event, not to the next event.
REST_S = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """
    The cost of one event, until all partitions are owned and evenly divided again.

    ``s``: the duration in seconds. ``unowned``: partition-seconds without an owner. ``moved``: partitions that moved
    unnecessarily. ``writes``: transactions. ``cores``: the average number of cores that members and servers kept busy.
    """

    s: float
    unowned: float
    moved: int
    writes: int
    cores: float


class MeasuredGroup:
    """One group whose members are processes, and the servers that it uses."""

    def __init__(self, contender: Contender, group: Group, cluster: Cluster) -> None:
        self._contender = contender
        self._group = group
        self._log = TransactionLog(cluster.zookeeper.folder / "data")
        spread = len(group.topics) if contender.balances_topics else 1
        self._seen = Ownership(contender.paths(group), group.partitions, spread)
        self._cpu = CpuTime()
        for server in cluster.servers:
            self._cpu.add(server.pid)
        #: By process: the file with its output.
        self._processes: dict[subprocess.Popen[str], IO[str]] = {}
        self._stack = ExitStack()

    def start(self, members: int = 1) -> subprocess.Popen[str]:
        command = self._contender.command(self._group, members)
        output = self._stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 -- the stack closes it
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True)
        self._processes[process] = output
        self._cpu.add(process.pid)
        return process

    def gather(self, members: int) -> None:
        """Start the members that stay during all events, and wait until they share the partitions."""
        if self._contender.one_process:
            self.start(members)
        else:
            for _ in range(members):
                self.start()
        self._settle(members)

    def _settle(self, members: int) -> None:
        """Wait until this number of members has shared all partitions equally for a while."""
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
            output = self._processes[failed[0]]
            output.seek(0)
            raise click.ClickException(f"a member of {self._contender.name} failed: {output.read()[-2_000:]}")
        if time.monotonic() > deadline_s:
            seen = Counter(self._seen.owners().values())
            raise click.ClickException(
                f"{self._contender.name}: not settled within {LIMIT_S:g} s: {len(self._seen.members)} members for"
                f" {members}, with {sorted(seen.values())} of {self._group.partitions} partitions"
            )

    def measure(self, event: str, members: int, cause: Callable[[], object]) -> Figures:
        """Cause an event, and return its cost until this number of members shares all partitions equally again."""
        self._seen.take(self._log.read())
        before, known = dict(self._seen.owners()), set(self._seen.members)
        self._seen.unowned_ms, zxid = 0, max(self._seen.writes)
        asked_ms = time.time_ns() // 1_000_000
        cause()
        self._settle(members)
        after = self._seen.owners()
        moved = sum(1 for partition, owner in before.items() if after[partition] != owner)
        if event == "join":
            (new,) = self._seen.members - known
            began_ms = self._seen.joined_ms[new]
            needed = sum(1 for owner in after.values() if owner == new)
        else:
            (gone,) = known - self._seen.members
            began_ms = self._seen.ended_ms[gone] if event == "kill" else asked_ms
            needed = sum(1 for owner in before.values() if owner == gone)
        ended_ms = self._seen.last_ms
        return Figures(
            s=(ended_ms - began_ms) / 1000,
            unowned=self._seen.unowned_ms / 1000,
            moved=moved - needed,
            writes=self._seen.between(zxid, ended_ms),
            cores=round(self._cpu.cores(began_ms, ended_ms), 2),
        )

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._stack.close()


@contextmanager
def measured_group(contender: Contender, group: Group, cluster: Cluster) -> Iterator[MeasuredGroup]:
    measured = MeasuredGroup(contender, group, cluster)
    try:
        yield measured
    finally:
        measured.close()
