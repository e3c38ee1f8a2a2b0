"""
The system under test: a ZooKeeper ensemble, brokers, hosts of members, and a producer.

Every member host and every broker has a network of its own, so that a fault can affect a single network. The servers of
the ensemble are connected through proxies, too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from kiel_groups.config import HostPort
from kiel_groups.embedded import KafkaBroker
from kiel_groups.embedded.processes import ChildProcess, Startable, in_thread
from kiel_groups.errors import CoordinationError, ServerError
from kiel_groups.ops import zookeeper_client
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from tests.chaos.history import Acknowledged, GrowingFile, parse_receipt
from tests.chaos.member_hosts import REPOSITORY, TOPIC, MemberHost, start_program
from tests.chaos.network import Network, RegistryProxy
from tests.chaos.schedule import REPLICAS, ZOOKEEPERS, Schedule
from tests.helpers.waiting import within
from tests.helpers.zookeeper_roles import modes_of
from tests.proxies import FaultProxy, KafkaProxy
from tests.proxies.cuttable_servers import CuttableEnsemble

__all__ = ["PARTITIONS", "SystemUnderTest"]

PARTITIONS = 12

#: Settings of the brokers: no leader that lacks acknowledged records, and early removal of lagging replicas.
BROKER = {
    "unclean.leader.election.enable": "false",
    "zookeeper.session.timeout.ms": 6_000,
    "replica.lag.time.max.ms": 3_000,
    "replica.socket.timeout.ms": 3_000,
    "controller.socket.timeout.ms": 5_000,
}
#: How long replicas may take to be in sync before the broker that leads them is restarted, in seconds. A leader of 0.8
#: with an outdated version of the partition's state never adds a replica again (KAFKA-2729).
IN_SYNC_S = 25.0
#: Attempts to get replicas in sync by restarts, and to start a broker.
_RESTARTS = _STARTS = 4
#: The interval at which servers are asked for their state, in seconds: each question takes a new connection.
_CHECK_INTERVAL_S = 0.25
#: How long the producer may take for its last records, in seconds.
PRODUCER_END_S = 35.0


class SystemUnderTest(Startable):
    """
    All servers and programs of a run, during an ``async with`` block. Only files in ``folder`` remain after the block.
    """

    def __init__(
        self, folder: Path, schedule: Schedule, rate: float, checkouts: Sequence[Path] = (REPOSITORY,)
    ) -> None:
        self.folder = folder
        self._checkouts = checkouts
        self.schedule = schedule
        self.ensemble = CuttableEnsemble(ZOOKEEPERS, "3.9.5")
        self.brokers: list[KafkaBroker] = []
        #: The network of each broker to ZooKeeper.
        self.broker_networks: list[Network] = []
        self.hosts: list[MemberHost] = []
        #: Restarts that are not part of the schedule, as sentences.
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
            network = self._network(FaultProxy(server.address) for server in self.ensemble.servers)
            settings = {**BROKER, "zookeeper.connect": network.addresses}
            broker = KafkaBroker(self.ensemble.hosts, number, overrides=settings)
            broker.keep_in(self.folder / broker.name)
            self._running.callback(_end_broker, broker)
            self.broker_networks.append(network)
            self.brokers.append(broker)
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(KafkaBroker._start, self.brokers))
        ZooKeeperTopics(self.ensemble.hosts).create(TOPIC, PARTITIONS, replication=REPLICAS)
        # The additional host is for the member that joins and leaves.
        for number in range(self.schedule.members + 1):
            self.hosts.append(self._member_host(number))
        self._running.callback(self._end_programs)
        for host in self.hosts[: self.schedule.members]:
            host.start()
        self._start_producer()

    def _member_host(self, number: int) -> MemberHost:
        addresses: dict[HostPort, HostPort] = {}
        brokers = self._network(KafkaProxy(broker.address, addresses=addresses) for broker in self.brokers)
        ports = {broker.port: proxy.port for broker, proxy in zip(self.brokers, brokers.proxies, strict=True)}
        zookeeper = self._network(RegistryProxy(server.address, ports) for server in self.ensemble.servers)
        return MemberHost(number, self.folder, zookeeper, brokers, self.schedule.session_timeout_s, self._checkouts)

    def _network(self, proxies: Iterable[FaultProxy]) -> Network:
        return Network([self._running.enter_context(proxy) for proxy in proxies])

    def _start_producer(self) -> None:
        options = {
            "--brokers": ",".join(broker.address for broker in self.brokers),
            "--topic": TOPIC,
            "--partitions": str(PARTITIONS),
            "--receipts": str(self.folder / "producer.receipts"),
            "--rate": str(self._rate),
        }
        self._producer = start_program("tests.chaos.producer", options, self.folder / "producer.log")

    def stop_producer(self) -> None:
        """Make the producer send its last records and end. Blocks the thread."""
        if self._producer is not None:
            self._producer.terminate(PRODUCER_END_S)

    def _end_programs(self) -> None:
        if self._producer is not None:
            self._producer.kill()
        for host in self.hosts:
            host.kill_all()

    def _close(self) -> None:
        self._running.close()

    def read_new_lines(self) -> None:
        """Read what all programs have written since the last call."""
        for host in self.hosts:
            host.read_new_lines()
        self.acknowledged += map(parse_receipt, self._receipts.new_lines())

    # ------------------------------------------------------------------ health

    def heal(self) -> None:
        """
        Undo what interrupted faults have left, but do not start servers or members that are down. Blocks the thread.
        """
        self.ensemble.heal()
        member_networks = [network for host in self.hosts for network in (host.zookeeper, host.brokers)]
        for network in [*self.broker_networks, *member_networks]:
            network.heal()
        for server in [*self.ensemble.servers, *self.brokers]:
            if server.is_running:
                server.resume()
        for host in self.hosts:
            host.resume()

    async def start_missing(self) -> None:
        """Start every server and member that is down, except for the member that joins and leaves."""
        missing = [server for server in [*self.ensemble.servers, *self.brokers] if not server.is_running]
        await asyncio.gather(*(server.start() for server in missing if server not in self.brokers))
        await asyncio.gather(*(self.start_broker(broker) for broker in self.brokers if broker in missing))
        for host in self.hosts[: self.schedule.members]:
            host.start()

    async def start_broker(self, broker: KafkaBroker) -> None:
        """
        Start a broker. Retry a failed start, because ZooKeeper may have a fault. Do not wait for the registration (see
        ``wait_for_brokers``).
        """
        for _ in range(_STARTS - 1):
            with suppress(CoordinationError):
                await broker.start()
            if broker.is_running:
                return
            await asyncio.sleep(1)
        await broker.start()

    async def wait_for_ensemble(self, limit_s: float = 60.0) -> None:
        """Wait until every server of ZooKeeper is in the quorum."""

        async def modes() -> list[str]:
            return sorted(map(str, await modes_of(self.ensemble)))

        async def has_recovered() -> bool:
            return await modes() == ["follower", "follower", "leader"]

        if not await within(has_recovered, limit_s, _CHECK_INTERVAL_S):
            raise ServerError(f"the ensemble did not recover in {limit_s:g} s: {await modes()}")

    async def wait_for_brokers(self) -> None:
        """
        Wait until every broker is registered and every replica is in sync.

        If this takes longer than ``IN_SYNC_S``, restart a broker that prevents it, and wait again.

        Raises:
            ServerError: Brokers had to be restarted ``_RESTARTS`` times.
        """
        for _ in range(_RESTARTS):
            await within(self._is_in_sync, IN_SYNC_S, _CHECK_INTERVAL_S)
            leader = await in_thread(self._out_of_sync)
            if leader is None:
                return
            broker = self.brokers[leader]
            self.repairs.append(f"{broker.name} was restarted: a replica that it leads did not get in sync")
            await broker.stop()
            await self.start_broker(broker)
        raise ServerError("replicas are not in sync, whatever is restarted; see the brokers' logs")

    async def _is_in_sync(self) -> bool:
        return await in_thread(self._out_of_sync) is None

    def _out_of_sync(self) -> int | None:
        """
        Return a broker that is not registered, or that leads a partition with a replica out of sync, or None if all is
        well.

        Return broker 0 if ZooKeeper cannot be read, or if a partition has no leader.
        """
        try:
            with zookeeper_client.zookeeper(self.ensemble.hosts) as client:
                missing = {broker.broker_id for broker in self.brokers} - set(zookeeper_client.broker_ids(client))
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
