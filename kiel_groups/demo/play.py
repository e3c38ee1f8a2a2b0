"""
The demo's plot: a group comes together, grows, loses its leader to kill −9, lets a member go, and drains its topic.

Each act waits for what it can see in ZooKeeper and in the consumers' own files, never for a length of time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kiel_groups.clients.produce.partitioners import hash_partitioner
from kiel_groups.clients.producer import Producer
from kiel_groups.demo.fleet import DemoError, Fleet, Worker
from kiel_groups.demo.input_records import Input
from kiel_groups.demo.receipts import Proof, foreign_lines, prove
from kiel_groups.demo.show import Scene, Show
from kiel_groups.embedded.clusters.embedded_cluster import Cluster
from kiel_groups.embedded.processes.server_process import in_thread
from kiel_groups.group.znodes.snapshot import Snapshot
from kiel_groups.model import TopicPartition
from kiel_groups.ops.group_view import GroupView, view_group
from kiel_groups.ops.tables import status_line

__all__ = ["GROUP", "PARTITIONS", "TOPIC", "Play", "Sent", "send_records"]

GROUP = "demo"
TOPIC = "page-views"
PARTITIONS = 32

#: Shares of all records after which the next act begins.
_ADD_AT, _KILL_AT, _STOP_AT = 0.20, 0.40, 0.65
_LOOK_S = 0.2
_WATCH_S = 0.5
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """Record number → partition and offset, as the brokers acknowledged it."""

    places: Mapping[int, tuple[int, int]]

    def log_ends(self) -> dict[TopicPartition, int]:
        ends = {TopicPartition(TOPIC, partition): 0 for partition in range(PARTITIONS)}
        for partition, offset in self.places.values():
            ends[TopicPartition(TOPIC, partition)] = max(ends[TopicPartition(TOPIC, partition)], offset + 1)
        return ends


async def send_records(cluster: Cluster, records: Input) -> Sent:
    """Produce all records; returns when the broker has them."""
    async with Producer(cluster.brokers, partitioner=hash_partitioner, batch_size=1_000, linger_ms=5) as producer:
        stored = await asyncio.gather(
            *(producer.produce(TOPIC, value, key=key) for value, key in zip(records.values, records.keys, strict=True))
        )
    return Sent({number: (place.partition, place.offset) for number, place in enumerate(stored)})


class Play:
    """One performance, on a cluster that has the records; ``read`` reads the znodes of the group."""

    def __init__(self, fleet: Fleet, show: Show, sent: Sent, read: Callable[[], Snapshot]) -> None:
        self._fleet = fleet
        self._show = show
        self._sent = sent
        self._read = read
        self._log_ends = sent.log_ends()

    async def perform(self) -> Proof:
        """
        All acts, then the proof from what the consumers wrote.

        Raises:
            DemoError: A consumer ended by itself, or something did not come about in a minute.
        """
        await self.gather(3)
        await self._until_received(_ADD_AT)
        await self._join()
        await self._until_received(_KILL_AT)
        await self._kill_leader()
        await self._until_received(_STOP_AT)
        await self._stop_one()
        await self._until(lambda scene: scene.view.lag == 0, "the group has no lag")
        self._show.event("everything is consumed and committed; the others leave, too")
        for worker in self._fleet.live:
            await self._fleet.stop(worker)
        view = await self._view()
        committed = {partition.topic_partition.partition: partition.committed for partition in view.partitions}
        return prove(self._sent.places, self._fleet.receipts(), committed)

    async def gather(self, members: int) -> None:
        """Start consumers and wait until they share all partitions."""
        self._show.event(f"start {members} consumer processes")
        for _ in range(members):
            self._fleet.start()
        took_s = await self._until_settled(members)
        self._show.event(f"{members} members share {PARTITIONS} partitions, {took_s:.1f} s after their processes began")

    async def view(self) -> GroupView:
        """The group as ZooKeeper has it now."""
        return await self._view()

    async def watch(self, enough: asyncio.Event) -> None:
        """Until ``enough`` is set, show consumers that end and records that somebody else has sent."""
        for worker in self._fleet.workers:
            worker.foreign()
        while not enough.is_set():
            for worker in (worker for worker in self._fleet.workers if not worker.leaving):
                try:
                    await in_thread(worker.look)
                except DemoError as error:
                    worker.leaving = "ended"
                    self._show.event(str(error))
                for line in foreign_lines(worker.foreign()):
                    self._show.event(f"{worker.name} received {line}")
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await enough.wait()

    async def _join(self) -> None:
        worker = self._fleet.start()
        self._show.event(f"start {worker.name}, a fourth member")
        took_s = await self._until_settled(4)
        self._show.event(f"{worker.name} has its share, {took_s:.1f} s after its process began")

    async def _kill_leader(self) -> None:
        leader = await self._leader()
        await self._fleet.kill(leader)
        self._show.event(f"kill -9 {leader.name}, the leader; ZooKeeper keeps its session until it times out")
        took_s = await self._until_settled(3)
        self._show.event(f"a new leader has shared out its partitions, {took_s:.1f} s after the kill")

    async def _stop_one(self) -> None:
        worker = self._fleet.live[-1]
        self._show.event(f"stop {worker.name} in order")
        began_s = time.monotonic()
        await self._fleet.stop(worker)
        await self._until_settled(2)
        self._show.event(f"two members have taken over, {time.monotonic() - began_s:.1f} s after the request")

    async def _leader(self) -> Worker:
        view = await self._view()
        for member in view.members:
            worker = self._fleet.by_pid(member.info.pid)
            if member.leads and worker is not None:
                return worker
        raise DemoError("the group has no leader; that is a bug, please report it with the line above")

    async def _until_received(self, share: float) -> None:
        wanted = int(share * len(self._sent.places))
        await self._until(lambda scene: scene.received >= wanted, f"{wanted:,} records are received")

    async def _until_settled(self, members: int) -> float:
        """Wait until so many members own exactly their share of all partitions; how long that took, in seconds."""
        began_s = time.monotonic()
        await self._until(lambda scene: _settled(scene.view, members), f"{members} members share all partitions")
        return time.monotonic() - began_s

    async def _until(self, holds: Callable[[Scene], bool], what: str) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not holds(scene := await self._look()):
            if time.monotonic() > deadline_s:
                seen = status_line(scene.view, scene.names, scene.rates)
                raise DemoError(f"after {_PATIENCE_S:g} s it was still not so that {what}; last seen: {seen}")
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> Scene:
        received = await in_thread(self._fleet.look)
        view = await self._view()
        names, rates = {}, {}
        for member in view.members:
            if (worker := self._fleet.by_pid(member.info.pid)) is not None:
                names[member.info.member_id] = f"{worker.name} ({worker.leaving})" if worker.leaving else worker.name
                rates[member.info.member_id] = worker.rate()
        scene = Scene(view, names, rates, received, len(self._sent.places))
        self._show.update(scene)
        return scene

    async def _view(self) -> GroupView:
        return view_group(GROUP, await in_thread(self._read), self._log_ends)


def _settled(view: GroupView, members: int) -> bool:
    return (
        len(view.members) == members
        and view.owned == len(view.partitions)
        and all({partition.topic_partition for partition in member.owned} == member.target for member in view.members)
        and sum(len(member.target) for member in view.members) == len(view.partitions)
    )
