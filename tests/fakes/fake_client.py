"""
kazoo's client, connected to a fake ensemble.

The client itself is kazoo's: its queue, states, watchers and transactions. Only two parts of it are replaced: its
connection, which is a thread with a socket in kazoo, and its handler, which has threads with queues in kazoo.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Close, Connect, GetChildren, GetChildren2, Ping, Transaction
from kazoo.protocol.states import EVENT_TYPE_MAP, Callback, KeeperState, WatchedEvent

from kiel_groups.backoff import Backoff
from kiel_groups.zookeeper.kazoo_client import connect_limit_s
from tests.fakes.fake_ensemble import FakeEnsemble
from tests.fakes.fake_handler import FakeHandler, OrderedWatchersClient, run_until
from tests.fakes.fake_network import Event, Granted, Link, Loss, Reply
from tests.fakes.fake_server import DELETED, PING_XID, FakeServer

__all__ = ["Host", "fake_client"]

log = logging.getLogger(__name__)

#: kazoo's pauses between two rounds through all servers, in seconds, and their jitter.
FIRST_ROUND_PAUSE_S, LONGEST_ROUND_PAUSE_S, ROUND_JITTER = 0.05, 1.0, 0.4


class Host:
    """The host on which clients run: its connections, the servers that it reaches, and the faults of its network."""

    def __init__(self, ensemble: FakeEnsemble) -> None:
        self.ensemble = ensemble
        self.timeline = ensemble.timeline
        #: The servers in the connection string of the clients.
        self.servers = list(ensemble.servers)
        self.links: list[Link] = []
        #: Whether new connections fail, and messages on open ones are delayed.
        self.stalled = False
        #: The only server that new connections reach, if it is not None.
        self.only: FakeServer | None = None
        #: Returns whether the events of watches on the znode with this path are lost.
        self.loses_events: Callable[[str], bool] = lambda _path: False
        #: The connections of clients that open their own sessions.
        self.connections: list[FakeConnection] = []
        #: The sessions that clients on this host have opened.
        self.sessions: list[int] = []
        #: Calls a function with arguments on this host, as soon as the host runs.
        self.run: Callable[..., object] = _do

    def opened_session(self, connection: FakeConnection, session_id: int) -> None:
        """Record the new session of a client on this host."""
        self.sessions.append(session_id)

    def reaches(self, server: FakeServer) -> bool:
        return not self.stalled and self.only in (None, server)

    @property
    def server(self) -> FakeServer | None:
        """The server of this host's newest connection, or None if that connection is closed."""
        return self._server if self.links and self.links[0].is_open else None

    def connect(self, server: FakeServer, end: FakeConnection) -> Link:
        link = Link(self.timeline, end, server, self.ensemble.delay_s)
        self.links = [link, *(old for old in self.links if old.is_open)]
        self._server = server
        server.accept(link)
        return link

    def stall(self) -> None:
        """Delay all messages in both directions. Neither end is notified."""
        self.stalled = True
        for link in self.links:
            link.stalled = True

    def resume(self) -> None:
        """End a stall, and deliver the delayed messages. New connections reach all servers again."""
        self.stalled, self.only = False, None
        for link in self.links:
            link.resume()

    def lose(self, what: Loss) -> None:
        """Break the newest connection at its next transaction: before the request, or before the answer, arrives."""
        for link in self.links[:1]:
            link.loses = what

    def reset(self) -> None:
        """Break all connections. Messages in flight are lost."""
        for link in self.links:
            link.reset()


def _do(function: Callable[..., object], *arguments: Any) -> None:
    function(*arguments)


def fake_client(
    host: Host,
    session_timeout_ms: int = 10_000,
    chroot: str = "",
    logger: Any = None,
    *,
    session: tuple[int, bytes] | None = None,
) -> KazooClient:
    """
    Return a kazoo client of the host's ensemble, which is started, used and stopped like any other.

    With ``session``, an id and a password, the client resumes that session. The client's blocking calls advance the
    simulated time, so they cannot be made from a call that the timeline has scheduled.
    """
    hosts = ",".join(f"fake{server.number}:2181" for server in host.servers)
    client = OrderedWatchersClient(
        hosts + chroot, session_timeout_ms / 1000, handler=FakeHandler(host), logger=logger, client_id=session
    )
    client._connection = FakeConnection(client, host)
    if session is None:
        host.connections.append(client._connection)
    return client


class _NotAnsweredYet(Exception):  # noqa: N818 -- not an error
    """Raised while the answer to Connect has not arrived yet."""


class FakeSocket:
    """The client's socket of one connection. Shutting it down ends only that connection."""

    def __init__(self, connection: FakeConnection, link: Link) -> None:
        self._connection = connection
        self._link = link

    def shutdown(self, _how: int) -> None:
        """Close the connection."""
        self._connection.shut_down(self._link)


class FakeConnection:
    """Replaces kazoo's ConnectionHandler. Its private names are those that KazooClient uses."""

    def __init__(self, client: KazooClient, host: Host) -> None:
        self._client = client
        self._host = host
        self._timeline = host.timeline
        self._link: Link | None = None
        self._connected = False
        self._granted: Granted | None = None
        self._round: Iterator[FakeServer] = iter(())
        self._backoff = Backoff(
            FIRST_ROUND_PAUSE_S,
            LONGEST_ROUND_PAUSE_S,
            lambda: host.timeline.random.uniform(1 - ROUND_JITTER, 1 + ROUND_JITTER),
        )
        self._xid = 0
        self._read_timeout_s = 0.0
        self._last_sent_s = 0.0
        self._ping_outstanding = False
        self.stopped = True
        #: The number of sessions so far. kazoo opens another session after an expiry.
        self.sessions = 0
        self._write_sock = self
        self._socket: FakeSocket | None = None

    @property
    def last_zxid(self) -> int:
        """The zxid of the newest answer."""
        return int(self._client.last_zxid)

    # Called by KazooClient and by coordination.session

    def start(self) -> None:
        self.stopped = False
        self._timeline.after(0.0, self._host.run, self._next_round)

    def stop(self, timeout: float | None = None) -> bool:
        """
        Wait until the connection has ended, and return whether it has. During a step, return True at once: the
        connection ends later.
        """
        if not self.stopped and self._link is None:
            self._end()
        return run_until(self._timeline, lambda: self.stopped, timeout) or self._timeline.stepping

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def send(self, _wake: bytes) -> None:
        """Send the requests in the client's queue, or end if the client stops. kazoo wakes its thread by this call."""
        if self._connected:
            self._flush()
        elif self._client._stopped.is_set() and self._link is None and not self.stopped:
            self._end()

    def shut_down(self, link: Link) -> None:
        """Close a connection. The client notices this in the next step."""
        link.close_by_client()
        self._timeline.after(0.0, self._host.run, self._dropped, link)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """
        Start the time limit of Connect at the first call, and raise ``_NotAnsweredYet``. Return the answer at the
        second call.
        """
        if self._granted is None:
            self._timeline.after(timeout, self._host.run, self._unanswered, self._link)
            raise _NotAnsweredYet
        return self._granted, None

    # Connecting

    def _next_round(self) -> None:
        servers = list(self._host.servers)
        self._timeline.random.shuffle(servers)
        self._round = iter(servers)
        self._next()

    def _next(self) -> None:
        """Try the next server."""
        if self.stopped:
            return
        if self._client._stopped.is_set():
            self._end()
            return
        server = next(self._round, None)
        if server is None:
            self._timeline.after(self._backoff.next_s(), self._host.run, self._next_round)
            return
        if self._client._state != KeeperState.CONNECTING:
            self._client._session_callback(KeeperState.CONNECTING)
        if not self._host.reaches(server):
            # Either the network refuses the connection, or the client waits until the time limit.
            silent = self._timeline.random.random() < 0.5
            limit_s = connect_limit_s(self._client._session_timeout) if silent else self._host.ensemble.delay_s()
            self._timeline.after(limit_s, self._host.run, self._next)
        elif not server.serving:
            self._timeline.after(self._host.ensemble.delay_s(), self._host.run, self._next)
        else:
            self._connect(server)

    def _connect(self, server: FakeServer) -> None:
        client = self._client
        self._link, self._granted, self._xid = self._host.connect(server, self), None, 0
        self._socket = FakeSocket(self, self._link)
        request = Connect(
            0, client.last_zxid, client._session_timeout, client._session_id or 0, client._session_passwd, False
        )
        try:
            self._invoke(client._session_timeout / 1000 / len(client.hosts), request)
        except _NotAnsweredYet:
            self._link.to_server((0, request))

    def _unanswered(self, link: Link) -> None:
        if link is self._link and not self._connected:
            link.close_by_client()
            self._dropped(link)

    def _welcomed(self, granted: Granted) -> None:
        client = self._client
        self._granted = granted
        self._invoke(0.0, Connect(0, 0, 0, 0, b"", False))
        if granted.time_out <= 0:
            self._lose_link()
            client._session_callback(KeeperState.EXPIRED_SESSION)
            self._next()
            return
        if client._session_id is None:
            self.sessions += 1
            self._host.opened_session(self, granted.session_id)
        client._session_id, client._session_passwd = granted.session_id, granted.passwd
        self._read_timeout_s = granted.time_out / 1000 * 2 / 3
        self._connected, self._ping_outstanding = True, False
        self._backoff.reset()
        self._last_sent_s = self._timeline.now_s
        client._session_callback(KeeperState.CONNECTED)
        self._watch_silence(self._link)
        self._flush()

    # Connected

    def _flush(self) -> None:
        client, link = self._client, self._link
        queue = client._queue
        while queue and link is not None:
            request, answer = queue.popleft()
            self._xid = xid = self._xid + 1
            client._pending.append((request, answer, xid))
            link.to_server((xid, request))
            self._last_sent_s = self._timeline.now_s

    def _watch_silence(self, link: Link | None) -> None:
        """
        Ping the server if nothing was sent for a third of the timeout. Disconnect if the ping has no answer for another
        third.
        """
        if link is not self._link or link is None:
            return
        due_s = self._last_sent_s + self._read_timeout_s / 2 - self._timeline.random.uniform(0.01, 0.4)
        if self._timeline.now_s >= due_s:
            if self._ping_outstanding:
                link.close_by_client()
                self._dropped(link)
                return
            self._ping_outstanding = True
            self._last_sent_s = self._timeline.now_s
            link.to_server((PING_XID, Ping()))
            due_s = self._timeline.now_s + self._read_timeout_s / 2
        self._timeline.at(due_s, self._host.run, self._watch_silence, link)

    def receive(self, link: Link, message: Any) -> None:
        """Receive a message from a server."""
        self._host.run(self._received, link, message)

    def _received(self, link: Link, message: Any) -> None:
        if link is not self._link:
            return
        kind = type(message)
        if kind is Reply:
            if message.xid == PING_XID:
                self._ping_outstanding = False
            else:
                self._answered(message)
        elif kind is Event:
            self._fired(message)
        else:
            self._welcomed(message)

    def _answered(self, reply: Reply) -> None:
        client = self._client
        request, answer, _ = client._pending.popleft()
        kind = type(request)
        client.last_zxid = reply.zxid or client.last_zxid
        if reply.error is not None:
            if answer is not None:
                answer.set_exception(reply.error)
        elif answer is not None:
            value = Transaction.unchroot(client, reply.value) if kind is Transaction else reply.value
            watcher = getattr(request, "watcher", None)
            if watcher and not client._stopped.is_set():
                children = kind is GetChildren or kind is GetChildren2
                (client._child_watchers if children else client._data_watchers)[request.path].add(watcher)
            answer.set(value)
        if kind is Close:
            self._lose_link()
            self._end()

    def _fired(self, event: Event) -> None:
        client = self._client
        watchers = list(client._data_watchers.pop(event.path, ())) if event.kind != 4 else []
        if event.kind in (DELETED, 4):
            watchers += client._child_watchers.pop(event.path, ())
        if not client._stopped.is_set() and not self._host.loses_events(event.path):
            watched = WatchedEvent(EVENT_TYPE_MAP[event.kind], client._state, client.unchroot(event.path))
            for watcher in watchers:
                client.handler.dispatch_callback(Callback("watch", watcher, (watched,)))

    # Disconnecting

    def closed(self, link: Link) -> None:
        """Handle a connection that the server closed, or that broke."""
        self._host.run(self._dropped, link)

    def _dropped(self, link: Link) -> None:
        if link is self._link:
            self._lose_link()
            if self._client._state != KeeperState.CONNECTING:
                self._client._session_callback(KeeperState.CONNECTING)
            self._next()

    def _lose_link(self) -> None:
        if self._link is not None:
            self._link.close_by_client()
        self._link, self._connected = None, False

    def _end(self) -> None:
        self.stopped = True
        self._client._session_callback(KeeperState.CLOSED)
