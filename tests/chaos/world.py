"""
What a run maltreats: an ensemble, brokers, members behind a network of their own, and a producer.

Every member and every broker reaches the servers through proxies that nobody else uses, so that one of them can lose
its network alone. The ensemble's servers talk through proxies, too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from kiel_groups.admin import cluster_admin
from kiel_groups.config import HostPort
from kiel_groups.embedded import FaultProxy, KafkaBroker, KafkaProxy, ZooKeeperEnsemble
from kiel_groups.embedded.processes.child_process import ChildProcess
from kiel_groups.embedded.processes.server_process import Startable, in_thread
from kiel_groups.errors import CoordinationError, ServerError
from tests.chaos.history import Acknowledged, GrowingFile, parse_receipt
from tests.chaos.places import REPOSITORY, TOPIC, Link, Place, RegistryProxy, boot_s, program
from tests.chaos.schedule import REPLICAS, ZOOKEEPERS, Schedule

__all__ = ["PARTITIONS", "World"]

PARTITIONS = 12

#: What brokers are told beside the usual: no leader that lacks acknowledged records, and replicas that are missed soon.
BROKER = {
    "unclean.leader.election.enable": "false",
    "zookeeper.session.timeout.ms": 6_000,
    "replica.lag.time.max.ms": 3_000,
    "replica.socket.timeout.ms": 3_000,
    "controller.socket.timeout.ms": 5_000,
}
#: How long replicas may take to be in sync before the broker that leads them is restarted, in seconds. A leader of 0.8
#: whose view of the partition's state is out of date never adds a replica again (KAFKA-2729).
IN_SYNC_S = 25.0
_RESTARTS = _STARTS = 4
#: How long the producer may take for its last records, in seconds.
PRODUCER_END_S = 35.0


class World(Startable):
    """All of it, for the time of an ``async with`` block; nothing of it outlives the block but files in ``folder``."""

    def __init__(
        self, folder: Path, schedule: Schedule, rate: float, checkouts: Sequence[Path] = (REPOSITORY,)
    ) -> None:
        self.folder = folder
        self._checkouts = checkouts
        self.schedule = schedule
        self.ensemble = ZooKeeperEnsemble(ZOOKEEPERS, "3.9.5", cuttable=True)
        self.brokers: list[KafkaBroker] = []
        #: The way of each broker to ZooKeeper.
        self.registries: list[Link] = []
        self.places: list[Place] = []
        #: Repairs that no fault of the schedule asked for, as sentences.
        self.repairs: list[str] = []
        self._rate = rate
        self._producer: ChildProcess | None = None
        self._receipts = GrowingFile(folder / "producer.receipts")
        self.acknowledged: list[Acknowledged] = []
        self._running = ExitStack()

    @property
    def transaction_logs(self) -> list[Path]:
        return [server.folder / "data" / "version-2" for server in self.ensemble.servers]

    def _start(self) -> None:
        for server in self.ensemble.servers:
            server.keep_in(self.folder / server.name)
        self._running.enter_context(self.ensemble)
        for number in range(self.schedule.brokers):
            link = self._link(FaultProxy(server.address) for server in self.ensemble.servers)
            settings = {**BROKER, "zookeeper.connect": link.addresses}
            broker = KafkaBroker(self.ensemble.hosts, number, overrides=settings)
            broker.keep_in(self.folder / broker.name)
            self._running.callback(_end_broker, broker)
            self.registries.append(link)
            self.brokers.append(broker)
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(KafkaBroker._start, self.brokers))
        cluster_admin.create_topic(self.ensemble.hosts, TOPIC, PARTITIONS, replication=REPLICAS)
        # One more than members: the place of the one that comes and goes.
        for number in range(self.schedule.members + 1):
            self.places.append(self._place(number))
        self._running.callback(self._end_programs)
        for place in self.places[: self.schedule.members]:
            place.start()
        self._start_producer()

    def _place(self, number: int) -> Place:
        addresses: dict[HostPort, HostPort] = {}
        brokers = self._link(KafkaProxy(broker.address, addresses=addresses) for broker in self.brokers)
        ports = {broker.port: proxy.port for broker, proxy in zip(self.brokers, brokers.proxies, strict=True)}
        zookeeper = self._link(RegistryProxy(server.address, ports) for server in self.ensemble.servers)
        return Place(number, self.folder, zookeeper, brokers, self.schedule.session_timeout_s, self._checkouts)

    def _link(self, proxies: Iterable[FaultProxy]) -> Link:
        return Link([self._running.enter_context(proxy) for proxy in proxies])

    def _start_producer(self) -> None:
        options = {
            "--brokers": ",".join(broker.address for broker in self.brokers),
            "--topic": TOPIC,
            "--partitions": str(PARTITIONS),
            "--receipts": str(self.folder / "producer.receipts"),
            "--rate": str(self._rate),
        }
        self._producer = program("tests.chaos.producer", options, self.folder / "producer.log")

    def stop_producer(self) -> None:
        """Have the producer send what it has and end; blocking."""
        if self._producer is not None:
            self._producer.terminate(PRODUCER_END_S)

    def _end_programs(self) -> None:
        if self._producer is not None:
            self._producer.kill()
        for place in self.places:
            for life in place.lives:
                life.process.kill()

    def _close(self) -> None:
        self._running.close()

    def look(self) -> None:
        """Read what all programs have noted since the last look."""
        for place in self.places:
            place.look()
        self.acknowledged += map(parse_receipt, self._receipts.new_lines())

    # ------------------------------------------------------------------ health

    def heal(self) -> None:
        """End whatever a fault that was interrupted has left behind, the dead ones apart; blocking."""
        self.ensemble.heal()
        for link in [*self.registries, *(way for place in self.places for way in (place.zookeeper, place.brokers))]:
            link.heal()
        for server in [*self.ensemble.servers, *self.brokers]:
            if server.is_running:
                server.resume()
        for place in self.places:
            place.resume()

    async def start_the_dead(self) -> None:
        """Start every server and member that does not run; the place of who comes and goes stays as it is."""
        dead = [server for server in [*self.ensemble.servers, *self.brokers] if not server.is_running]
        await asyncio.gather(*(server.start() for server in dead if server not in self.brokers))
        await asyncio.gather(*(self.start_broker(broker) for broker in self.brokers if broker in dead))
        for place in self.places[: self.schedule.members]:
            place.start()

    async def start_broker(self, broker: KafkaBroker) -> None:
        """Start a broker, even while ZooKeeper has a fault of its own; ``brokers_serve`` waits for its registration."""
        for _ in range(_STARTS - 1):
            with suppress(CoordinationError):
                await broker.start()
            if broker.is_running:
                return
            await asyncio.sleep(1)
        await broker.start()

    async def ensemble_serves(self, limit_s: float = 60.0) -> None:
        """Wait until every server of ZooKeeper is in the quorum."""
        deadline_s = boot_s() + limit_s
        while True:
            modes = await asyncio.gather(*(server.mode() for server in self.ensemble.servers))
            if sorted(map(str, modes)) == ["follower", "follower", "leader"]:
                return
            if boot_s() > deadline_s:
                raise ServerError(f"the ensemble did not recover in {limit_s:g} s: {modes}")
            await asyncio.sleep(0.1)

    async def brokers_serve(self) -> None:
        """
        Wait until every broker is registered and every replica in sync; restart a leader that does not get there.

        Raises:
            ServerError: Restarts do not help either.
        """
        for _ in range(_RESTARTS):
            leader = await self._await_in_sync()
            if leader is None:
                return
            broker = self.brokers[leader]
            self.repairs.append(f"{broker.name} was restarted: a replica that it leads did not get in sync")
            await broker.stop()
            await self.start_broker(broker)
        raise ServerError("replicas are not in sync, whatever is restarted; see the brokers' logs")

    async def _await_in_sync(self) -> int | None:
        deadline_s = boot_s() + IN_SYNC_S
        while True:
            leader = await in_thread(self._out_of_sync)
            if leader is None or boot_s() > deadline_s:
                return leader
            await asyncio.sleep(0.25)

    def _out_of_sync(self) -> int | None:
        """A broker that is missing, or leads a partition of which a replica is not in sync; None: all is well."""
        try:
            with cluster_admin.zookeeper(self.ensemble.hosts) as client:
                missing = {broker.broker_id for broker in self.brokers} - set(cluster_admin.broker_ids(client))
                if missing:
                    return min(missing)
                for partition in range(PARTITIONS):
                    state = json.loads(client.get(f"/brokers/topics/{TOPIC}/partitions/{partition}/state")[0])
                    if len(state["isr"]) < 2 or state["leader"] < 0:
                        return max(0, int(state["leader"]))
        except CoordinationError:
            return 0
        return None


def _end_broker(broker: KafkaBroker) -> None:
    broker._kill()
    broker._close()
