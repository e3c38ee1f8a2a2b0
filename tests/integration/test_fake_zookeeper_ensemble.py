"""
The fake ensemble has the faults of real ones: every test runs on the fake, and on three servers of 3.9.5 and of 3.4.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, RuntimeInconsistency, SessionMovedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from tests.helpers.fake_and_real_zookeeper import Backend, FakeServers, RealServers, Servers
from tests.proxies.cuttable_servers import CuttableEnsemble

pytestmark = pytest.mark.integration

#: Long enough for an answer, much shorter than the time after which servers give each other up (2 s).
SOON_S = 0.5


@pytest.fixture(params=["fake", "fake that reports moves", "3.9.5", "3.4.6"], scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    if request.param.startswith("fake"):
        yield FakeServers(reports_moves=request.param != "fake")
        return
    # The links between the servers run in this process: if it stands still, the servers hear nothing of each other.
    with CuttableEnsemble(3, request.param, overrides={"syncLimit": 8}) as ensemble:
        yield RealServers(ensemble)


@pytest.fixture
def healed(servers: Servers) -> Iterator[Servers]:
    """The servers without faults. The fixture ends the faults of the test."""
    yield servers
    servers.heal()


def commit(client: KazooClient, path: str, timeout_s: float = 10.0) -> object:
    """Commit a transaction that only checks a znode. The transaction needs the quorum."""
    transaction = client.transaction()
    transaction.check(path, -1)
    return transaction.commit_async().get(timeout=timeout_s)


def test_a_leader_without_its_quorum_answers_reads_and_no_writes(healed: Servers) -> None:
    """While its followers are frozen, the leader answers a read and even a sync, but no transaction."""
    with closing(healed.backend(0)) as backend:
        client = backend.client()
        client.create("/quorum", b"", ephemeral=True)
        session = client.client_id[0]
        for follower in (1, 2):
            healed.freeze(follower)
        assert client.get_async("/quorum").get(timeout=10.0)[0] == b""
        assert client.sync_async("/quorum").get(timeout=10.0) == "/quorum"
        with pytest.raises((KazooTimeoutError, ConnectionLoss)):
            commit(client, "/quorum", SOON_S)
        healed.heal()
        backend.wait(lambda: _commits(client, "/quorum"), "transactions are answered again")
        assert client.client_id[0] == session


def test_a_follower_without_its_leader_answers_reads_and_no_writes(healed: Servers) -> None:
    """
    While the leader is frozen, the follower answers reads only. Then another server leads, and the session continues.
    """
    with closing(healed.backend()) as everywhere, closing(healed.backend(1)) as backend:
        client = backend.client()
        client.create("/follower", b"", ephemeral=True)
        session = client.client_id
        healed.freeze(0)
        assert client.get_async("/follower").get(timeout=10.0)[0] == b""
        with pytest.raises((KazooTimeoutError, ConnectionLoss)):
            commit(client, "/follower", SOON_S)
        backend.wait(lambda: _commits(client, "/follower"), "another server leads")
        assert client.client_id == session
        assert everywhere.client().exists("/follower").ephemeralOwner == session[0]


def test_a_lagging_follower_answers_with_old_data(healed: Servers) -> None:
    """
    A sync, or a transaction without a change, brings the follower up to date, because both pass through the leader.
    """
    with closing(healed.backend(0)) as backend, closing(healed.backend(1)) as elsewhere:
        writer, reader = backend.client(), elsewhere.client()
        writer.create("/lag", b"0", ephemeral=True)
        elsewhere.wait(lambda: reader.exists("/lag"), "the follower has it")
        unchanged = reader.transaction()
        unchanged.check("/lag", -1)
        asks = [(partial(reader.sync_async, "/lag"), "/lag"), (unchanged.commit_async, [True])]
        for number, (ask, answer) in enumerate(asks):
            healed.hold(1)
            writer.set("/lag", b"%d" % (number + 1))
            assert reader.get("/lag")[0] == b"%d" % number
            # The follower answers the requests of a session in their order.
            asked, read = ask(), reader.get_async("/lag")
            healed.deliver()
            assert asked.get(timeout=10.0) == answer
            assert read.get(timeout=10.0)[0] == b"%d" % (number + 1)


@pytest.mark.parametrize(("before", "now"), [(0, 1), (1, 0), (1, 2)])
def test_a_moved_session_cannot_write_on_its_old_connection(healed: Servers, before: int, now: int) -> None:
    """A transaction on the older connection is refused. At a single write the server closes that connection."""
    with closing(healed.backend(before)) as backend, closing(healed.backend(now)) as elsewhere:
        client = backend.client()
        client.create("/moved", b"", ephemeral=True)
        states: list[str] = []
        client.add_listener(states.append)
        # The leader answers a session before it notes the new connection, and only then answers requests on it.
        assert commit(elsewhere.client(session=client.client_id), "/moved") == [True]
        if healed.reports_moves:
            for _ in range(3):
                transaction = client.transaction()
                transaction.check("/moved", -1)
                transaction.create("/moved-too", b"")
                refused, beside = transaction.commit_async().get(timeout=10.0)
                assert isinstance(refused, SessionMovedError)
                assert isinstance(beside, RuntimeInconsistency)
            assert states == []
        if before == 0:
            # The leader closes the connection at any request.
            asked = client.get_async("/moved")
        else:
            assert client.get("/moved")[0] == b""
            assert client.sync("/moved") == "/moved"
            asked = client.set_async("/moved", b"1")
        with pytest.raises(ConnectionLoss):
            asked.get(timeout=10.0)
        backend.wait(lambda: KazooState.CONNECTED in states, "it connects again")
        assert commit(client, "/moved") == [True]
        assert client.get("/moved")[0] == b""
        assert client.exists("/moved-too") is None


def test_a_leader_without_its_quorum_accepts_sessions_that_connect(healed: Servers) -> None:
    """
    A leader without its quorum accepts sessions that connect. It executes and answers their writes when its followers
    resume.
    """
    with closing(healed.backend(1)) as elsewhere, closing(healed.backend(0)) as backend:
        first = elsewhere.client()
        first.create("/came", b"", ephemeral=True)
        for follower in (1, 2):
            healed.freeze(follower)
        client = backend.client(session=first.client_id)
        states: list[str] = []
        client.add_listener(states.append)
        sent = client.set_async("/came", b"1")
        healed.heal()
        assert sent.get(timeout=10.0).version == 1
        assert states == []


def test_a_session_survives_its_server(healed: Servers) -> None:
    """After its server was killed, the session continues on another server, with its ephemeral znodes."""
    with closing(healed.backend()) as backend:
        client = backend.client()
        states: list[str] = []
        client.create("/outlived", b"", ephemeral=True)
        before = client.client_id, client.exists("/outlived")
        client.add_listener(states.append)
        for server in _killed_one_by_one(healed, backend, states):
            assert states[:1] == [KazooState.SUSPENDED], server
        backend.wait(lambda: _commits(client, "/outlived"), "writes are answered")
        assert (client.client_id, client.exists("/outlived")) == before
        assert KazooState.LOST not in states


def _killed_one_by_one(servers: Servers, backend: Backend, states: list[str]) -> Iterator[int]:
    """
    Kill and heal one server after the other, up to the server to which the client is connected. Yield the number of
    this server.
    """
    for server in (2, 1, 0):
        servers.crash(server)
        try:
            backend.wait(lambda: states, "the connection breaks", 1.5)
        except AssertionError:
            servers.heal()
            continue
        yield server
        return


def test_the_leader_s_clock_ends_a_session(healed: Servers) -> None:
    """
    If the only server that the client can reach is frozen, the session ends after its timeout, not after half of it.
    """
    with closing(healed.backend(0)) as backend, closing(healed.backend(1)) as elsewhere:
        watcher = backend.client()
        client = elsewhere.client(2.0)
        client.create("/mortal", b"", ephemeral=True)
        healed.freeze(1)
        gone: list[object] = []
        watcher.exists("/mortal", watch=gone.append)
        with pytest.raises(AssertionError):
            backend.wait(lambda: gone, "the session ends too early", 1.0)
        backend.wait(lambda: gone, "the session ends", 10.0)
        healed.heal()


def test_a_follower_reports_active_sessions_to_a_leader_that_resumes(healed: Servers) -> None:
    """If a client writes while the leader is frozen, and sends nothing afterwards, the write extends its session."""
    # In some attempts the other servers give up the frozen leader and elect another leader.
    assert any(_a_write_extends_the_session(healed, f"/active-{attempt}") for attempt in range(30))


def _a_write_extends_the_session(healed: Servers, path: str) -> bool:
    """Try the case. Return False if another server leads afterwards, because a new leader renews every session."""
    with closing(healed.backend(2)) as backend, closing(healed.backend(1)) as elsewhere:
        watcher, client, leader = backend.client(), elsewhere.client(2.0), healed.leader
        client.create(path, b"", ephemeral=True)
        healed.freeze(0)
        began_s = backend.now_s()
        _pause(backend, 1.1)
        transaction = client.transaction()
        transaction.check(path, -1)
        answered: list[object] = []
        transaction.commit_async().rawlink(answered.append)
        _pause(backend, 0.1)
        healed.heal()
        if healed.leader is not leader:
            return False
        backend.wait(lambda: answered, "the leader answers again")
        # The pause ends after the leader's next ping and before the client's.
        _pause(backend, 0.4)
        healed.freeze(1)
        while _exists(watcher, path):
            assert backend.now_s() - began_s < 20.0
            _pause(backend, 0.05)
        assert backend.now_s() - began_s > 1.1 + 1.9
        healed.heal()
        return True


def _pause(backend: Backend, duration_s: float) -> None:
    until_s = backend.now_s() + duration_s
    backend.wait(lambda: backend.now_s() >= until_s, "time passes")


def _exists(client: KazooClient, path: str) -> bool:
    """Return whether the znode exists. True also means that the server does not answer."""
    try:
        return client.exists_async(path).get(timeout=2.0) is not None
    except (KazooTimeoutError, ConnectionLoss):
        return True


def _commits(client: KazooClient, path: str) -> bool:
    try:
        return commit(client, path, 2.0) == [True]
    except (KazooTimeoutError, ConnectionLoss):
        return False
