"""One run: inflict the schedule, let the group recover, and collect the history."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiel_groups.embedded.processes import in_thread
from kiel_groups.errors import ServerError
from tests.chaos.clock import boot_s
from tests.chaos.faults import inflict, target_name
from tests.chaos.history import Delivery, History, Inflicted, group_history
from tests.chaos.member_hosts import GROUP, REPOSITORY, TOPIC
from tests.chaos.schedule import Fault, Schedule
from tests.chaos.system import PARTITIONS, SystemUnderTest
from tests.chaos.transaction_log import committed
from tests.helpers.waiting import within

__all__ = ["Progress", "Result", "Run"]

#: How many faults may overlap.
AT_ONCE = 2
#: How long the group may take after the last fault to finish all acknowledged records, in seconds.
RECOVERY_S = 60.0
#: How long the group may take for the first delivery of every partition, in seconds.
START_S = 60.0
#: Seconds between two reads of what the programs have written.
READ_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run: started faults, acknowledged records, deliveries, and the current activity."""

    started: int
    acknowledged: int
    delivered: int
    activity: str


@dataclass(slots=True)
class Result:
    """The history of a run, and events that are not part of the schedule."""

    history: History
    repairs: list[str] = field(default_factory=list)
    interrupted: bool = False
    #: The first error that ended the faults early, or "".
    failure: str = ""
    wall_s: float = 0.0


class Run:
    """
    Runs a group on new servers, and inflicts a schedule of faults.

    Args:
        schedule: The faults.
        folder: The folder for the logs and files of the run.
        rate: The number of records a second.
        quiet_end_s: How long the producer and the group continue after the last fault, in seconds.
        progress: Called regularly with the progress of the run.
        checkouts: The checkouts whose code the members run, in turn.
    """

    def __init__(
        self,
        schedule: Schedule,
        folder: Path,
        *,
        rate: float,
        quiet_end_s: float,
        progress: Callable[[Progress], object],
        checkouts: Sequence[Path] = (REPOSITORY,),
    ) -> None:
        self._schedule = schedule
        self._folder = folder
        self._system = SystemUnderTest(folder, schedule, rate, checkouts)
        self._quiet_end_s = quiet_end_s
        self._progress = progress
        self._active: dict[asyncio.Task[None], Fault] = {}
        self._inflicted: dict[int, Inflicted] = {}
        self._failures: list[BaseException] = []
        self._activity = "starting servers"

    async def play(self) -> Result:
        """
        Start the servers, run the schedule, end the servers, and return the history.

        The first SIGINT or SIGTERM ends the faults, and the next signal ends the run.

        Raises:
            ServerError: A server did not start, or did not recover at the end, or some partition had no delivery at the
                start of the run. This is no finding about the group.
        """
        started_s, boot_minus_wall_s = time.monotonic(), boot_s() - time.time()
        reporting = asyncio.create_task(self._report_progress())
        try:
            async with self._system:
                interrupted, failure = await self._inflict_all()
                end_s = await self._recover()
                await self._leave_all()
                history = self._history(end_s, boot_minus_wall_s)
        finally:
            reporting.cancel()
        return Result(history, self._system.repairs, interrupted, failure, time.monotonic() - started_s)

    async def _report_progress(self) -> None:
        while True:
            self._system.read_new_lines()
            acknowledged = len(self._system.acknowledged)
            delivered = sum(host.delivery_count for host in self._system.hosts)
            self._progress(Progress(len(self._inflicted), acknowledged, delivered, self._describe()))
            await asyncio.sleep(READ_INTERVAL_S)

    def _describe(self) -> str:
        return ", ".join(f"{fault.kind} {fault.target}" for fault in self._active.values()) or self._activity

    # ------------------------------------------------------------------ faults

    async def _inflict_all(self) -> tuple[bool, str]:
        """
        Inflict the faults of the schedule, and wait until they have ended.

        Return whether a signal ended the faults early, and the text of the first error of a fault, or "".
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._activity = "waiting for the group"
        faults = asyncio.create_task(self._start_each())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, faults.cancel)
        await asyncio.wait({faults})
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        for fault in self._active:
            fault.cancel()
        if self._active:
            await asyncio.wait(self._active)
        if not faults.cancelled() and not self._failures:
            faults.result()
        return faults.cancelled(), "".join(f"{type(error).__name__}: {error}" for error in self._failures[:1])

    async def _start_each(self) -> None:
        await self._first_deliveries()
        self._activity = "resting"
        started_s = boot_s()
        for fault in self._schedule.faults:
            await asyncio.sleep(max(0.0, started_s + fault.after_s - boot_s()))
            if fault.rest_s:
                await self._until(lambda: not self._active)
                await asyncio.sleep(fault.rest_s)
            await self._until(lambda fault=fault: self._may_start(fault))  # type: ignore[misc]
            started_s = boot_s()
            task = asyncio.create_task(self._inflict(fault, started_s))
            self._active[task] = fault
            task.add_done_callback(self._fault_over)
        await self._until(lambda: not self._active)

    def _may_start(self, fault: Fault) -> bool:
        exclusive = {other.exclusive for other in self._active.values()}
        return len(self._active) < AT_ONCE and fault.exclusive not in exclusive

    def _fault_over(self, task: asyncio.Task[None]) -> None:
        del self._active[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """
        Wait until the condition, which can change when a fault ends, is true. Raise the error of a fault that failed.
        """
        while not condition():
            await asyncio.wait(self._active, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
        if self._failures:
            raise self._failures[0]

    async def _inflict(self, fault: Fault, started_s: float) -> None:
        target = target_name(self._system, fault)
        self._log_fault(Inflicted(fault.number, fault.kind, target, started_s, None))
        await inflict(self._system, fault)
        self._log_fault(Inflicted(fault.number, fault.kind, target, started_s, boot_s()))

    def _log_fault(self, inflicted: Inflicted) -> None:
        self._inflicted[inflicted.number] = inflicted
        with (self._folder / "faults.jsonl").open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(inflicted._asdict()) + "\n")

    # ------------------------------------------------------------------ the start and the end

    async def _first_deliveries(self) -> None:
        """Wait for a delivery of every partition. Raise ServerError after ``START_S``."""

        def all_delivered() -> bool:
            return len({delivery.partition for delivery in self._deliveries()}) == PARTITIONS

        if not await within(all_delivered, START_S, READ_INTERVAL_S):
            raise ServerError(
                f"no delivery of some partitions {START_S:g} s after the start of the members; see their logs"
            )

    async def _recover(self) -> float:
        """Undo all faults, and wait until all records are finished. Return the end of the time to check."""
        system = self._system
        self._activity = "recovering"
        await in_thread(system.heal)
        await system.start_missing()
        await system.wait_for_ensemble()
        await system.wait_for_brokers()
        recovered_s = boot_s()
        for inflicted in [each for each in self._inflicted.values() if each.ended_s is None]:
            self._log_fault(inflicted._replace(ended_s=recovered_s))
        self._activity = "waiting for the last records"
        await asyncio.sleep(self._quiet_end_s)
        await in_thread(system.stop_producer)
        await within(self._all_finished, RECOVERY_S, READ_INTERVAL_S)
        return boot_s()

    def _all_finished(self) -> bool:
        self._system.read_new_lines()
        finished = {delivery.number for delivery in self._deliveries() if delivery.end_s is not None}
        return all(record.number in finished for record in self._system.acknowledged)

    async def _leave_all(self) -> None:
        """
        Make all running members leave gracefully, concurrently. The checker reports members that fail or take too long.
        """
        self._activity = "ending"
        await asyncio.gather(*(in_thread(host.leave) for host in self._system.hosts if host.is_running))

    def _deliveries(self) -> list[Delivery]:
        return [delivery for host in self._system.hosts for delivery in host.deliveries()]

    def _history(self, end_s: float, boot_minus_wall_s: float) -> History:
        system = self._system
        system.read_new_lines()
        logged = group_history(committed(system.transaction_logs), GROUP, TOPIC, boot_minus_wall_s)
        return History(
            partitions=PARTITIONS,
            acknowledged=system.acknowledged,
            deliveries=sorted(self._deliveries(), key=lambda delivery: delivery.start_s),
            ownerships=logged.ownerships,
            commits=logged.commits,
            deleted_offsets=logged.deleted_offsets,
            faults=sorted(self._inflicted.values()),
            processes=[process for host in system.hosts for process in host.processes()],
            end_s=end_s,
            clock_step_s=abs(boot_s() - time.time() - boot_minus_wall_s),
        )
