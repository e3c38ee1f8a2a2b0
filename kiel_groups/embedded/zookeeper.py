"""
Run ZooKeeper servers, stand-alone or as an ensemble.

Each server of an ensemble has a port for clients, a quorum port (for its followers while it is the leader), and a port
for elections. Every server's configuration has the quorum ports and the election ports of all servers. So the system
chooses these ports before the first start, and the ports are reserved until the ensemble is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from kiel_groups.embedded.java_servers import (
    LOOPBACK,
    Peer,
    Settings,
    as_properties,
    ensemble_settings,
    java_command,
    zookeeper_settings,
)
from kiel_groups.embedded.processes import ReservedPort, Server, Startable, accepts
from kiel_groups.embedded.releases import DEFAULT_ZOOKEEPER, zookeeper_class_path
from kiel_groups.embedded.security import ClusterSecurity
from kiel_groups.errors import ConfigError
from kiel_groups.ops import zookeeper_client

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer(Server):
    """
    Runs a ZooKeeper server on a loopback port, stand-alone or in an ensemble.

    Args:
        version: ``"3.9.5"`` or ``"3.4.6"``.
        tick_time_ms: ZooKeeper's unit of time, in milliseconds. By default, session timeouts are between 2 and 20
            ticks.
        max_session_timeout_ms: The longest session timeout that the server grants, in milliseconds, by default 20
            ticks.
        port: The server's port. 0 lets the system choose a port.
        overrides: Settings that are added to ``zoo.cfg``, or replace settings there.
        number: The server's number in its ensemble, from 1.
        peers: Called with ``number``; returns the addresses of all servers of the ensemble by number. None makes the
            server stand-alone.
    """

    def __init__(
        self,
        version: str = DEFAULT_ZOOKEEPER,
        *,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int | None = None,
        port: int = 0,
        overrides: Mapping[str, object] | None = None,
        number: int = 1,
        peers: Callable[[int], Mapping[int, Peer]] | None = None,
        security: ClusterSecurity | None = None,
    ) -> None:
        name = f"zookeeper-{version}" if peers is None else f"zookeeper-{version}-{number}"
        super().__init__(name, port, further_ports=int(security is not None))
        self.version = version
        self._classes = zookeeper_class_path(version)
        self._tick_time_ms = tick_time_ms
        self._overrides: Settings = overrides or {}
        if max_session_timeout_ms is not None:
            self._overrides = {"maxSessionTimeout": max_session_timeout_ms, **self._overrides}
        self._number = number
        self._peers = peers
        self._security = security

    @property
    def hosts(self) -> str:
        """The server's connection string for clients, as ``127.0.0.1:port``."""
        return self.address

    @property
    def tls_hosts(self) -> str:
        """The connection string of a secured server for clients with TLS."""
        return f"{LOOPBACK}:{self._port_number(1)}"

    def _command(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        settings = zookeeper_settings(data, self.port, tick_time_ms=self._tick_time_ms)
        if self._peers is not None:
            (data / "myid").write_text(f"{self._number}\n", encoding="utf-8")
            settings |= ensemble_settings(self._peers(self._number))
        if self._security is not None:
            settings |= self._security.zookeeper_settings(self._port_number(1))
        configuration = self.folder / "zoo.cfg"
        configuration.write_text(as_properties({**settings, **self._overrides}), encoding="utf-8")
        properties = self._security.zookeeper_properties if self._security is not None else None
        return java_command(self._classes, self.folder, _MAIN, configuration, heap_mb=128, properties=properties)

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        # Short attempts: 3.9.5 neither answers nor closes a connection that arrives right after its start, because its
        # connection handler fails while the database is not loaded.
        yield lambda: accepts(self.port) and zookeeper_client.answers(self.hosts, timeout_s=0.5)


class ZooKeeperEnsemble(Startable):
    """
    Runs an ensemble of ZooKeeper servers during a ``with`` or ``async with`` block.

    The block starts when every server accepts sessions. Each of ``servers`` can be stopped, killed, paused, resumed and
    started again on its data. The start of a server returns when the server is part of a quorum. So, if too few servers
    run for a quorum, the missing servers have to be started concurrently (``asyncio.gather``). The other servers detect
    at once that a server was killed, and after 4 ticks (2 s by default) that a server hangs.

    Args:
        servers: The number of servers: 1 (stand-alone), 3, 5, …
        version: ``"3.9.5"`` or ``"3.4.6"``.
        tick_time_ms: ZooKeeper's unit of time, in milliseconds. By default, session timeouts are between 2 and 20
            ticks.
        max_session_timeout_ms: The longest session timeout that the servers grant, in milliseconds, by default 20
            ticks.
        port: The client port of the first server. All other servers get the next ports. 0 lets the system choose.
        overrides: Settings that are added to every ``zoo.cfg``, or replace settings there.
        security: The certificates and the users of a secured cluster, or None. A secured server also offers SASL, and
            TLS with client certificates at a port that the system chooses.

    Raises:
        ConfigError: The number of servers is even or below 1, or the version is not in the table.
    """

    def __init__(
        self,
        servers: int = 3,
        version: str = DEFAULT_ZOOKEEPER,
        *,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int | None = None,
        port: int = 0,
        overrides: Mapping[str, object] | None = None,
        security: ClusterSecurity | None = None,
    ) -> None:
        if servers < 1 or servers % 2 == 0:
            raise ConfigError(f"servers: {servers} given; expected an odd number: 1, 3, 5, …")
        self.version = version
        #: The ports of each server for its followers and for elections, by its number.
        self._ports: dict[int, tuple[ReservedPort, ReservedPort]] = {}
        self.servers = [
            ZooKeeperServer(
                version,
                tick_time_ms=tick_time_ms,
                max_session_timeout_ms=max_session_timeout_ms,
                port=port and port + index,
                overrides=overrides,
                number=index + 1,
                peers=self._peers_of if servers > 1 else None,
                security=security,
            )
            for index in range(servers)
        ]
        """The servers. The numbers in their configuration begin with 1."""

    @property
    def hosts(self) -> str:
        """The ensemble's connection string for clients, as ``127.0.0.1:port,127.0.0.1:port,…``."""
        return ",".join(server.hosts for server in self.servers)

    @property
    def tls_hosts(self) -> str:
        """The connection string of a secured ensemble for clients with TLS."""
        return ",".join(server.tls_hosts for server in self.servers)

    def _peers_of(self, number: int) -> Mapping[int, Peer]:
        """Return the addresses of all servers by number, for the configuration of server ``number``."""
        return {each: Peer(LOOPBACK, one.number, other.number) for each, (one, other) in self._ports.items()}

    def _reserve_ports(self) -> None:
        self._ports = {number: (ReservedPort(), ReservedPort()) for number in range(1, len(self.servers) + 1)}

    def _start(self) -> None:
        self._reserve_ports()
        # Start all servers concurrently: no server is ready before a quorum of servers runs.
        with ThreadPoolExecutor(max_workers=len(self.servers)) as pool:
            list(pool.map(ZooKeeperServer._start, self.servers))

    def _kill(self) -> None:
        for server in self.servers:
            server._kill()

    def _close(self) -> None:
        self._kill()
        for server in self.servers:
            server._close()
        for ports in self._ports.values():
            for port in ports:
                port.release()
        self._ports.clear()
