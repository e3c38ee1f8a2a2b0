"""Start the processes of a group whose members report what happens to them, and read their reports."""

from __future__ import annotations

import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO

import click

from benchmarks.cpu import CpuTime
from benchmarks.members.event_lines import MemberEvent
from benchmarks.reported_ownership import Member, MemberReport, ReportedOwnership

__all__ = ["LIMIT_S", "ReportingProcesses", "since_1970_ms"]

LIMIT_S = 180.0

#: How long a process may take to end after its input, in seconds.
_END_S = 20


class ReportingProcesses:
    """
    The processes of one group.

    Args:
        name: What is measured, for errors.
        command: Returns the command line of a process with a number of members.
        servers: The processes of the servers, whose processor time counts, too.
        seen: Takes what the members report.
    """

    def __init__(
        self, name: str, command: Callable[[int], list[str]], servers: list[int], seen: ReportedOwnership
    ) -> None:
        self._name = name
        self._command = command
        self.cpu = CpuTime()
        for server in servers:
            self.cpu.add(server)
        self.seen = seen
        self._reports: queue.SimpleQueue[MemberReport] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []
        self._readers: list[threading.Thread] = []
        self._failures: list[str] = []
        self._stack = ExitStack()

    def prepare(self, members: int = 1) -> int:
        """Start a process whose members do not join yet, and return its number."""
        number = len(self._processes)
        errors = self._stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 -- the stack closes it
        process = subprocess.Popen(
            self._command(members), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        )
        self._processes.append(process)
        self._errors.append(errors)
        self.cpu.add(process.pid)
        reader = threading.Thread(target=self._read, args=(number, process), daemon=True)
        self._readers.append(reader)
        reader.start()
        return number

    def prepared(self) -> int:
        """Start a process with one member, wait until it can join at once, and return its number."""
        number = self.prepare()
        self.wait(lambda: Member(number, 0) in self.seen.prepared, "a new member does not start")
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
        self.take()
        self.seen.end(number, time.monotonic_ns())

    def take(self) -> None:
        """Take the reports that have arrived."""
        reports = []
        while not self._reports.empty():
            reports.append(self._reports.get())
        self.seen.take(reports)

    def wait(self, condition: Callable[[], bool], otherwise: str, poll_s: float = 0.003) -> None:
        """
        Wait until a condition holds, and take reports meanwhile.

        Raises:
            ClickException: A process has failed, or the condition did not hold in time; ``otherwise`` says what then.
        """
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            self.cpu.sample()
            self.take()
            self.check(deadline_s, otherwise)
            time.sleep(poll_s)

    def check(self, deadline_s: float, otherwise: str) -> None:
        """Raise ClickException if a process has failed, or the deadline is over."""
        for process, errors in zip(self._processes, self._errors, strict=True):
            if process.poll() not in (None, 0, -9):
                errors.seek(0)
                said = " ".join([*self._failures, errors.read()[-2_000:]])
                raise click.ClickException(f"a member of {self._name} failed: {said}")
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"{self._name}: within {LIMIT_S:g} s, {otherwise}")

    def cores(self, began_ns: int, ended_ns: int) -> float:
        """Return the average number of cores that all were busy with, between two times of the monotonic clock."""
        return round(self.cpu.cores(since_1970_ms(began_ns), since_1970_ms(ended_ns)), 2)

    def close(self) -> None:
        """Have the members leave that still run, and wait for their processes."""
        for process in self._processes:
            if process.poll() is None:
                assert process.stdin
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._stack.close()


def since_1970_ms(monotonic_ns: int) -> float:
    """Convert a time of the monotonic clock to milliseconds since 1970, the time of ZooKeeper's log."""
    return (monotonic_ns + time.time_ns() - time.monotonic_ns()) / 1e6
