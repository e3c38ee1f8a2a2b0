"""
The steps of the demo: a group forms, grows, loses its leader to kill -9, loses a member that leaves, and has no lag.

Each step waits for a state of the group in ZooKeeper or for the consumers' receipts, never for a fixed time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kiel_groups.clients.produce.partitioners import hash_partitioner
from kiel_groups.clients.producer import Producer
from kiel_groups.demo.display import Display, GroupProgress
from kiel_groups.demo.fleet import DemoError, Fleet, Worker
from kiel_groups.demo.input_records import Input
from kiel_groups.demo.receipts import Proof, foreign_lines, prove
from kiel_groups.embedded.clusters.embedded_cluster import Cluster
from kiel_groups.embedded.processes.server_process import in_thread
from kiel_groups.group.znodes.snapshot import Snapshot
from kiel_groups.model import TopicPartition
from kiel_groups.ops.group_view import GroupView, view_group
from kiel_groups.ops.tables import status_line

__all__ = ["GROUP", "PARTITIONS", "TOPIC", "Sent", "Walkthrough", "send_records"]

GROUP = "demo"
TOPIC = "page-views"
PARTITIONS = 32

#: A step starts when this share of all records has been received.
_ADD_AT, _KILL_AT, _STOP_AT = 0.20, 0.40, 0.65
_POLL_INTERVAL_S = 0.2
_WATCH_INTERVAL_S = 0.5
_STEP_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """The sent records: ``places`` maps a record's number to the partition and offset that the broker acknowledged."""

    places: Mapping[int, tuple[int, int]]

    def log_ends(self) -> dict[TopicPartition, int]:
        ends = {TopicPartition(TOPIC, partition): 0 for partition in range(PARTITIONS)}
        for partition, offset in self.places.values():
            ends[TopicPartition(TOPIC, partition)] = max(ends[TopicPartition(TOPIC, partition)], offset + 1)
        return ends


async def send_records(cluster: Cluster, records: Input) -> Sent:
    """Produce all records, and wait until the broker has acknowledged them."""
    async with Producer(cluster.brokers, partitioner=hash_partitioner, batch_size=1_000, linger_ms=5) as producer:
        stored = await asyncio.gather(
            *(producer.produce(TOPIC, value, key=key) for value, key in zip(records.values, records.keys, strict=True))
        )
    return Sent({number: (place.partition, place.offset) for number, place in enumerate(stored)})


class Walkthrough:
    """Runs the steps on a cluster that has the records; ``read`` reads the znodes of the group."""

    def __init__(self, fleet: Fleet, display: Display, sent: Sent, read: Callable[[], Snapshot]) -> None:
        self._fleet = fleet
        self._display = display
        self._sent = sent
        self._read = read
        self._log_ends = sent.log_ends()

    async def run(self) -> Proof:
        """
        Run all steps. Return the proof made from the consumers' receipts.

        Raises:
            DemoError: A consumer ended unexpectedly, or the group did not reach the expected state within a minute.
        """
        await self.start_consumers(3)
        await self._until_received(_ADD_AT)
        await self._join()
        await self._until_received(_KILL_AT)
        await self._kill_leader()
        await self._until_received(_STOP_AT)
        await self._stop_one()
        await self._until(lambda progress: progress.view.lag == 0, "the group has no lag")
        self._display.event("all records are consumed and committed; stopping the other two")
        for worker in self._fleet.live:
            await self._fleet.stop(worker)
        view = await self.view()
        committed = {partition.topic_partition.partition: partition.committed for partition in view.partitions}
        return prove(self._sent.places, self._fleet.receipts(), committed)

    async def start_consumers(self, members: int) -> None:
        """Start consumers and wait until they share all partitions."""
        self._display.event(f"starting {members} consumer processes")
        for _ in range(members):
            self._fleet.start()
        took_s = await self._until_balanced(members)
        self._display.event(f"{members} members share {PARTITIONS} partitions, {took_s:.1f} s after they were started")

    async def watch(self, stopped: asyncio.Event) -> None:
        """Until ``stopped`` is set, show each consumer that ends, and each record that the demo did not send."""
        for worker in self._fleet.workers:
            worker.new_foreign_receipts()
        while not stopped.is_set():
            for worker in (worker for worker in self._fleet.workers if not worker.leaving):
                try:
                    await in_thread(worker.read_receipts)
                except DemoError as error:
                    worker.leaving = "ended"
                    self._display.event(str(error))
                for line in foreign_lines(worker.new_foreign_receipts()):
                    self._display.event(f"{worker.name} received {line}")
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_INTERVAL_S):
                    await stopped.wait()

    async def _join(self) -> None:
        worker = self._fleet.start()
        self._display.event(f"starting {worker.name}, a fourth member")
        took_s = await self._until_balanced(4)
        self._display.event(f"{worker.name} owns its share of partitions, {took_s:.1f} s after it was started")

    async def _kill_leader(self) -> None:
        leader = await self._leader()
        await self._fleet.kill(leader)
        self._display.event(f"kill -9 {leader.name}, the leader; its session lasts until it times out")
        took_s = await self._until_balanced(3)
        self._display.event(f"a new leader has reassigned its partitions, {took_s:.1f} s after the kill")

    async def _stop_one(self) -> None:
        worker = self._fleet.live[-1]
        self._display.event(f"stopping {worker.name} with SIGTERM; it leaves the group cleanly")
        began_s = time.monotonic()
        await self._fleet.stop(worker)
        await self._until_balanced(2)
        self._display.event(f"the other two members own its partitions, {time.monotonic() - began_s:.1f} s later")

    async def _leader(self) -> Worker:
        view = await self.view()
        for member in view.members:
            worker = self._fleet.by_pid(member.info.pid)
            if member.leads and worker is not None:
                return worker
        raise DemoError("the group has no leader; that is a bug, please report it with the line above")

    async def _until_received(self, share: float) -> None:
        wanted = int(share * len(self._sent.places))
        await self._until(lambda progress: progress.received >= wanted, f"{wanted:,} records are received")

    async def _until_balanced(self, members: int) -> float:
        """Wait until the members own exactly what the plan assigns to them. Return the time this took, in seconds."""
        began_s = time.monotonic()
        await self._until(lambda progress: _balanced(progress.view, members), f"{members} members share all partitions")
        return time.monotonic() - began_s

    async def _until(self, reached: Callable[[GroupProgress], bool], state: str) -> None:
        deadline_s = time.monotonic() + _STEP_LIMIT_S
        while not reached(progress := await self._update_display()):
            if time.monotonic() > deadline_s:
                last = status_line(progress.view, progress.names, progress.rates)
                raise DemoError(f"gave up after {_STEP_LIMIT_S:g} s, waiting until {state}; last state: {last}")
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _update_display(self) -> GroupProgress:
        received = await in_thread(self._fleet.read_receipts)
        view = await self.view()
        names, rates = {}, {}
        for member in view.members:
            if (worker := self._fleet.by_pid(member.info.pid)) is not None:
                names[member.info.member_id] = f"{worker.name} ({worker.leaving})" if worker.leaving else worker.name
                rates[member.info.member_id] = worker.rate()
        progress = GroupProgress(view, names, rates, received, len(self._sent.places))
        self._display.update(progress)
        return progress

    async def view(self) -> GroupView:
        """Read the group from ZooKeeper."""
        return view_group(GROUP, await in_thread(self._read), self._log_ends)


def _balanced(view: GroupView, members: int) -> bool:
    return (
        len(view.members) == members
        and view.owned == len(view.partitions)
        and all({partition.topic_partition for partition in member.owned} == member.target for member in view.members)
        and sum(len(member.target) for member in view.members) == len(view.partitions)
    )
