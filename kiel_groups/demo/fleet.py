"""The consumer processes of the demo, and the receipts that they have written so far."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kiel_groups.demo.receipts import Receipt, ReceiptFile
from kiel_groups.embedded.processes.child_process import ChildProcess, log_tail
from kiel_groups.embedded.processes.server_process import in_thread
from kiel_groups.errors import KielGroupsError

__all__ = ["DemoError", "Fleet", "FleetSettings", "Worker"]

#: A consumer's rate is its average over this time, in seconds.
_RATE_WINDOW_S = 2.0
_LEAVE_LIMIT_S = 20.0


class DemoError(KielGroupsError):
    """The demo could not be completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The options of all consumers: ``rate`` in records per second, ``number_in_key`` as in ``input_records.Input``."""

    brokers: str
    zookeeper: str
    group: str
    topic: str
    rate: float
    session_timeout_ms: int
    number_in_key: bool

    def arguments(self) -> list[str]:
        options = {
            "--brokers": self.brokers,
            "--zookeeper": self.zookeeper,
            "--group": self.group,
            "--topic": self.topic,
            "--rate": str(self.rate),
            "--session-timeout-ms": str(self.session_timeout_ms),
        }
        flags = ["--number-in-key"] if self.number_in_key else []
        return [*flags, *(word for option in options.items() for word in option)]


@dataclass(slots=True)
class Worker:
    """One consumer process; ``leaving`` says why the process should end, and is "" while it should run."""

    name: str
    process: ChildProcess
    log: Path
    receipts: ReceiptFile
    leaving: str = ""
    counts: deque[tuple[float, int]] = field(default_factory=deque)
    _shown: int = 0

    @property
    def alive(self) -> bool:
        return self.process.status is None

    def rate(self) -> float:
        """Return the receipts per second over the last two seconds."""
        if len(self.counts) < 2:
            return 0.0
        (start_s, first), (end_s, last) = self.counts[0], self.counts[-1]
        return (last - first) / (end_s - start_s) if end_s > start_s else 0.0

    def new_foreign_receipts(self) -> list[Receipt]:
        """Return the receipts, read since the last call, of records that the demo did not send."""
        new, self._shown = self.receipts.receipts[self._shown :], len(self.receipts.receipts)
        return [receipt for receipt in new if receipt.number is None]

    def read_receipts(self) -> None:
        """
        Read new receipts.

        Raises:
            DemoError: The process ended unexpectedly.
        """
        now_s = time.monotonic()
        self.counts.append((now_s, self.receipts.read_new()))
        while now_s - self.counts[0][0] > _RATE_WINDOW_S:
            self.counts.popleft()
        if not self.alive and not self.leaving:
            raise DemoError(f"{self.name} ended with status {self.process.status}; its log ends:\n{log_tail(self.log)}")


class Fleet:
    """Starts, kills and stops the consumers; their files are in ``folder``."""

    def __init__(self, folder: Path, settings: FleetSettings) -> None:
        self._folder = folder
        self._settings = settings
        self.workers: list[Worker] = []

    def start(self) -> Worker:
        """Start one more consumer."""
        name = f"consumer-{len(self.workers) + 1}"
        path, log = self._folder / f"{name}.receipts", self._folder / f"{name}.log"
        command = [sys.executable, "-m", "kiel_groups.demo.consumer", "--receipts", str(path)]
        process = ChildProcess([*command, *self._settings.arguments()], log=log, folder=self._folder)
        worker = Worker(name, process, log, ReceiptFile(path))
        self.workers.append(worker)
        return worker

    async def kill(self, worker: Worker) -> None:
        """Kill a consumer with SIGKILL."""
        worker.leaving = "killed"
        await in_thread(worker.process.kill)

    async def stop(self, worker: Worker) -> None:
        """
        Stop a consumer with SIGTERM; it leaves the group cleanly.

        Raises:
            DemoError: The consumer had to be killed, or its exit status is not 0.
        """
        worker.leaving = "leaving"
        await in_thread(worker.process.terminate, _LEAVE_LIMIT_S)
        if worker.process.status != 0:
            raise DemoError(
                f"{worker.name} left with status {worker.process.status} instead of 0; its log ends:\n"
                f"{log_tail(worker.log)}"
            )
        worker.read_receipts()

    def kill_all(self) -> None:
        """Kill all consumers that still run."""
        for worker in self.workers:
            worker.leaving = worker.leaving or "ended with the demo"
            worker.process.kill()

    def read_receipts(self) -> int:
        """
        Read new receipts of all consumers. Return how many receipts there are in total.

        Raises:
            DemoError: A consumer ended unexpectedly.
        """
        for worker in self.workers:
            worker.read_receipts()
        return sum(len(worker.receipts.receipts) for worker in self.workers)

    def receipts(self) -> Iterator[Receipt]:
        """Iterate over the receipts of all consumers, including consumers that have ended."""
        for worker in self.workers:
            yield from worker.receipts.receipts

    def by_pid(self, pid: int | None) -> Worker | None:
        """Return the worker with this process id, or None."""
        return next((worker for worker in self.workers if worker.process.pid == pid), None)

    @property
    def live(self) -> list[Worker]:
        """The consumers that run and were not asked to end."""
        return [worker for worker in self.workers if worker.alive and not worker.leaving]
