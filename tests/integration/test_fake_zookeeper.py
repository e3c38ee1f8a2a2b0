"""The fake ZooKeeper behaves like real servers: every test runs on the fake, on 3.9.5 and on 3.4.6."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from kiel_groups.embedded import Cluster
from kiel_groups.zookeeper.kazoo_client import begin_stop, observe_connect
from tests.helpers.fake_and_real_zookeeper import Backend, FakeBackend, RealBackend
from tests.helpers.servers import LASTING_MS

pytestmark = pytest.mark.integration


@pytest.fixture(params=["fake", "3.9.5", "3.4.6"])
def backend(
    request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster], unique: Callable[[str], str]
) -> Iterator[Backend]:
    """Provide a ZooKeeper without other clients: the fake or a real server."""
    if request.param == "fake":
        made: Backend = FakeBackend()
    else:
        made = RealBackend(shared_clusters(request.param).zk_hosts, f"/{unique('chroot')}")
    yield made
    made.close()


@pytest.fixture
def client(backend: Backend) -> KazooClient:
    return backend.client()


def failure(request: Callable[..., Any], *arguments: Any, **options: Any) -> type[BaseException]:
    """Return the type of the exception that a request raises."""
    with pytest.raises(Exception) as caught:
        request(*arguments, **options)
    return caught.type


def kinds(results: list[Any]) -> list[type]:
    return [type(result) for result in results]


class Seen:
    """A watcher that records its events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None]] = []

    def __call__(self, event: WatchedEvent) -> None:
        self.events.append((event.type, event.path))


def test_a_znode_counts_its_changes(client: KazooClient) -> None:
    """Version, zxids, owner and lengths in a znode's stat are as the protocol defines them."""
    client.create("/a", b"one")
    data, created = client.get("/a")
    assert (data, created.version, created.ephemeralOwner, created.dataLength) == (b"one", 0, 0, 3)
    assert created.czxid == created.mzxid == created.pzxid
    changed = client.set("/a", b"two!")
    assert (changed.version, changed.dataLength, changed.czxid) == (1, 4, created.czxid)
    assert changed.mzxid > created.mzxid
    assert client.set("/a", b"", version=1).version == 2
    assert client.exists("/a").version == 2


def test_requests_are_refused_with_the_errors_of_the_protocol(client: KazooClient) -> None:
    """Each kind of refused request has its own error, and changes nothing."""
    client.create("/a", b"")
    client.create("/a/b", b"")
    client.create("/e", b"", ephemeral=True)
    assert failure(client.create, "/a") is NodeExistsError
    assert failure(client.create, "/no/b") is NoNodeError
    assert failure(client.create, "/e/below") is NoChildrenForEphemeralsError
    assert failure(client.set, "/a", b"x", version=7) is BadVersionError
    assert failure(client.set, "/no", b"x") is NoNodeError
    assert failure(client.delete, "/a") is NotEmptyError
    assert failure(client.delete, "/a/b", version=3) is BadVersionError
    assert failure(client.delete, "/no") is NoNodeError
    assert failure(client.get, "/no") is NoNodeError
    assert failure(client.get_children, "/no") is NoNodeError
    assert client.exists("/no") is None
    assert client.get("/a")[1].version == 0


def test_sequences_count_all_children_ever_created(client: KazooClient) -> None:
    """The parent counts: prefixes and deletions do not matter, and refused creations are not counted."""
    client.create("/s")
    assert client.create("/s/a-", sequence=True) == "/s/a-0000000000"
    client.create("/s/plain")
    assert client.create("/s/b-", sequence=True) == "/s/b-0000000002"
    client.delete("/s/b-0000000002")
    client.delete("/s/plain")
    assert failure(client.create, "/s/a-0000000000") is NodeExistsError
    assert client.create("/s/", sequence=True, ephemeral=True) == "/s/0000000003"
    assert client.exists("/s").cversion == 6
    assert client.exists("/s").numChildren == 2


def test_a_transaction_is_atomic(client: KazooClient) -> None:
    """The operations of a transaction see each other and share one zxid. The results are in order."""
    client.create("/t", b"")
    transaction = client.transaction()
    transaction.check("/t", 0)
    transaction.create("/t/s-", b"x", ephemeral=True, sequence=True)
    transaction.set_data("/t", b"new", 0)
    transaction.check("/t", 1)
    transaction.create("/t/d")
    transaction.delete("/t/d")
    results = transaction.commit()
    assert results[0] is True
    assert results[1] == "/t/s-0000000000"
    assert results[2].version == 1
    assert results[3:] == [True, "/t/d", True]
    made, parent = client.exists("/t/s-0000000000"), client.exists("/t")
    assert made.czxid == parent.mzxid == parent.pzxid
    assert made.ephemeralOwner == client.client_id[0]


def test_a_refused_transaction_changes_nothing(client: KazooClient) -> None:
    """The failed operation has its error. Earlier operations are rolled back, and later ones are not tried."""
    client.create("/t", b"old")
    transaction = client.transaction()
    transaction.set_data("/t", b"new")
    transaction.create("/t/a-", sequence=True)
    transaction.delete("/t", version=9)
    transaction.check("/nothing", -1)
    assert kinds(transaction.commit()) == [RolledBackError, RolledBackError, BadVersionError, RuntimeInconsistency]
    data, stat = client.get("/t")
    assert (data, stat.version, stat.cversion, client.get_children("/t")) == (b"old", 0, 0, [])
    assert client.create("/t/a-", sequence=True) == "/t/a-0000000000"


def test_a_check_tests_existence_and_version(client: KazooClient) -> None:
    """A check with the version −1 matches every version. A missing znode and another version are different errors."""
    client.create("/c", b"")
    client.set("/c", b"")
    for version, expected in ((-1, True), (1, True), (0, BadVersionError)):
        transaction = client.transaction()
        transaction.check("/c", version)
        (result,) = transaction.commit()
        assert result is True if expected is True else isinstance(result, expected)
    transaction = client.transaction()
    transaction.check("/gone", -1)
    assert kinds(transaction.commit()) == [NoNodeError]


def test_a_refused_transaction_restores_a_deleted_znode(client: KazooClient) -> None:
    """If a refused transaction deletes a znode and creates it again, the old znode remains, with its old stat."""
    client.create("/d", b"old", ephemeral=True)
    before = client.exists("/d")
    transaction = client.transaction()
    transaction.delete("/d")
    transaction.create("/d", b"new", ephemeral=True)
    transaction.check("/nothing", -1)
    assert kinds(transaction.commit())[2] is NoNodeError
    assert client.get("/d") == (b"old", before)


def test_a_watch_fires_once(backend: Backend, client: KazooClient) -> None:
    """A watch on data fires once, at a change or at the deletion."""
    other, seen = backend.client(), Seen()
    client.create("/w", b"")
    client.get("/w", watch=seen)
    other.set("/w", b"1")
    other.set("/w", b"2")
    backend.wait(lambda: seen.events, "the watch fires")
    client.get("/w")
    assert seen.events == [(EventType.CHANGED, "/w")]
    client.get("/w", watch=seen)
    other.delete("/w")
    backend.wait(lambda: len(seen.events) == 2, "the watch fires again")
    assert seen.events[1] == (EventType.DELETED, "/w")


def test_exists_watches_for_a_creation(backend: Backend, client: KazooClient) -> None:
    """``exists`` sets a watch on a missing znode. A ``get`` that fails sets no watch."""
    exists, get = Seen(), Seen()
    assert client.exists("/x", watch=exists) is None
    assert failure(client.get, "/x", watch=get) is NoNodeError
    client.create("/x", b"")
    backend.wait(lambda: exists.events, "the creation is notified")
    client.delete("/x")
    client.sync("/")
    assert (exists.events, get.events) == ([(EventType.CREATED, "/x")], [])


def test_a_watch_on_children_notifies_of_children_only(backend: Backend, client: KazooClient) -> None:
    """
    A watch on children fires when a child is created or deleted and when the parent is deleted, but not when data
    changes.
    """
    client.create("/p", b"")
    for change, event in (
        (lambda: client.create("/p/c"), EventType.CHILD),
        (lambda: client.delete("/p/c"), EventType.CHILD),
        (lambda: client.delete("/p"), EventType.DELETED),
    ):
        seen = Seen()
        client.get_children("/p", watch=seen)
        if event is EventType.CHILD:
            client.set("/p", b"data")
            assert seen.events == []
        change()
        backend.wait(lambda seen=seen: seen.events, "the children changed")
        assert seen.events == [(event, "/p")]


def test_a_transaction_fires_every_watch_it_touches(backend: Backend, client: KazooClient) -> None:
    """When a znode is deleted and created again in one transaction, each watch fires once."""
    data, children = Seen(), Seen()
    client.create("/p")
    client.create("/p/m", b"", ephemeral=True)
    client.get("/p/m", watch=data)
    client.get_children("/p", watch=children)
    transaction = client.transaction()
    transaction.delete("/p/m")
    transaction.create("/p/m", b"", ephemeral=True)
    transaction.commit()
    backend.wait(lambda: data.events and children.events, "both watches fire")
    client.exists("/p")
    assert data.events == [(EventType.DELETED, "/p/m")]
    assert children.events == [(EventType.CHILD, "/p")]


def test_an_event_arrives_before_the_answer_that_shows_the_change(backend: Backend, client: KazooClient) -> None:
    """A client that reads the new value has received the watch event before."""
    order: list[str] = []
    other = backend.client()
    client.create("/o", b"old")
    client.get("/o", watch=lambda _: order.append("event"))
    other.set("/o", b"new")

    def read() -> bool:
        value = client.get("/o")[0]
        if value == b"new" and "value" not in order:
            backend.wait(lambda: "event" in order, "the event was sent before")
            order.append("value")
        return value == b"new"

    backend.wait(read, "the change is seen")
    assert order == ["event", "value"]


def test_one_watcher_is_notified_once_of_one_change(backend: Backend, client: KazooClient) -> None:
    """A function that is set twice as the watcher of one znode is called once."""
    seen = Seen()
    client.create("/w", b"")
    client.get("/w", watch=seen)
    client.exists("/w", watch=seen)
    client.set("/w", b"1")
    backend.wait(lambda: seen.events, "the watch fires")
    client.sync("/w")
    assert len(seen.events) == 1


def test_the_server_bounds_the_session_timeout(backend: Backend) -> None:
    """A session timeout is at least 2 ticks and at most the server's setting, whatever the client requests."""
    granted = {}
    for asked_s in (0.1, 5.0, 60.0):
        client = backend.client(asked_s)
        granted[asked_s] = _granted_ms(client)
    assert granted == {0.1: 1000, 5.0: 5000, 60.0: LASTING_MS}


def _granted_ms(client: KazooClient) -> int:
    """Return the negotiated session timeout, from the server's response to Connect of a new session."""
    connection = client._connection
    invoke, found = connection._invoke, []

    def reading(timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = invoke(timeout, request, xid)
        found.append(answer[0].time_out)
        return answer

    connection._invoke = reading
    session = client.client_id
    client.stop()
    client._session_id, client._session_passwd = None, b"\0" * 16
    client.start()
    assert client.client_id != session
    return int(found[-1])


def test_closing_a_session_deletes_its_ephemerals_at_once(backend: Backend, client: KazooClient) -> None:
    """
    When a session is closed, a watcher is notified of the deletion of its ephemeral znodes. Persistent znodes remain.
    """
    other, seen = backend.client(), Seen()
    other.create("/e", b"", ephemeral=True)
    other.create("/stays", b"")
    client.exists("/e", watch=seen)
    other.stop()
    backend.wait(lambda: seen.events, "the ephemeral znode is deleted", 5)
    assert seen.events == [(EventType.DELETED, "/e")]
    assert client.exists("/stays") is not None


def test_a_client_is_notified_of_its_expiry_and_opens_another_session(backend: Backend, client: KazooClient) -> None:
    """
    When another client ends the session, the state becomes LOST, the ephemeral znodes are deleted, and kazoo opens a
    session.
    """
    states: list[str] = []
    doomed = backend.client()
    doomed.create("/e", b"", ephemeral=True)
    before = doomed.client_id
    doomed.add_listener(states.append)
    backend.end(before)
    backend.wait(lambda: states[-1:] == [KazooState.CONNECTED], "kazoo has opened another session")
    assert states == [KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED]
    assert doomed.client_id[0] != before[0]
    assert client.exists("/e") is None


def test_a_request_over_a_mebibyte_breaks_the_connection(backend: Backend, client: KazooClient) -> None:
    """The server reads the length and closes the connection. The session continues."""
    session = client.client_id[0]
    client.create("/large", b"")
    client.set("/large", b"x" * 1_000_000)
    assert failure(client.set, "/large", b"x" * 1_100_000) is ConnectionLoss
    backend.wait(lambda: client.connected, "it is connected again")
    assert client.get("/large")[1].version == 1
    assert client.client_id[0] == session


def test_a_reconnected_client_has_its_session_and_no_watches(backend: Backend, client: KazooClient) -> None:
    """After a broken connection the session and its ephemeral znodes remain. Watchers are notified of the break."""
    seen, states = Seen(), []
    client.create("/e", b"", ephemeral=True)
    session = client.client_id[0]
    client.get("/e", watch=seen)
    client.add_listener(states.append)
    client._connection._socket.shutdown(2)
    backend.wait(lambda: states[-1:] == [KazooState.CONNECTED], "it is connected again")
    assert states == [KazooState.SUSPENDED, KazooState.CONNECTED]
    assert seen.events == [(EventType.NONE, None)]
    assert client.client_id[0] == session
    assert client.exists("/e").ephemeralOwner == session
    client.set("/e", b"new")
    client.sync("/e")
    assert len(seen.events) == 1


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_broken_connection_leaves_the_outcome_of_a_transaction_unknown(
    backend: Backend, what: Literal["request", "reply"]
) -> None:
    """
    Whether the transaction was executed or not, the client gets ConnectionLoss when the connection breaks, and keeps
    its session.
    """
    watcher = backend.client()
    with backend.lossy() as lossy:
        client, session = lossy.client, lossy.client.client_id
        transaction = client.transaction()
        transaction.create("/lost", b"")
        lossy.lose(what, "/lost")
        answer = transaction.commit_async()
        if what == "reply":
            backend.wait(lambda: watcher.exists("/lost"), "the transaction is performed")
        lossy.reconnect()
        with pytest.raises(ConnectionLoss):
            answer.get(timeout=20.0)
        backend.wait(lambda: client.state == KazooState.CONNECTED, "it is connected again")
        assert client.client_id == session
        assert (client.exists("/lost") is not None) == (what == "reply")


def test_a_session_is_resumed_and_closed_by_another_client(backend: Backend, client: KazooClient) -> None:
    """
    Another client needs the id and the password to resume a session. Its first request may be the close, which deletes
    the ephemeral znodes.
    """
    first = backend.client()
    session_id = first.client_id[0]
    first.create("/e", b"", ephemeral=True)
    resuming = backend.resuming(first.client_id)
    # The first client gives its session up. Otherwise it would reconnect when the session moves, and take it back.
    first._stopped.set()
    first._connection._socket.shutdown(socket.SHUT_RDWR)
    backend.wait(lambda: first.client_state == KeeperState.CLOSED, "the first client has stopped")
    answers: list[tuple[int, int]] = []
    observe_connect(resuming, 10_000, lambda *answer: answers.append(answer))
    resuming.start_async()
    backend.wait(lambda: resuming.connected, "it is resumed")
    begin_stop(resuming)
    backend.wait(lambda: resuming.client_state == KeeperState.CLOSED, "it is closed")
    assert answers == [(session_id, 10_000)]
    assert client.exists("/e") is None


def test_an_ended_session_is_not_resumed(backend: Backend, client: KazooClient) -> None:
    """The server responds with a timeout of 0. A client that is stopped by this response opens no other session."""
    answers: list[int] = []
    session = client.client_id
    client.stop()
    resuming = backend.resuming(session)

    def refused(_session_id: int, timeout_ms: int) -> None:
        answers.append(timeout_ms)
        resuming._stopped.set()

    observe_connect(resuming, 10_000, refused)
    resuming.start_async()
    backend.wait(lambda: answers and resuming.client_state == KeeperState.CLOSED, "it ends")
    assert answers == [0]
    assert not resuming.connected
