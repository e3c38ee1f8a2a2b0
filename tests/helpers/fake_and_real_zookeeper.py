"""One interface to the fake ZooKeeper and to real servers, so that the same test cases run on all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Protocol

from kazoo.client import KazooClient

from kiel_groups.embedded import ZooKeeperServer
from tests.fakes import FakeEnsemble, Host, Timeline, fake_client
from tests.helpers.answer_losers import AnswerLoser
from tests.helpers.closed_sessions import close_session
from tests.helpers.servers import LASTING_MS
from tests.helpers.waiting import eventually, eventually_blocking
from tests.helpers.zookeeper_roles import leader_of, modes_of
from tests.proxies.cuttable_servers import CuttableEnsemble

__all__ = ["Lossy", "Backend", "FakeBackend", "RealBackend", "FakeServers", "RealServers", "Servers"]

TICK_MS = 500

#: For how long the fake holds back the leader's commits, in simulated seconds: longer than any read takes.
_HELD_S = 1.5


class Lossy(Protocol):
    """A client whose connection the test can break."""

    client: KazooClient

    def lose(self, what: Literal["request", "reply"], path: str) -> None:
        """Lose the next transaction with this path, or the server's reply to it."""

    def reconnect(self) -> None:
        """Wait until the message is lost, and break the connection. The next connection works."""


class Backend(Protocol):
    """The ZooKeeper that a test runs against: the fake ensemble or a real server."""

    def client(self, timeout_s: float = 10.0, session: tuple[int, bytes] | None = None) -> KazooClient:
        """Return a started client. It resumes ``session`` if this is given."""

    def resuming(self, session: tuple[int, bytes]) -> KazooClient:
        """Return a client that resumes ``session`` when it is started."""

    def lossy(self) -> AbstractContextManager[Lossy]:
        """Provide a client whose requests and replies the test can lose."""

    def end(self, session: tuple[int, bytes]) -> None:
        """End a session from another client, while the client of the session is connected."""

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> None:
        """Wait, in simulated or real time, until ``condition`` returns a true value."""

    def now_s(self) -> float:
        """Return the time of a clock that advances during ``wait``, in seconds."""

    def close(self) -> None:
        """Stop all clients."""


class _Clients:
    def __init__(self) -> None:
        self.started: list[KazooClient] = []

    def close(self) -> None:
        for client in self.started:
            client.stop()
            client.close()


class _LossyFake:
    def __init__(self, host: Host, client: KazooClient) -> None:
        self.client = client
        self._host = host

    def lose(self, what: Literal["request", "reply"], path: str) -> None:
        self._host.lose(what)

    def reconnect(self) -> None:
        """Do nothing, because the fake has already broken the connection."""


class _LossyReal:
    def __init__(self, proxy: AnswerLoser, client: KazooClient) -> None:
        self.client = client
        self._proxy = proxy

    def lose(self, what: Literal["request", "reply"], path: str) -> None:
        self._proxy.lose_answer_to(path.encode(), request_too=what == "request")

    def reconnect(self) -> None:
        assert self._proxy.caught.wait(20.0)
        self._proxy.reconnect()


class FakeBackend(_Clients):
    """The fake ensemble, on simulated time."""

    def __init__(self, ensemble: FakeEnsemble | None = None) -> None:
        super().__init__()
        self.ensemble = ensemble or FakeEnsemble(Timeline(), tick_ms=TICK_MS, max_session_timeout_ms=LASTING_MS)

    def client(self, timeout_s: float = 10.0, session: tuple[int, bytes] | None = None) -> KazooClient:
        client = fake_client(Host(self.ensemble), int(timeout_s * 1000))
        return self._start(client, session)

    def resuming(self, session: tuple[int, bytes]) -> KazooClient:
        return fake_client(Host(self.ensemble), session=session)

    def _start(self, client: KazooClient, session: tuple[int, bytes] | None) -> KazooClient:
        if session is not None:
            client._session_id, client._session_passwd = session
        client.start()
        self.started.append(client)
        return client

    @contextmanager
    def lossy(self) -> Iterator[Lossy]:
        host = Host(self.ensemble)
        yield _LossyFake(host, self._start(fake_client(host), None))

    def end(self, session: tuple[int, bytes]) -> None:
        self.client(session=session).stop()

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> None:
        self.ensemble.timeline.run_until(condition, timeout_s)

    def now_s(self) -> float:
        return self.ensemble.timeline.now_s


class RealBackend(_Clients):
    """A real server or ensemble. The znode ``chroot`` is created if it is given."""

    def __init__(self, hosts: str, chroot: str = "") -> None:
        super().__init__()
        self._hosts = hosts + chroot
        if chroot:
            maker = KazooClient(hosts)
            maker.start()
            maker.ensure_path(chroot)
            maker.stop()
            maker.close()

    def client(self, timeout_s: float = 10.0, session: tuple[int, bytes] | None = None) -> KazooClient:
        client = KazooClient(self._hosts, timeout_s, client_id=session)
        client.start()
        self.started.append(client)
        return client

    def resuming(self, session: tuple[int, bytes]) -> KazooClient:
        return KazooClient(self._hosts, client_id=session)

    @contextmanager
    def lossy(self) -> Iterator[Lossy]:
        hosts, slash, chroot = self._hosts.partition("/")
        with AnswerLoser(hosts) as proxy:
            client = KazooClient(proxy.address + slash + chroot)
            client.start()
            try:
                yield _LossyReal(proxy, client)
            finally:
                client.stop()
                client.close()

    def end(self, session: tuple[int, bytes]) -> None:
        close_session(self._hosts, session)

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> None:
        eventually_blocking(condition, what, timeout_s)

    def now_s(self) -> float:
        return time.monotonic()


class Servers(Protocol):
    """Three servers into which the test injects faults."""

    @property
    def leader(self) -> object:
        """Server 0, which led after the last ``heal``."""

    @property
    def reports_moves(self) -> bool:
        """
        Whether a transaction on a moved session's old connection is answered with an error. If not, the server closes
        the connection.
        """

    def backend(self, server: int | None = None) -> Backend:
        """Return the backend for clients of all servers, or of one: 0 is the leader, 1 and 2 are followers."""

    def freeze(self, server: int) -> None: ...
    def crash(self, server: int) -> None: ...
    def hold(self, follower: int) -> None:
        """Hold back what the leader and the follower send to each other from now on."""

    def deliver(self) -> None:
        """Deliver what is held back."""

    def heal(self) -> None:
        """End all faults, and wait until all three servers serve again. Another server may lead then."""


class FakeServers:
    """Three servers of a fake ensemble."""

    def __init__(self, *, reports_moves: bool) -> None:
        self._ensemble = FakeEnsemble(Timeline(), 3, tick_ms=TICK_MS, reports_moves=reports_moves)
        self._ordered = list(self._ensemble.servers)

    @property
    def leader(self) -> object:
        return self._ordered[0]

    @property
    def reports_moves(self) -> bool:
        return self._ensemble.reports_moves

    def backend(self, server: int | None = None) -> Backend:
        if server is None:
            return FakeBackend(self._ensemble)
        return _OneServerBackend(self._ensemble, server, self._ordered)

    def freeze(self, server: int) -> None:
        self._ensemble.freeze(self._ordered[server])

    def crash(self, server: int) -> None:
        self._ensemble.crash(self._ordered[server])

    def hold(self, follower: int) -> None:
        self._ordered[follower].lag_s = _HELD_S

    def deliver(self) -> None:
        for server in self._ordered:
            server.lag_s = 0.0

    def heal(self) -> None:
        for server in self._ensemble.servers:
            self._ensemble.heal(server)
        self._ensemble.timeline.run_until(lambda: all(server.contact for server in self._ensemble.servers))
        assert self._ensemble.leader is not None
        self._ordered = sorted(self._ensemble.servers, key=lambda server: server is not self._ensemble.leader)


class _OneHost(Host):
    """A host that reaches only one server."""

    def __init__(self, ensemble: FakeEnsemble, only: Any) -> None:
        super().__init__(ensemble)
        self.servers = [only]


class _OneServerBackend(FakeBackend):
    def __init__(self, ensemble: FakeEnsemble, server: int, ordered: list[Any]) -> None:
        super().__init__(ensemble)
        self._only = ordered[server]

    def client(self, timeout_s: float = 10.0, session: tuple[int, bytes] | None = None) -> KazooClient:
        return self._start(fake_client(_OneHost(self.ensemble, self._only), int(timeout_s * 1000)), session)


class RealServers:
    """Three real servers of one version."""

    def __init__(self, ensemble: CuttableEnsemble) -> None:
        self._ensemble = ensemble
        self._ordered: list[ZooKeeperServer] = []
        self._order()

    def _order(self) -> None:
        leader = asyncio.run(self._all_in_quorum())
        self._ordered = sorted(self._ensemble.servers, key=lambda server: server is not leader)

    async def _all_in_quorum(self) -> ZooKeeperServer:
        """Return the leader once all others follow: a server killed while it catches up may not start again."""

        # See ZOOKEEPER-2354.
        async def leader_of_all() -> ZooKeeperServer | None:
            leader = await leader_of(self._ensemble)
            return leader if all(await modes_of(self._ensemble)) else None

        return await eventually(leader_of_all, "every server has a role")

    @property
    def leader(self) -> object:
        return self._ordered[0]

    @property
    def reports_moves(self) -> bool:
        return self._ensemble.version.startswith("3.4.")

    def backend(self, server: int | None = None) -> Backend:
        return RealBackend(self._ensemble.hosts if server is None else self._ordered[server].hosts)

    def freeze(self, server: int) -> None:
        self._ordered[server].pause()

    def crash(self, server: int) -> None:
        asyncio.run(self._ordered[server].kill())

    def hold(self, follower: int) -> None:
        self._ensemble.cut(self._ordered[0], self._ordered[follower])

    def deliver(self) -> None:
        self._ensemble.heal()

    def heal(self) -> None:
        self._ensemble.heal()
        for server in self._ordered:
            if not server.is_running:
                asyncio.run(server.start())
            else:
                server.resume()
        self._order()
