"""One server of a fake ensemble: its copy of the znodes, its clients and watches, and its answers without a leader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.serialization import Connect, Exists, GetChildren, GetChildren2, GetData, Ping, Sync, Transaction

from tests.fakes.fake_network import Event, Granted, Link, Reply
from tests.fakes.znode_tree import Change, Kind, Tree

__all__ = ["Entry", "FakeServer", "PendingRequest", "Quorum"]

CREATED, DELETED, CHANGED, CHILDREN = 1, 2, 3, 4
PING_XID = -2

#: The longest request that a server accepts (jute.maxbuffer). A longer request closes its connection.
MOST_BYTES = 0xFFFFF


class PendingRequest:
    """A client's request that is not answered yet. A server answers the requests of a connection in order."""

    __slots__ = ("link", "reply", "request", "xid")

    def __init__(self, link: Link, xid: int, request: Any) -> None:
        self.link = link
        self.xid = xid
        self.request = request
        self.reply: Reply | None = None


@dataclass(slots=True)
class Entry:
    """
    An entry of the log: a committed request. Refused requests are entries, too, because they went through the quorum.
    """

    zxid: int
    session_id: int
    server: FakeServer | None
    pending: PendingRequest | None = None
    changes: list[Change] = field(default_factory=list)
    value: Any = None
    error: Exception | None = None
    opens: bool = False
    closes: bool = False
    #: Whether the request came on a connection that its session has left. The server must close that connection.
    by_old_connection: bool = False


class Quorum(Protocol):
    """The part of the ensemble that a server uses: the leader, the log, and the sessions."""

    def believes_to_lead(self, server: FakeServer) -> bool:
        """Return whether this server regards itself as the leader."""

    def has_moved(self, server: FakeServer, link: Link) -> bool:
        """Return whether the session of this link has connected to another server, as far as this server knows."""

    def submit(self, server: FakeServer, pending: PendingRequest) -> None:
        """Send a write to the leader, which commits it."""

    def touch(self, session_id: int) -> None:
        """Renew a session."""

    def open_session(self, server: FakeServer, link: Link, asked_ms: int) -> None:
        """Ask the leader to create a session."""

    def reopen_session(self, server: FakeServer, link: Link, request: Any) -> None:
        """Ask the leader to move a session to this server."""

    def reopen_without_quorum(self, server: FakeServer, session_id: int) -> int:
        """
        Move a session to this server, which regards itself as the leader. Return the session's timeout in milliseconds.
        """

    def password(self, session_id: int) -> bytes:
        """Return the password by which a client resumes the session."""


class FakeServer:
    """
    A server of a fake ensemble.

    ``contact`` says that the server follows, or is, a leader with a quorum. Without contact, the server still answers
    pings and reads, and queues writes. After the sync limit, it stops ``serving``: it closes its clients' connections
    and accepts none.
    """

    def __init__(self, quorum: Quorum, number: int) -> None:
        self.number = number
        self.tree = Tree()
        #: The number of entries of the log that this server has applied, and the zxid of the last one.
        self.applied = 0
        self.zxid = 0
        self.up = True
        self.frozen = False
        self.cut = False
        self.contact = True
        #: The number of times that this server has lost contact. A sync limit's timer is valid only for its own loss.
        self.losses = 0
        self.serving = True
        #: The additional delay with which this server applies entries, in seconds.
        self.lag_s = 0.0
        self.links: dict[Link, deque[PendingRequest]] = {}
        #: Writes and connects that wait for a leader.
        self.waiting_for_leader: list[Callable[[], None]] = []
        #: Sessions whose clients sent something while there was no leader. The next leader renews them.
        self.sessions_to_touch: set[int] = set()
        self._quorum = quorum
        self._sessions: set[int] = set()
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._data_watches: dict[str, dict[Link, None]] = {}
        self._child_watches: dict[str, dict[Link, None]] = {}

    def __repr__(self) -> str:
        return f"server {self.number}"

    # Clients

    def accept(self, link: Link) -> None:
        """Accept the connection of a client."""
        self.links[link] = deque()

    def receive(self, link: Link, message: Any) -> None:
        """Handle a client's ``(xid, request)``."""
        if self.frozen:
            self._inbox.append((self.receive, (link, message)))
            return
        queue = self.links.get(link)
        if queue is None:
            return
        if self.contact or self._quorum.believes_to_lead(self):
            self._quorum.touch(link.session_id)
        else:
            self.sessions_to_touch.add(link.session_id)
        xid, request = message
        kind = type(request)
        if kind is Connect:
            self._connect(link, request)
        elif (kind in _READS or kind is Ping or kind is Sync) and self._quorum.has_moved(self, link):
            self._close_link(link)
        elif kind is Ping:
            link.to_client(Reply(PING_XID, self.zxid, None, None))
        elif not link.session_id or _too_large(request):
            self._close_link(link)
        elif kind in _READS and not queue:
            link.to_client(self._read(link, xid, request))
        else:
            pending = PendingRequest(link, xid, request)
            queue.append(pending)
            if kind is Sync and not self.contact and self._quorum.believes_to_lead(self):
                # As on 3.4.6: a leader that is cut off from its quorum still answers syncs.
                pending.reply = Reply(xid, self.zxid, None, request.path)
                self._answer(link)
            elif kind not in _READS:
                self._quorum.submit(self, pending)

    def closed(self, link: Link) -> None:
        """Handle a connection that a client closed, or that broke."""
        if self.frozen:
            self._inbox.append((self.closed, (link,)))
        else:
            self.links.pop(link, None)

    def thaw(self) -> None:
        """Continue after a freeze, with the messages that arrived meanwhile."""
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for function, arguments in inbox:
            function(*arguments)

    def close_clients(self) -> None:
        """Close all connections, and drop their watches and queued requests."""
        for link in list(self.links):
            link.close_by_server()
        self.links.clear()
        self.waiting_for_leader.clear()
        self.sessions_to_touch.clear()
        self._data_watches.clear()
        self._child_watches.clear()

    def _close_link(self, link: Link) -> None:
        self.links.pop(link, None)
        link.close_by_server()

    def _connect(self, link: Link, request: Any) -> None:
        if request.last_zxid_seen > self.zxid:
            self._close_link(link)  # The client has seen a newer state than this server has.
        elif not request.session_id:
            self._quorum.open_session(self, link, request.time_out)
        elif self.contact:
            self._quorum.reopen_session(self, link, request)
        elif self._quorum.believes_to_lead(self):
            known = request.session_id in self._sessions
            granted_ms = self._quorum.reopen_without_quorum(self, request.session_id) if known else 0
            self.answer_connect(link, request.session_id, granted_ms)
        else:
            self.waiting_for_leader.append(lambda: self._connect(link, request))

    def answer_connect(self, link: Link, session_id: int, granted_ms: int) -> None:
        """Answer Connect. A ``granted_ms`` of 0 means that the session has ended."""
        if link in self.links:
            link.session_id = session_id if granted_ms else 0
            link.to_client(Granted(0, granted_ms, session_id, self._quorum.password(session_id)))

    def _answer(self, link: Link) -> None:
        """Send the answers that are ready, in order. A read waits for the writes that were sent before it."""
        queue = self.links.get(link)
        while queue:
            pending = queue[0]
            reply = pending.reply
            if reply is None:
                if type(pending.request) not in _READS:
                    return
                reply = self._read(link, pending.xid, pending.request)
            queue.popleft()
            link.to_client(reply)

    # Reads

    def _read(self, link: Link, xid: int, request: Any) -> Reply:
        kind, path, tree = type(request), request.path, self.tree
        znode = tree.znodes.get(path)
        if znode is not None and kind is not Exists and ("read", path) in tree.denied:
            return Reply(xid, self.zxid, NoAuthError(), None)
        if request.watcher and (znode is not None or kind is Exists):
            of_children = kind is GetChildren or kind is GetChildren2
            watches = self._child_watches if of_children else self._data_watches
            watches.setdefault(path, {})[link] = None
        value: Any = None
        if znode is None:
            return Reply(xid, self.zxid, None if kind is Exists else NoNodeError(), None)
        if kind is Exists:
            value = tree.stat(path)
        elif kind is GetData:
            value = znode.data, tree.stat(path)
        elif kind is GetChildren:
            value = tree.children(path)
        else:
            value = tree.children(path), tree.stat(path)
        return Reply(xid, self.zxid, None, value)

    # The log

    def apply(self, entry: Entry) -> None:
        """Apply a committed entry: make its changes, fire watches, and then answer the client that sent the request."""
        self.applied += 1
        self.zxid = entry.zxid
        tree, data_watches, child_watches = self.tree, self._data_watches, self._child_watches
        for change in entry.changes:
            tree.apply(change)
            path = change.path
            if path in data_watches or path in child_watches or change.parent in child_watches:
                self._fire(change)
        if entry.opens:
            self._sessions.add(entry.session_id)
        pending = entry.pending
        if entry.by_old_connection and entry.server is self and pending is not None:
            self._close_link(pending.link)
        elif pending is not None and entry.server is self:
            pending.reply = Reply(pending.xid, entry.zxid, entry.error, entry.value)
            self._answer(pending.link)
        if entry.closes:
            self._sessions.discard(entry.session_id)
            for link in [link for link in self.links if link.session_id == entry.session_id]:
                self._close_link(link)

    def _fire(self, change: Change) -> None:
        kind, path = change.kind, change.path
        watching = self._data_watches.pop(path, None)
        if kind is Kind.DELETED and path in self._child_watches:
            watching = (watching or {}) | self._child_watches.pop(path)
        self._notify(watching, _EVENTS[kind], path)
        if kind is not Kind.CHANGED:
            self._notify(self._child_watches.pop(change.parent, None), CHILDREN, change.parent)

    def _notify(self, links: dict[Link, None] | None, kind: int, path: str) -> None:
        if links is None:
            return
        event = Event(kind, path)
        for link in links:
            if link in self.links:
                link.to_client(event)


_READS = frozenset({Exists, GetData, GetChildren, GetChildren2})
_TEXTS = frozenset({str, bytes})
_EVENTS = {Kind.CREATED: CREATED, Kind.CHANGED: CHANGED, Kind.DELETED: DELETED}


def _too_large(request: Any) -> bool:
    """
    Return whether a request exceeds jute.maxbuffer. Only requests near this limit are serialized, because that is slow.
    """
    kind = type(request)
    if kind in _READS:
        estimate = len(request.path)
    elif kind is Transaction:
        # Paths and data, and 100 bytes for the rest of each operation.
        estimate = sum([100 + sum([len(part) for part in o if type(part) in _TEXTS]) for o in request.operations])
    else:
        estimate = sum(len(part) for part in request if type(part) in _TEXTS)
    return estimate > MOST_BYTES // 4 and len(request.serialize()) + 8 > MOST_BYTES
