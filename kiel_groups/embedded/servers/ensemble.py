"""
ZooKeeper servers that form one ensemble.

All ports are chosen by the system: each server has one for clients, one for the followers that it would lead, and one
for elections. The latter two stand in every server's configuration, so they are reserved before the first start and
stay for as long as the ensemble does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypedDict, Unpack

from kiel_groups.embedded.processes.ports import ReservedPort
from kiel_groups.embedded.processes.server_process import Startable
from kiel_groups.embedded.servers.peer_links import PeerLinks
from kiel_groups.embedded.servers.server_files import LOOPBACK, Peer, Settings, ensemble_settings
from kiel_groups.embedded.servers.zookeeper_server import ZooKeeperServer
from kiel_groups.errors import ConfigError, ServerError

__all__ = ["ZooKeeperEnsemble"]

#: A server by itself leads itself.
_LEADING = ("leader", "standalone")
_LEADER_LIMIT_S = 30.0
_POLL_S = 0.05


class _PeerPorts(NamedTuple):
    """Where the other servers reach one of them; the same for as long as the ensemble lives."""

    quorum: ReservedPort
    election: ReservedPort


class _Settings(TypedDict):
    tick_time_ms: int
    max_session_timeout_ms: int | None
    overrides: Mapping[str, object] | None


class _Member(ZooKeeperServer):
    """One server of several; ``peers`` says where it finds all of them, itself included, when it starts."""

    def __init__(
        self,
        number: int,
        peers: Callable[[int], Mapping[int, Peer]],
        version: str,
        *,
        port: int,
        **settings: Unpack[_Settings],
    ) -> None:
        super().__init__(version, port=port, **settings)
        self.name = f"zookeeper-{version}-{number}"
        self._number = number
        self._peers = peers

    def _command(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{self._number}\n", encoding="utf-8")
        return super()._command()

    def _quorum(self) -> Settings:
        return ensemble_settings(self._peers(self._number))


class ZooKeeperEnsemble(Startable):
    """
    Some servers and one truth, for the time of a ``with`` or an ``async with`` block.

    It has started when every server gives a session, hence has a quorum. Each of ``servers`` can be stopped, killed,
    paused, resumed and started again on its data by itself; its start returns when it is part of a quorum again, so
    servers that only form one together are started together (``asyncio.gather``). A server that hangs is given up by
    the others after 4 ticks (2 s unless told otherwise), one that dies at once.

    Args:
        servers: How many: 1 (a stand-alone server), 3, 5, …
        version: ``"3.9.5"`` or ``"3.4.6"``.
        tick_time_ms: ZooKeeper's unit of time; sessions last between 2 and 20 of them.
        max_session_timeout_ms: The longest session granted; 20 ticks unless given.
        port: The first server's port for clients, the others follow it; 0 has the system choose.
        overrides: Further lines of every ``zoo.cfg``.
        cuttable: Have the servers talk through proxies, for ``cut`` and ``delay``.

    Raises:
        ConfigError: An even number of servers, or one below 1, or a version that is not in the table.
    """

    def __init__(
        self,
        servers: int = 3,
        version: str = "3.9.5",
        *,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int | None = None,
        port: int = 0,
        overrides: Mapping[str, object] | None = None,
        cuttable: bool = False,
    ) -> None:
        if servers < 1 or servers % 2 == 0:
            raise ConfigError(f"servers: {servers} given; expected an odd number: 1, 3, 5, …")
        self.version = version
        self._ports: dict[int, _PeerPorts] = {}
        self._cuttable = cuttable
        self._links: PeerLinks | None = None
        settings: _Settings = {
            "tick_time_ms": tick_time_ms,
            "max_session_timeout_ms": max_session_timeout_ms,
            "overrides": overrides,
        }
        self.servers: list[ZooKeeperServer] = (
            [ZooKeeperServer(version, port=port, **settings)]
            if servers == 1
            else [
                _Member(index + 1, self._peers_of, version, port=port and port + index, **settings)
                for index in range(servers)
            ]
        )

    @property
    def hosts(self) -> str:
        """The connection string of its clients, ``127.0.0.1:port,127.0.0.1:port,…``."""
        return ",".join(server.hosts for server in self.servers)

    async def leader(self) -> ZooKeeperServer:
        """
        The server that leads; waits for the end of an election. A server by itself leads itself.

        Raises:
            ServerError: After 30 s there is no leader, or there are two.
        """
        deadline = time.monotonic() + _LEADER_LIMIT_S
        while True:
            modes = await asyncio.gather(*(server.mode() for server in self.servers))
            leaders = [server for server, mode in zip(self.servers, modes, strict=True) if mode in _LEADING]
            if len(leaders) == 1:
                return leaders[0]
            if time.monotonic() > deadline:
                said = ", ".join(
                    f"{server.name}: {mode or 'no answer'}" for server, mode in zip(self.servers, modes, strict=True)
                )
                raise ServerError(f"the ensemble has no single leader after {_LEADER_LIMIT_S:g} s ({said})")
            await asyncio.sleep(_POLL_S)

    async def followers(self) -> list[ZooKeeperServer]:
        """All servers but the leader, whether they run or not; errors as of ``leader``."""
        leader = await self.leader()
        return [server for server in self.servers if server is not leader]

    def cut(self, server: ZooKeeperServer, *others: ZooKeeperServer) -> None:
        """From now on nothing goes between one server and others; none of them hears of an end. See ``PeerLinks``."""
        for other in others:
            self._network().cut(self._number(server), self._number(other))

    def delay(self, seconds: float, server: ZooKeeperServer, *others: ZooKeeperServer) -> None:
        """Hold everything between one server and others back for so long, both ways."""
        for other in others:
            self._network().delay(self._number(server), self._number(other), seconds)

    def heal(self) -> None:
        """End all cuts and delays; what was held back goes on."""
        self._network().heal()

    def _network(self) -> PeerLinks:
        if self._links is None:
            raise ServerError("the servers talk to each other directly; an ensemble that is cuttable=True can be cut")
        return self._links

    def _number(self, server: ZooKeeperServer) -> int:
        return 1 + self.servers.index(server)

    def _peers(self) -> dict[int, Peer]:
        return {
            number: Peer(LOOPBACK, ports.quorum.number, ports.election.number) for number, ports in self._ports.items()
        }

    def _peers_of(self, number: int) -> Mapping[int, Peer]:
        return self._peers() if self._links is None else self._links.seen_by(number)

    def _start(self) -> None:
        for number in range(1, len(self.servers) + 1):
            self._ports[number] = _PeerPorts(ReservedPort(), ReservedPort())
        if self._cuttable:
            self._links = PeerLinks(self._peers())
            self._links._start()
        # Together: none of them serves before most of them run.
        with ThreadPoolExecutor(max_workers=len(self.servers)) as pool:
            list(pool.map(ZooKeeperServer._start, self.servers))

    def _close(self) -> None:
        for server in self.servers:
            server._kill()
            server._close()
        if self._links is not None:
            self._links._close()
            self._links = None
        for ports in self._ports.values():
            ports.quorum.release()
            ports.election.release()
        self._ports.clear()
