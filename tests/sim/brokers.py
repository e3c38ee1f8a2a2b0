"""Simulated brokers that store offsets in ZooKeeper on request, for the store ``broker-v0``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from kiel_groups.model import TopicPartition
from kiel_groups.testing import Host, fake_client

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["Brokers", "Broker"]

#: How often a client asks to store offsets, and how long one broker has for its answer; see ``offset_requests``.
TRIES, ANSWER_S = 6, 1.5
#: How long a request takes to a broker, or its answer back, in seconds: at most.
WAY_S = 0.02
#: How long a broker waits before it repeats a write that its own connection to ZooKeeper lost.
RETRY_S = 0.5

Offsets = Mapping[TopicPartition, int]


class Broker:
    """
    One broker, which writes what it is requested to, one znode after the other, and checks nothing.

    Its session is its own. A write of unknown outcome is repeated, as Kafka's ZooKeeper client does.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._held_until_s = 0.0
        #: How many of its next answers are lost.
        self.loses = 0
        self.host = Host(world.ensemble)
        self._client: KazooClient = fake_client(self.host)
        self._client.start()

    def hold(self, duration_s: float) -> None:
        """Write what arrives within this time at its end."""
        self._held_until_s = max(self._held_until_s, self._world.timeline.now_s + duration_s)

    def heal(self) -> None:
        """Answer requests at once from now on; those that it holds stay late."""
        self._held_until_s, self.loses = 0.0, 0

    def store(self, offsets: Offsets, answer: Callable[[], object]) -> None:
        """Store offsets, as soon as nothing holds it up, then answer."""
        timeline = self._world.timeline
        arrives_s = timeline.now_s + timeline.random.uniform(0.0, WAY_S)
        timeline.at(max(arrives_s, self._held_until_s), self._write, sorted(offsets.items()), answer)

    def _write(self, left: list[tuple[TopicPartition, int]], answer: Callable[[], object]) -> None:
        if not left:
            if self.loses:
                self.loses -= 1
            else:
                answer()
            return
        partition, offset = left[0]
        path, data = self._world.layout.offset(partition), b"%d" % offset

        def written(answered: Any) -> None:
            if answered.successful():
                self._write(left[1:], answer)
            elif isinstance(answered.exception, NoNodeError):
                self._client.create_async(path, data, makepath=True).rawlink(written)
            else:
                pause_s = 0.0 if isinstance(answered.exception, NodeExistsError) else RETRY_S
                self._world.timeline.after(pause_s, self._write, left, answer)

        self._client.set_async(path, data).rawlink(written)


class Brokers:
    """The brokers of a scenario, as its consumers see them."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self.all = [Broker(world) for _ in range(count)]

    def wrote(self, session_id: int) -> bool:
        """Whether a session is a broker's."""
        return any(session_id in broker.host.sessions for broker in self.all)

    def heal(self) -> None:
        for broker in self.all:
            broker.heal()

    async def commit(self, consumer: Consumer, offsets: Offsets) -> None:
        """Request one broker after the other, until one answers or all have been tried."""
        loop, timeline = asyncio.get_running_loop(), self._world.timeline
        first = timeline.random.randrange(len(self.all))
        for attempt in range(TRIES):
            answered: asyncio.Future[None] = loop.create_future()
            way_s = timeline.random.uniform(0.0, WAY_S)

            def answer(answered: asyncio.Future[None] = answered, way_s: float = way_s) -> None:
                timeline.after(way_s, consumer.process.run_on_loop, consumer.process.call, _settle, answered)

            self.all[(first + attempt) % len(self.all)].store(offsets, answer)
            try:
                async with asyncio.timeout(ANSWER_S):
                    await answered
                return
            except TimeoutError:
                continue


def _settle(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)
