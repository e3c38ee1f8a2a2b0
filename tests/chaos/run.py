"""One run: the schedule is inflicted, the group recovers, and what was seen becomes a history."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiel_groups.embedded.processes.server_process import in_thread
from kiel_groups.errors import ServerError
from tests.chaos.faults import inflict, target_name
from tests.chaos.history import Delivery, History, Inflicted, group_history
from tests.chaos.places import GROUP, REPOSITORY, TOPIC, boot_s
from tests.chaos.schedule import Fault, Schedule
from tests.chaos.transaction_log import committed
from tests.chaos.world import PARTITIONS, World

__all__ = ["Progress", "Run", "Seen"]

#: How many faults may last at the same time.
AT_ONCE = 2
#: How long after the last fault everything acknowledged may take to be processed, in seconds.
SETTLE_S = 60.0
#: How long the group may take until all partitions flow for the first time, in seconds.
START_S = 60.0
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, in faults that have begun and records; ``now`` says what it does."""

    begun: int
    acknowledged: int
    delivered: int
    now: str


@dataclass(slots=True)
class Seen:
    """What a run leaves: its history, and what was done beside the schedule."""

    history: History
    repairs: list[str] = field(default_factory=list)
    interrupted: bool = False
    #: Why the faults ended early, where a server could not be brought back.
    failure: str = ""
    wall_s: float = 0.0


class Run:
    """
    Inflicts a schedule on a world of its own.

    Args:
        schedule: What is inflicted.
        folder: Where servers and programs write.
        rate: Records a second.
        quiet_end_s: How long the group is left alone after the last fault, before the producer ends.
        progress: Called now and then with how far the run is.
        checkouts: Whose code the members run, in turn; this one's unless given.
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
        self._world = World(folder, schedule, rate, checkouts)
        self._quiet_end_s = quiet_end_s
        self._progress = progress
        self._under_way: dict[asyncio.Task[None], Fault] = {}
        self._inflicted: dict[int, Inflicted] = {}
        self._failures: list[BaseException] = []
        self._now = "starting servers"

    async def play(self) -> Seen:
        """
        From the start of the servers to their end. The first SIGINT or SIGTERM ends the faults, the next one the run.

        Raises:
            ServerError: A server did not start, or did not recover at the end; that says nothing about the group.
        """
        began_s, boot_minus_wall_s = time.monotonic(), boot_s() - time.time()
        telling = asyncio.create_task(self._tell())
        try:
            async with self._world:
                interrupted, failure = await self._inflict_all()
                end_s = await self._settle()
                await self._leave()
                history = self._history(end_s, boot_minus_wall_s)
        finally:
            telling.cancel()
        return Seen(history, self._world.repairs, interrupted, failure, time.monotonic() - began_s)

    async def _tell(self) -> None:
        while True:
            self._world.look()
            delivered = sum(len(life.deliveries.found) for place in self._world.places for life in place.lives)
            self._progress(Progress(len(self._inflicted), len(self._world.acknowledged), delivered, self._describe()))
            await asyncio.sleep(LOOK_S)

    def _describe(self) -> str:
        return ", ".join(f"{fault.kind} {fault.target}" for fault in self._under_way.values()) or self._now

    # ------------------------------------------------------------------ faults

    async def _inflict_all(self) -> tuple[bool, str]:
        """Inflict the schedule; whether a signal ended it early, and what else did."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._now = "waiting for the group"
        faults = asyncio.create_task(self._begin_each())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, faults.cancel)
        await asyncio.wait({faults})
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        for fault in self._under_way:
            fault.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        if not faults.cancelled() and not self._failures:
            faults.result()
        return faults.cancelled(), "".join(f"{type(error).__name__}: {error}" for error in self._failures[:1])

    async def _begin_each(self) -> None:
        await self._first_deliveries()
        self._now = "resting"
        began_s = boot_s()
        for fault in self._schedule.faults:
            await asyncio.sleep(max(0.0, began_s + fault.after_s - boot_s()))
            if fault.rest_s:
                await self._until(lambda: not self._under_way)
                await asyncio.sleep(fault.rest_s)
            await self._until(lambda fault=fault: self._may_begin(fault))  # type: ignore[misc]
            began_s = boot_s()
            task = asyncio.create_task(self._inflict(fault, began_s))
            self._under_way[task] = fault
            task.add_done_callback(self._fault_over)
        await self._until(lambda: not self._under_way)

    def _may_begin(self, fault: Fault) -> bool:
        busy = {other.busy for other in self._under_way.values()}
        return len(self._under_way) < AT_ONCE and fault.busy not in busy

    def _fault_over(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for faults to end until the condition holds; one that cannot be taken back ends the run."""
        while not condition():
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
        if self._failures:
            raise self._failures[0]

    async def _inflict(self, fault: Fault, began_s: float) -> None:
        target = target_name(self._world, fault)
        self._note(Inflicted(fault.number, fault.kind, target, began_s, None))
        await inflict(self._world, fault)
        self._note(Inflicted(fault.number, fault.kind, target, began_s, boot_s()))

    def _note(self, inflicted: Inflicted) -> None:
        self._inflicted[inflicted.number] = inflicted
        with (self._folder / "faults.jsonl").open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(inflicted._asdict()) + "\n")

    # ------------------------------------------------------------------ the quiet end

    async def _first_deliveries(self) -> None:
        """Wait until records of every partition flow."""

        def all_flow() -> bool:
            return len({delivery.partition for delivery in self._deliveries()}) == PARTITIONS

        if not await _within(START_S, all_flow):
            raise ServerError(f"not every partition flows {START_S:g} s after the start of the members; see their logs")

    async def _settle(self) -> float:
        """Undo what is left, let everything flow, and wait until all of it is processed; the end of the judged time."""
        world = self._world
        self._now = "recovering"
        await in_thread(world.heal)
        await world.start_the_dead()
        await world.ensemble_serves()
        await world.brokers_serve()
        recovered_s = boot_s()
        for inflicted in [each for each in self._inflicted.values() if each.ended_s is None]:
            self._note(inflicted._replace(ended_s=recovered_s))
        self._now = "waiting for the last records"
        await asyncio.sleep(self._quiet_end_s)
        await in_thread(world.stop_producer)
        await _within(SETTLE_S, self._all_processed)
        return boot_s()

    def _all_processed(self) -> bool:
        self._world.look()
        finished = {delivery.number for delivery in self._deliveries() if delivery.end_s is not None}
        return all(record.number in finished for record in self._world.acknowledged)

    async def _leave(self) -> None:
        """Have every member leave in order: those that do not end well are findings."""
        self._now = "ending"
        await asyncio.gather(*(in_thread(place.leave) for place in self._world.places if place.lives_now))

    def _deliveries(self) -> list[Delivery]:
        return [each for place in self._world.places for life in place.lives for each in life.deliveries.found]

    def _history(self, end_s: float, boot_minus_wall_s: float) -> History:
        world = self._world
        world.look()
        told = group_history(committed(world.transaction_logs), GROUP, TOPIC, boot_minus_wall_s)
        return History(
            partitions=PARTITIONS,
            acknowledged=world.acknowledged,
            deliveries=sorted(self._deliveries(), key=lambda delivery: delivery.start_s),
            ownerships=told.ownerships,
            commits=told.commits,
            deleted_offsets=told.deleted_offsets,
            faults=sorted(self._inflicted.values()),
            processes=[process for place in world.places for process in place.processes()],
            end_s=end_s,
            clock_step_s=abs(boot_s() - time.time() - boot_minus_wall_s),
        )


async def _within(limit_s: float, condition: Callable[[], bool]) -> bool:
    """Look every now and then; whether the condition came to hold in time."""
    deadline_s = boot_s() + limit_s
    while True:
        if condition():
            return True
        if boot_s() > deadline_s:
            return False
        await asyncio.sleep(LOOK_S)
