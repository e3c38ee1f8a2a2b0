"""
Hosts of members: each runs one member process at a time, on a network of its own.

A host keeps its proxies when its process is killed and another process is started.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiel_groups.embedded.processes import ChildProcess
from kiel_groups.errors import ServerError
from tests.chaos.clock import boot_s
from tests.chaos.history import Deliveries, Delivery, GrowingFile, Process
from tests.chaos.network import Network
from tests.helpers.waiting import within

__all__ = ["GROUP", "LEAVE_S", "MemberHost", "REPOSITORY", "TOPIC", "start_program"]

GROUP, TOPIC = "chaos", "chaos"
REPOSITORY = Path(__file__).parents[2]
#: How long a member may take to leave the group gracefully, in seconds.
LEAVE_S = 30.0
#: How long a process may take until it handles signals, in seconds.
START_S = 30.0


@dataclass(slots=True)
class _MemberProcess:
    """A process of a host. Times are seconds since boot."""

    child: ChildProcess
    started_s: float
    file: GrowingFile
    deliveries: Deliveries
    ended_s: float | None = None
    #: Whether the run has told the process to end.
    expected_end: bool = False
    trouble: str = ""
    resumed_s: list[float] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self.child.status is None

    def note_end(self) -> None:
        """
        Note the time if the process has ended since the last call, and the trouble if the run had not told it to end.
        """
        if self.ended_s is None and not self.is_running:
            self.ended_s = boot_s()
            if not self.expected_end:
                self.trouble = f"stopped by itself with status {self.child.status}"


class MemberHost:
    """
    Runs one member process after the other.

    Args:
        number: The number of the host, from 0.
        folder: The folder for the files of its processes.
        zookeeper, brokers: Its networks to the servers.
        session_timeout_s: The session timeout of its members, in seconds.
        checkouts: The checkouts whose code its processes run, in turn.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        zookeeper: Network,
        brokers: Network,
        session_timeout_s: float,
        checkouts: Sequence[Path] = (REPOSITORY,),
    ) -> None:
        self.number = number
        self.zookeeper = zookeeper
        self.brokers = brokers
        self._processes: list[_MemberProcess] = []
        self._folder = folder
        self._session_timeout_s = session_timeout_s
        self._checkouts = checkouts

    def __str__(self) -> str:
        return f"member-{self.number}"

    @property
    def is_running(self) -> bool:
        return bool(self._processes) and self._newest.is_running

    @property
    def _newest(self) -> _MemberProcess:
        return self._processes[-1]

    def start(self) -> None:
        """Start a process unless one is running."""
        if self.is_running:
            return
        name = f"{self}-{len(self._processes) + 1}"
        history = self._folder / f"{name}.history"
        options = {
            "--brokers": self.brokers.addresses,
            "--zookeeper": self.zookeeper.addresses,
            "--group": GROUP,
            "--topic": TOPIC,
            "--history": str(history),
            "--session-timeout-ms": str(round(self._session_timeout_s * 1000)),
        }
        # Hosts with consecutive numbers run different checkouts, and so do consecutive processes of one host.
        checkout = self._checkouts[(self.number + len(self._processes)) % len(self._checkouts)]
        child = start_program("tests.chaos.member", options, self._folder / f"{name}.log", checkout)
        self._processes.append(_MemberProcess(child, boot_s(), GrowingFile(history), Deliveries(child.pid)))

    async def start_and_wait(self) -> None:
        """Start a process, and wait until it handles SIGTERM. An earlier SIGTERM would kill it."""
        self.start()
        if not await within(self._newest.file.path.exists, START_S):
            raise ServerError(f"{self} was not up {START_S:g} s after its start; see its log in {self._folder}")

    def kill(self) -> None:
        """Kill the newest process."""
        process = self._newest
        if process.is_running:
            process.expected_end = True
            process.child.kill()
        process.note_end()

    def leave(self) -> None:
        """Make the newest process leave the group gracefully, and kill it after ``LEAVE_S``. Blocks the thread."""
        process = self._newest
        if process.is_running:
            process.expected_end = True
            process.child.send(signal.SIGTERM)
            process.child.send(signal.SIGCONT)
            if not process.child.wait(LEAVE_S):
                process.trouble = f"had not left the group {LEAVE_S:g} s after SIGTERM and was killed"
                process.child.kill()
            elif process.child.status != 0:
                process.trouble = f"failed when it left the group, with status {process.child.status}"
        process.note_end()

    def stop(self) -> None:
        """Stop the newest process with SIGSTOP."""
        if self.is_running:
            self._newest.child.freeze()

    def resume(self) -> None:
        """Resume the newest process with SIGCONT."""
        if self.is_running:
            self._newest.resumed_s.append(boot_s())
            self._newest.child.send(signal.SIGCONT)

    def kill_all(self) -> None:
        """Kill all processes that are still running at the end of a run."""
        for process in self._processes:
            process.child.kill()

    def read_new_lines(self) -> None:
        """Read what the processes have written since the last call, and note which processes have ended."""
        for process in self._processes:
            process.deliveries.add(process.file.new_lines())
            process.note_end()

    @property
    def delivery_count(self) -> int:
        """The number of deliveries that have been read so far."""
        return sum(len(process.deliveries.found) for process in self._processes)

    def deliveries(self) -> Iterator[Delivery]:
        """Yield all deliveries that have been read so far."""
        for process in self._processes:
            yield from process.deliveries.found

    def processes(self) -> Iterator[Process]:
        """Yield the processes of this host in the form that the history needs."""
        for process in self._processes:
            resumed_s = tuple(process.resumed_s)
            yield Process(process.child.pid, process.started_s, process.ended_s, process.trouble, resumed_s)


def start_program(module: str, options: dict[str, str], log: Path, checkout: Path = REPOSITORY) -> ChildProcess:
    """Run a module of a checkout with these options. Its output goes to ``log``."""
    command = [sys.executable, "-m", module, *(word for option in options.items() for word in option)]
    return ChildProcess(command, log=log, folder=checkout)
