"""
Members in their places: one process after the other, each place with a network of its own.

A place keeps its proxies when its process is killed and started again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiel_groups.embedded import FaultProxy
from kiel_groups.embedded.faults.fault_proxy import Direction
from kiel_groups.embedded.processes.child_process import ChildProcess
from kiel_groups.errors import ServerError
from tests.chaos.history import Deliveries, GrowingFile, Process

__all__ = ["GROUP", "LEAVE_S", "Link", "Place", "RegistryProxy", "TOPIC", "boot_s", "program"]

GROUP, TOPIC = "chaos", "chaos"
REPOSITORY = Path(__file__).parents[2]
#: How long a member may take to leave in order, in seconds.
LEAVE_S = 30.0
#: How long its process may take until it handles signals, in seconds.
START_S = 30.0


def boot_s() -> float:
    """Seconds of boot time, as the members have them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RegistryProxy(FaultProxy):
    """
    Stands before a ZooKeeper server and puts proxies in the place of the brokers that are registered there.

    Otherwise a member that has lost its network to the brokers would find them in ZooKeeper, and go past it.
    """

    def __init__(self, upstream: str, ports: dict[int, int]) -> None:
        super().__init__(upstream)
        # The answer keeps its length, since ports that the system chooses have five digits.
        self._ports = {
            b'"port":%d' % own: b'"port":%d' % other for own, other in ports.items() if len(str(own)) == len(str(other))
        }

    async def _pass_on(self, direction: Direction, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if direction is Direction.RESPONSES and b'"port":' in chunk:
            for own, other in self._ports.items():
                chunk = chunk.replace(own, other)
        await super()._pass_on(direction, chunk, sink)


class Link:
    """One side's way to some servers: a proxy for each."""

    def __init__(self, proxies: Iterable[FaultProxy]) -> None:
        self.proxies = list(proxies)

    @property
    def addresses(self) -> str:
        return ",".join(proxy.address for proxy in self.proxies)

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        for proxy in self.proxies:
            proxy.refuse()
            proxy.cut()

    def stall(self, direction: Direction | None = None) -> None:
        """Let nothing through, in one direction or in both, without telling anybody."""
        for proxy in self.proxies:
            proxy.stall(direction)

    def heal(self) -> None:
        """Let everything through; what was held back goes on."""
        for proxy in self.proxies:
            proxy.heal()


@dataclass(slots=True)
class _Life:
    """One process of a place; times in seconds of boot time."""

    process: ChildProcess
    started_s: float
    file: GrowingFile
    deliveries: Deliveries
    ended_s: float | None = None
    #: Whether the run ended it.
    wanted: bool = False
    trouble: str = ""
    resumed_s: list[float] = field(default_factory=list)

    def note_end(self) -> None:
        """Note when the process has ended, once it has."""
        if self.ended_s is None and self.process.status is not None:
            self.ended_s = boot_s()
            if not self.wanted:
                self.trouble = f"stopped by itself with status {self.process.status}"


class Place:
    """
    A member's place: its network, and one process after the other.

    Args:
        number: From 0.
        folder: Where its processes write.
        zookeeper, brokers: Its ways to the servers.
        session_timeout_s: Of its sessions.
        checkouts: Whose code its processes run, one after the other; this one's unless given.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        zookeeper: Link,
        brokers: Link,
        session_timeout_s: float,
        checkouts: Sequence[Path] = (REPOSITORY,),
    ) -> None:
        self.number = number
        self.zookeeper = zookeeper
        self.brokers = brokers
        self.lives: list[_Life] = []
        self._folder = folder
        self._session_timeout_s = session_timeout_s
        self._checkouts = checkouts

    def __str__(self) -> str:
        return f"member-{self.number}"

    @property
    def life(self) -> _Life:
        """The newest process."""
        return self.lives[-1]

    @property
    def lives_now(self) -> bool:
        return bool(self.lives) and self.life.process.status is None

    def start(self) -> None:
        """Start a process, unless one lives."""
        if self.lives_now:
            return
        name = f"{self}-{len(self.lives) + 1}"
        history = self._folder / f"{name}.history"
        options = {
            "--brokers": self.brokers.addresses,
            "--zookeeper": self.zookeeper.addresses,
            "--group": GROUP,
            "--topic": TOPIC,
            "--history": str(history),
            "--session-timeout-ms": str(round(self._session_timeout_s * 1000)),
        }
        # Neighbours differ, and so do the processes of one place.
        checkout = self._checkouts[(self.number + len(self.lives)) % len(self._checkouts)]
        process = program("tests.chaos.member", options, self._folder / f"{name}.log", checkout)
        self.lives.append(_Life(process, boot_s(), GrowingFile(history), Deliveries(process.pid)))

    async def start_anew(self) -> None:
        """Start a process, and wait until it can be asked to leave: before that, SIGTERM just ends it."""
        self.start()
        deadline_s = boot_s() + START_S
        while not self.life.file.path.exists():
            if boot_s() > deadline_s:
                raise ServerError(f"{self} was not up {START_S:g} s after its start; see its log in {self._folder}")
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        life = self.life
        if life.process.status is None:
            life.wanted = True
            life.process.kill()
        life.note_end()

    def leave(self) -> None:
        """Have the process leave the group in order; it is killed where it does not within ``LEAVE_S``."""
        life = self.life
        if life.process.status is None:
            life.wanted = True
            life.process.send(signal.SIGTERM)
            life.process.send(signal.SIGCONT)
            if not life.process.wait(LEAVE_S):
                life.trouble = f"had not left the group {LEAVE_S:g} s after SIGTERM and was killed"
                life.process.kill()
            elif life.process.status != 0:
                life.trouble = f"failed when it left the group, with status {life.process.status}"
        life.note_end()

    def stop(self) -> None:
        """Stop the process (SIGSTOP)."""
        if self.lives_now:
            self.life.process.freeze()

    def resume(self) -> None:
        """Have a stopped process go on (SIGCONT)."""
        if self.lives_now:
            self.life.resumed_s.append(boot_s())
            self.life.process.send(signal.SIGCONT)

    def look(self) -> None:
        """Note when processes have ended, and read what they have written since; to be called now and then."""
        for life in self.lives:
            life.deliveries.add(life.file.new_lines())
            life.note_end()

    def processes(self) -> Iterator[Process]:
        """What became of its processes."""
        for life in self.lives:
            pid = life.process.pid
            yield Process(pid, life.started_s, life.ended_s, life.trouble, tuple(life.resumed_s))


def program(module: str, options: dict[str, str], log: Path, checkout: Path = REPOSITORY) -> ChildProcess:
    """Run a module of this folder with these options and the code of a checkout; its output goes to ``log``."""
    command = [sys.executable, "-m", module, *(word for option in options.items() for word in option)]
    return ChildProcess(command, log=log, folder=checkout)
