"""
What a run maltreats: an ensemble, brokers, members behind a network of their own, and a producer.

Every member and every broker reaches the servers through proxies that nobody else uses, so that one of them can lose
its network alone. The ensemble's servers talk through proxies, too.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kiel_groups.config import HostPort
from kiel_groups.coordination import admin
from kiel_groups.embedded import FaultProxy, KafkaBroker, KafkaProxy, ZooKeeperEnsemble
from kiel_groups.embedded.process import ChildProcess
from kiel_groups.embedded.proxy import Direction
from kiel_groups.embedded.server import in_thread
from kiel_groups.errors import CoordinationError, ServerError
from tests.chaos.history import Acknowledged, Deliveries, GrowingFile, Process, parse_receipt
from tests.chaos.schedule import Schedule

__all__ = ["Link", "Place", "World", "boot_s"]

GROUP, TOPIC = "chaos", "chaos"
PARTITIONS = 12
REPOSITORY = Path(__file__).parents[2]

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
#: How long a member or the producer may take to leave in order, in seconds.
LEAVE_S = 30.0


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
    """

    def __init__(self, number: int, folder: Path, zookeeper: Link, brokers: Link, session_timeout_s: float) -> None:
        self.number = number
        self.zookeeper = zookeeper
        self.brokers = brokers
        self.lives: list[_Life] = []
        self._folder = folder
        self._session_timeout_s = session_timeout_s

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
        process = _program("tests.chaos.member", options, self._folder / f"{name}.log")
        self.lives.append(_Life(process, boot_s(), GrowingFile(history), Deliveries(process.pid)))

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


class World:
    """All of it, for the time of an ``async with`` block; nothing of it outlives the block but files in ``folder``."""

    def __init__(self, folder: Path, schedule: Schedule, rate: float) -> None:
        self.folder = folder
        self.schedule = schedule
        self.ensemble = ZooKeeperEnsemble(3, "3.9.5", cuttable=True)
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

    async def __aenter__(self) -> World:
        try:
            await in_thread(self._start)
        except BaseException:
            await in_thread(self._close)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await in_thread(self._close)

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
        admin.create_topic(self.ensemble.hosts, TOPIC, PARTITIONS, replication=2)
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
        return Place(number, self.folder, zookeeper, brokers, self.schedule.session_timeout_s)

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
        self._producer = _program("tests.chaos.producer", options, self.folder / "producer.log")

    def stop_producer(self) -> None:
        """Have the producer send what it has and end; blocking."""
        if self._producer is not None:
            self._producer.terminate(LEAVE_S + 5)

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
            with admin.zookeeper(self.ensemble.hosts) as client:
                missing = {broker.broker_id for broker in self.brokers} - set(admin.broker_ids(client))
                if missing:
                    return min(missing)
                for partition in range(PARTITIONS):
                    state = json.loads(client.get(f"/brokers/topics/{TOPIC}/partitions/{partition}/state")[0])
                    if len(state["isr"]) < 2 or state["leader"] < 0:
                        return max(0, int(state["leader"]))
        except CoordinationError:
            return 0
        return None


def _program(module: str, options: dict[str, str], log: Path) -> ChildProcess:
    command = [sys.executable, "-m", module, *(word for option in options.items() for word in option)]
    return ChildProcess(command, log=log, folder=REPOSITORY)


def _end_broker(broker: KafkaBroker) -> None:
    broker._kill()
    broker._close()
