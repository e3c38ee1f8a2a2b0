"""Simulated brokers that store offsets in ZooKeeper on request, for the store ``broker-v0``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from kiel_groups.model import TopicPartition
from tests.fakes import Host, fake_client

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["Brokers", "Broker"]

#: The number of requests by which a client tries to store offsets, and the time limit of each; see ``offset_requests``.
TRIES, ANSWER_S = 6, 1.5
#: The longest time, in seconds, for which a request or its answer is in flight.
WAY_S = 0.02
#: The pause, in seconds, before a broker repeats a write that its own connection to ZooKeeper lost.
REWRITE_PAUSE_S = 0.5

Offsets = Mapping[TopicPartition, int]


class Broker:
    """
    A broker: it writes the requested offsets to ZooKeeper, one znode after the other, and checks nothing.

    The broker has a session of its own. Like Kafka's ZooKeeper client, it repeats a write of unknown outcome.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._held_until_s = 0.0
        #: How many of the broker's next answers are lost.
        self.loses = 0
        self.host = Host(world.ensemble)
        self._client: KazooClient = fake_client(self.host)
        self._client.start()

    def hold(self, duration_s: float) -> None:
        """Delay the writes of all requests that are sent within ``duration_s`` seconds until this time has passed."""
        self._held_until_s = max(self._held_until_s, self._world.timeline.now_s + duration_s)

    def heal(self) -> None:
        """Handle new requests at once, and lose no more answers. Requests that are already delayed stay delayed."""
        self._held_until_s, self.loses = 0.0, 0

    def store(self, offsets: Offsets, answer: Callable[[], object]) -> None:
        """
        Store offsets when the request has arrived and ``hold`` no longer delays it. Then call ``answer`` unless the
        answer is lost.
        """
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
                pause_s = 0.0 if isinstance(answered.exception, NodeExistsError) else REWRITE_PAUSE_S
                self._world.timeline.after(pause_s, self._write, left, answer)

        self._client.set_async(path, data).rawlink(written)


class Brokers:
    """The brokers of a scenario, to which consumers send commit requests."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self.all = [Broker(world) for _ in range(count)]

    def wrote(self, session_id: int) -> bool:
        """Return whether the session with this id belongs to a broker."""
        return any(session_id in broker.host.sessions for broker in self.all)

    def heal(self) -> None:
        for broker in self.all:
            broker.heal()

    async def commit(self, consumer: Consumer, offsets: Offsets) -> None:
        """Ask brokers in turn to store offsets, until one answers or all ``TRIES`` requests have timed out."""
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
