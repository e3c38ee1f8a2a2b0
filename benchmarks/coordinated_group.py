"""Run a group that brokers coordinate, and measure the cost of a join, a leave or a kill from its members' reports."""

from __future__ import annotations

import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO

import click

from benchmarks.broker_contenders import BrokerContender
from benchmarks.cpu import CpuTime
from benchmarks.member_commands import BrokerGroup
from benchmarks.members.event_lines import MemberEvent
from benchmarks.reported_ownership import Member, MemberReport, ReportedOwnership
from kiel_groups.clients.coordinator.heartbeat_connection import HeartbeatConnection
from kiel_groups.config import parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.wire.groups.describe_groups_v0 import DescribeGroupsRequest

__all__ = ["CoordinatedFigures", "CoordinatedGroup", "coordinated_group"]

#: The interval, in seconds, at which reports are read, and at which the coordinator is asked whether it rebalances. The
#: other times are those of the members.
POLL_S = 0.01
LIMIT_S = 180.0

#: How long a group must be without changes until an event counts as over.
REST_S = 2.0


@dataclass(frozen=True, slots=True)
class CoordinatedFigures:
    """
    The cost of one event, until all members deliver all partitions again.

    ``s``: the duration in seconds. ``begun``: until the coordinator rebalances. ``stopped``: until the last member has
    stopped delivering, which it does after its next heartbeat. The rest is the time for joins, syncs and positions.
    ``unowned``: partition-seconds without an owner. ``moved``: partitions that moved unnecessarily. ``cores``: the
    average number of cores that members and servers kept busy.
    """

    s: float
    begun: float
    stopped: float
    unowned: float
    moved: int
    cores: float


class CoordinatedGroup:
    """One group whose members are processes, and the brokers that it uses."""

    def __init__(self, contender: BrokerContender, group: BrokerGroup, partitions: int, cluster: Cluster) -> None:
        self._contender = contender
        self._group = group
        self._partitions = partitions
        self._cpu = CpuTime()
        for server in cluster.servers:
            self._cpu.add(server.pid)
        self._seen = ReportedOwnership()
        self._reports: queue.SimpleQueue[MemberReport] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []
        self._readers: list[threading.Thread] = []
        self._failures: list[str] = []
        self._stack = ExitStack()
        (self._broker,) = parse_hosts(group.broker, 9092, "broker")
        self._describing = HeartbeatConnection("benchmark")

    # ------------------------------------------------------------------ processes

    def start(self, members: int = 1) -> int:
        """Start a process with members, and return its number."""
        number = len(self._processes)
        errors = self._stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 -- the stack closes it
        command = self._contender.command(self._group, members)
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        )
        self._processes.append(process)
        self._errors.append(errors)
        self._cpu.add(process.pid)
        reader = threading.Thread(target=self._read, args=(number, process), daemon=True)
        self._readers.append(reader)
        reader.start()
        return number

    def _read(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            event = MemberEvent.parse(line)
            if event.kind == "failed":
                self._failures.append(" ".join(event.words))
            self._reports.put(MemberReport(Member(number, event.member), event))

    def leave(self, number: int) -> None:
        """Have the members of a process leave."""
        stdin = self._processes[number].stdin
        assert stdin
        stdin.close()

    def kill(self, number: int) -> None:
        """Kill a process with -9."""
        self._processes[number].kill()
        self._processes[number].wait()
        self._readers[number].join()
        self._take()
        self._seen.end(number, time.monotonic_ns())

    # ------------------------------------------------------------------ events

    def gather(self, members: int) -> None:
        """Start the members that stay during all events, and wait until they share the partitions."""
        if self._contender.one_process:
            self.start(members)
        else:
            for _ in range(members):
                self.start()
        self._settle(members)

    def rest(self, phase: float) -> None:
        """Wait for a part of the interval between two heartbeats, so that rounds begin at different ones."""
        until_s = time.monotonic() + phase * self._contender.heartbeat_ms / 1000
        while time.monotonic() < until_s:
            time.sleep(POLL_S)

    def measure(self, event: str, members: int, cause: Callable[[], object]) -> CoordinatedFigures:
        """Cause an event, and return its cost until this number of members shares all partitions again."""
        self._take()
        before, known = self._seen.owners, self._seen.members
        self._cpu.sample()
        cause()
        begun_ns = began_ns = self._begin_ns(len(known))
        self._settle(members)
        after, now = self._seen.owners, self._seen.members
        (changed,) = now - known if event == "join" else known - now
        if event != "kill":
            # No other member can notice a death before its session has ended.
            began_ns = (self._seen.joining_ns if event == "join" else self._seen.leaving_ns)[changed]
        needed = sum(1 for owner in (after if event == "join" else before).values() if owner == changed)
        ended_ns = self._seen.last_ready_ns
        if both := self._seen.overlaps():
            raise click.ClickException(f"{self._contender.name}: two members owned {both[0]} at once")
        since_1970_ns = time.time_ns() - time.monotonic_ns()
        return CoordinatedFigures(
            s=(ended_ns - began_ns) / 1e9,
            begun=(begun_ns - began_ns) / 1e9,
            stopped=(self._seen.stopped_ns(began_ns) - began_ns) / 1e9,
            unowned=self._seen.unowned_ns(began_ns, ended_ns) / 1e9,
            moved=self._seen.moved(before) - needed,
            cores=round(self._cpu.cores((began_ns + since_1970_ns) / 1e6, (ended_ns + since_1970_ns) / 1e6), 2),
        )

    def _begin_ns(self, members: int) -> int:
        """Wait until the coordinator rebalances a group of this many members, and return when it has begun."""
        deadline_s = time.monotonic() + LIMIT_S
        request = DescribeGroupsRequest((self._group.name,))
        while time.monotonic() < deadline_s:
            asked_ns = time.monotonic_ns()
            (found,) = self._describing.request(self._broker, request, 10.0)
            if found.state != "Stable" or len(found.members) != members:
                return asked_ns
            self._cpu.sample()
            time.sleep(POLL_S)
        raise click.ClickException(f"{self._contender.name}: the coordinator does not rebalance")

    def _settle(self, members: int) -> None:
        """Wait until this number of members has shared all partitions for a while."""
        deadline_s = time.monotonic() + LIMIT_S
        shared_s: float | None = None
        while shared_s is None or time.monotonic() < shared_s + REST_S:
            self._cpu.sample()
            last_ns = self._seen.last_ready_ns
            self._take()
            if not self._seen.is_shared(self._partitions, members):
                shared_s = None
            elif shared_s is None or self._seen.last_ready_ns != last_ns:
                shared_s = time.monotonic()
            self._check(deadline_s, members)
            time.sleep(POLL_S)

    def _take(self) -> None:
        reports = []
        while not self._reports.empty():
            reports.append(self._reports.get())
        self._seen.take(reports)

    def _check(self, deadline_s: float, members: int) -> None:
        for process, errors in zip(self._processes, self._errors, strict=True):
            if process.poll() not in (None, 0, -9):
                errors.seek(0)
                said = " ".join([*self._failures, errors.read()[-2_000:]])
                raise click.ClickException(f"a member of {self._contender.name} failed: {said}")
        if time.monotonic() > deadline_s:
            raise click.ClickException(
                f"{self._contender.name}: not settled within {LIMIT_S:g} s: {len(self._seen.members)} members for"
                f" {members}, with {len(self._seen.owners)} of {self._partitions} partitions"
            )

    def close(self) -> None:
        """Have the members leave that still run, and wait for their processes."""
        for process in self._processes:
            if process.poll() is None:
                assert process.stdin
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._describing.close()
        self._stack.close()


@contextmanager
def coordinated_group(
    contender: BrokerContender, group: BrokerGroup, partitions: int, cluster: Cluster
) -> Iterator[CoordinatedGroup]:
    """Provide a group without members; those that still run at the end leave."""
    running = CoordinatedGroup(contender, group, partitions, cluster)
    try:
        yield running
    finally:
        running.close()
