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

#: The interval, in seconds, at which reports are read. Their times are those of the members.
POLL_S = 0.01
#: The interval, in seconds, at which the coordinator is asked whether it rebalances, during an event.
SHORT_POLL_S = 0.003
LIMIT_S = 180.0

#: How long a group must be without changes until an event counts as over.
REST_S = 2.0


@dataclass(frozen=True, slots=True)
class CoordinatedFigures:
    """
    The cost of one event, until a record of each partition was delivered again.

    ``s``: the duration in seconds. ``begun``: until the coordinator rebalances. ``stopped``: until the last member has
    stopped delivering, which it does after its next heartbeat. ``assigned``: until the last listener was notified.
    ``unowned``: partition-seconds without an owner. ``moved``: partitions that moved unnecessarily. ``cores``: the
    average number of cores that members and servers kept busy.
    """

    s: float
    begun: float
    stopped: float
    assigned: float
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
        self._describe = DescribeGroupsRequest((group.name,))
        #: When the coordinator was seen to have completed the last rebalance.
        self._stable_ns = 0

    # ------------------------------------------------------------------ processes

    def prepare(self, members: int = 1) -> int:
        """Start a process whose members do not join yet, and return its number."""
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

    def join(self, number: int) -> None:
        """Have the members of a process join."""
        stdin = self._processes[number].stdin
        assert stdin
        stdin.write("\n")
        stdin.flush()

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
        shares = [members] if self._contender.one_process else [1] * members
        for number in [self.prepare(share) for share in shares]:
            self.join(number)
        self._settle(members)

    def prepared(self) -> int:
        """Start a process with one member, wait until it can join at once, and return its number."""
        number = self.prepare()
        self._wait(lambda: Member(number, 0) in self._seen.prepared, "a new member does not start")
        return number

    def rest(self, phase: float) -> None:
        """
        Wait until ``REST_S`` and this part of the interval between two heartbeats have passed since the last rebalance.

        All members have beaten in step since then. A time that a client needs to deliver does not shift the next event.
        """
        until_ns = self._stable_ns + round((REST_S + phase * self._contender.heartbeat_ms / 1000) * 1e9)
        while time.monotonic_ns() < until_ns:
            time.sleep(min(POLL_S, max(0.0, (until_ns - time.monotonic_ns()) / 1e9)))

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
        ended_ns = self._seen.last_owned_ns
        if both := self._seen.overlaps():
            raise click.ClickException(f"{self._contender.name}: two members owned {both[0]} at once")
        since_1970_ns = time.time_ns() - time.monotonic_ns()
        return CoordinatedFigures(
            s=(ended_ns - began_ns) / 1e9,
            begun=(begun_ns - began_ns) / 1e9,
            stopped=(self._seen.stopped_ns(began_ns) - began_ns) / 1e9,
            assigned=(self._seen.last_assigned_ns - began_ns) / 1e9,
            unowned=self._seen.unowned_ns(began_ns, ended_ns) / 1e9,
            moved=self._seen.moved(before) - needed,
            cores=round(self._cpu.cores((began_ns + since_1970_ns) / 1e6, (ended_ns + since_1970_ns) / 1e6), 2),
        )

    def _begin_ns(self, members: int) -> int:
        """
        Wait until the coordinator rebalances a group of this many members.

        Return when it was last seen not to: the rebalance has begun within the next milliseconds.
        """
        stable_ns = time.monotonic_ns()

        def has_begun() -> bool:
            nonlocal stable_ns
            asked_ns = time.monotonic_ns()
            begun = not self._is_stable(members)
            stable_ns = stable_ns if begun else asked_ns
            return begun

        self._wait(has_begun, "the coordinator does not rebalance")
        return stable_ns

    def _is_stable(self, members: int) -> bool:
        (found,) = self._describing.request(self._broker, self._describe, 10.0)
        return found.state == "Stable" and len(found.members) == members

    def _settle(self, members: int) -> None:
        """Wait until this number of members has shared all partitions for a while."""
        self._wait(lambda: self._is_stable(members), "the group does not become stable")
        self._stable_ns = time.monotonic_ns()
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic_ns() < max(self._stable_ns, self._seen.last_owned_ns) + REST_S * 1e9 or not self._shared(
            members
        ):
            if not self._is_stable(members):
                self._wait(lambda: self._is_stable(members), "the group does not become stable")
                self._stable_ns = time.monotonic_ns()
            self._cpu.sample()
            self._take()
            self._check(deadline_s, f"not settled: {len(self._seen.owners)} of {self._partitions} partitions owned")
            time.sleep(POLL_S)

    def _shared(self, members: int) -> bool:
        return self._seen.is_shared(self._partitions, members)

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            self._cpu.sample()
            self._take()
            self._check(deadline_s, otherwise)
            time.sleep(SHORT_POLL_S)

    def _take(self) -> None:
        reports = []
        while not self._reports.empty():
            reports.append(self._reports.get())
        self._seen.take(reports)

    def _check(self, deadline_s: float, otherwise: str) -> None:
        for process, errors in zip(self._processes, self._errors, strict=True):
            if process.poll() not in (None, 0, -9):
                errors.seek(0)
                said = " ".join([*self._failures, errors.read()[-2_000:]])
                raise click.ClickException(f"a member of {self._contender.name} failed: {said}")
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"{self._contender.name}: within {LIMIT_S:g} s, {otherwise}")

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
