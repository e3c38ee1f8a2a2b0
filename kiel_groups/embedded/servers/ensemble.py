"""
ZooKeeper servers that form one ensemble.

Each server has a port for clients, a port for its followers if it leads, and a port for elections. The latter two are
in the configuration of every server, so the system chooses them before the first start, and they are reserved until the
ensemble is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import permutations
from typing import NamedTuple, TypedDict, Unpack

from kiel_groups.embedded.faults.fault_proxy import FaultProxy
from kiel_groups.embedded.processes.server_process import ReservedPort, Startable
from kiel_groups.embedded.servers.server_files import LOOPBACK, Peer, Settings, ensemble_settings
from kiel_groups.embedded.servers.zookeeper_server import ZooKeeperServer
from kiel_groups.errors import ConfigError, ServerError

__all__ = [
    "PeerLinks",
    "ZooKeeperEnsemble",
]


# The network between the servers of one ensemble, with a fault proxy for each pair of servers and each port.
#
# A server connects to the other servers' addresses in its own configuration, so each configuration has proxies that no
# other server uses. On 3.4.6, a cut is complete. On 3.9.5, a cut is complete only between followers and leader: in an
# election, the servers also exchange their real addresses, and may bypass the proxies.


#: How long a proxy waits for the server behind it. A server that was just elected listens a moment later. A follower
#: that is refused until then retries for 5 s. If a proxy accepted the follower's connection and then reset it, the
#: follower would vote again instead of retrying, and its leader would wait for it until ``initLimit``.
_NEW_LEADER_WAIT_S = 5.0


class _PeerProxies(NamedTuple):
    """The proxies through which one server reaches another server."""

    quorum: FaultProxy
    election: FaultProxy


class PeerLinks(Startable):
    """
    Runs the proxies between the servers of an ensemble during a ``with`` block. Servers are identified by number.

    Args:
        peers: The real addresses of the servers.
    """

    def __init__(self, peers: Mapping[int, Peer]) -> None:
        self._peers = peers
        self._proxies = {
            (one, other): _PeerProxies(
                FaultProxy(f"{peers[other].host}:{peers[other].quorum_port}", upstream_wait_s=_NEW_LEADER_WAIT_S),
                FaultProxy(f"{peers[other].host}:{peers[other].election_port}"),
            )
            for one, other in permutations(peers, 2)
        }
        self._running = ExitStack()

    def seen_by(self, number: int) -> dict[int, Peer]:
        """
        Return the addresses for the configuration of server ``number``: its own, and the proxies of all other servers.
        """
        return {
            other: self._peers[other]
            if other == number
            else Peer(LOOPBACK, self._proxies[number, other].quorum.port, self._proxies[number, other].election.port)
            for other in self._peers
        }

    def cut(self, one: int, other: int) -> None:
        """Stall all traffic between two servers. Their connections stay open (see ``FaultProxy.stall``)."""
        for proxy in self._between(one, other):
            proxy.stall()

    def delay(self, one: int, other: int, seconds: float) -> None:
        """Delay all traffic between two servers, in both directions."""
        for proxy in self._between(one, other):
            proxy.delay(seconds)

    def heal(self) -> None:
        """End all cuts and delays, and deliver the stalled traffic."""
        for pair in self._proxies.values():
            for proxy in pair:
                proxy.heal()

    def _between(self, one: int, other: int) -> Iterator[FaultProxy]:
        yield from self._proxies[one, other]
        yield from self._proxies[other, one]

    def _start(self) -> None:
        for pair in self._proxies.values():
            for proxy in pair:
                self._running.enter_context(proxy)

    def _close(self) -> None:
        self._running.close()


#: The modes of a server that leads. A stand-alone server counts as a leader.
_LEADING = ("leader", "standalone")
_LEADER_LIMIT_S = 30.0
_POLL_S = 0.05


class _PeerPorts(NamedTuple):
    """The ports of one server for the other servers. The ports stay the same until the ensemble is closed."""

    quorum: ReservedPort
    election: ReservedPort


class _Settings(TypedDict):
    tick_time_ms: int
    max_session_timeout_ms: int | None
    overrides: Mapping[str, object] | None


class _Member(ZooKeeperServer):
    """One server of an ensemble. ``peers(number)`` returns the addresses of all servers for its configuration."""

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
    Runs an ensemble of ZooKeeper servers during a ``with`` or ``async with`` block.

    The block starts when every server accepts sessions. Each of ``servers`` can be stopped, killed, paused, resumed and
    started again on its data. The start of a server returns when the server is part of a quorum. So, if too few servers
    run for a quorum, the missing servers have to be started concurrently (``asyncio.gather``). The other servers notice
    at once if a server is killed, and after 4 ticks (2 s by default) if it hangs.

    Args:
        servers: The number of servers: 1 (stand-alone), 3, 5, …
        version: ``"3.9.5"`` or ``"3.4.6"``.
        tick_time_ms: ZooKeeper's unit of time. Session timeouts are between 2 and 20 ticks.
        max_session_timeout_ms: The longest session timeout granted, by default 20 ticks.
        port: The first server's client port. All others get the next ports. 0 lets the system choose.
        overrides: Further lines of every ``zoo.cfg``.
        cuttable: Connect the servers through proxies, for ``cut`` and ``delay``.

    Raises:
        ConfigError: The number of servers is even or below 1, or the version is not in the table.
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
        """The connection string for clients, ``127.0.0.1:port,127.0.0.1:port,…``."""
        return ",".join(server.hosts for server in self.servers)

    async def leader(self) -> ZooKeeperServer:
        """
        Return the server that leads, or a stand-alone server. Wait for the end of an election.

        Raises:
            ServerError: After 30 s, no server or more than one server leads.
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
        """Return all servers but the leader, whether they run or not. Raise the error of ``leader``."""
        leader = await self.leader()
        return [server for server in self.servers if server is not leader]

    def cut(self, server: ZooKeeperServer, *others: ZooKeeperServer) -> None:
        """Stall all traffic between ``server`` and each of ``others``. Connections stay open (see ``PeerLinks``)."""
        for other in others:
            self._network().cut(self._number(server), self._number(other))

    def delay(self, seconds: float, server: ZooKeeperServer, *others: ZooKeeperServer) -> None:
        """Delay all traffic between ``server`` and each of ``others``, in both directions."""
        for other in others:
            self._network().delay(self._number(server), self._number(other), seconds)

    def heal(self) -> None:
        """End all cuts and delays, and deliver the stalled traffic."""
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
        # Start all servers concurrently: no server is ready before a quorum of servers runs.
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
