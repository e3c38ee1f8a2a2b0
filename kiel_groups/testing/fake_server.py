"""One server of a fake ensemble: its copy of the znodes, its clients, their watches, and what it can still do alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Connect, Exists, GetChildren, GetChildren2, GetData, Ping, Sync, Transaction

from kiel_groups.testing.fake_network import Event, Granted, Link, Reply
from kiel_groups.testing.znode_tree import Change, Kind, Tree

__all__ = ["Entry", "FakeServer", "Question", "Quorum"]

CREATED, DELETED, CHANGED, CHILDREN = 1, 2, 3, 4
PING_XID = -2

#: What a server takes in one request (jute.maxbuffer); a longer one makes it close the connection.
MOST_BYTES = 0xFFFFF


class Question:
    """A request of one client on its way through a server; answered in the order in which they came."""

    __slots__ = ("link", "reply", "request", "xid")

    def __init__(self, link: Link, xid: int, request: Any) -> None:
        self.link = link
        self.xid = xid
        self.request = request
        self.reply: Reply | None = None


@dataclass(slots=True)
class Entry:
    """One committed request, refused ones included: they, too, went through the quorum."""

    zxid: int
    session_id: int
    server: FakeServer | None
    question: Question | None = None
    changes: list[Change] = field(default_factory=list)
    value: Any = None
    error: Exception | None = None
    opens: bool = False
    closes: bool = False
    #: It came by a connection that its session has left: the server is to close it.
    strays: bool = False


class Quorum(Protocol):
    """What a server needs of the ensemble around it: the leader, the log, and the sessions."""

    def believes_to_lead(self, server: FakeServer) -> bool:
        """Whether this server is the leader as far as it knows."""

    def is_astray(self, server: FakeServer, link: Link) -> bool:
        """Whether the session of this link has connected to another server meanwhile."""

    def submit(self, server: FakeServer, question: Question) -> None:
        """Have the leader commit a write."""

    def touch(self, session_id: int) -> None:
        """Renew a session."""

    def open_session(self, server: FakeServer, link: Link, asked_ms: int) -> None:
        """Have the leader create a session."""

    def reopen_session(self, server: FakeServer, link: Link, request: Any) -> None:
        """Have the leader move a session to this server."""

    def take_over(self, server: FakeServer, session_id: int) -> int:
        """Move a session to this server, which leads; returns its timeout in milliseconds."""

    def password(self, session_id: int) -> bytes:
        """The password by which a client resumes the session."""


class FakeServer:
    """
    A server.

    ``contact``: it follows, or is, a leader that has a quorum. Without contact it answers pings and reads from what it
    knows, holds writes, and after its patience gives up: closes its clients' connections and takes none (``serving``).
    """

    def __init__(self, quorum: Quorum, number: int) -> None:
        self.number = number
        self.tree = Tree()
        #: How many entries of the log it has applied, and the zxid of the last.
        self.applied = 0
        self.zxid = 0
        self.up = True
        self.frozen = False
        self.cut = False
        self.contact = True
        #: How often it has lost contact: its patience is as long each time.
        self.losses = 0
        self.serving = True
        #: How much later than others it applies what the leader commits, in seconds.
        self.lag_s = 0.0
        self.links: dict[Link, deque[Question]] = {}
        #: Writes and connects that wait for a leader.
        self.held: list[Callable[[], None]] = []
        #: Sessions that gave a sign of life while there was no leader to be told of it.
        self.heard: set[int] = set()
        self._quorum = quorum
        self._sessions: set[int] = set()
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._data_watches: dict[str, dict[Link, None]] = {}
        self._child_watches: dict[str, dict[Link, None]] = {}

    def __repr__(self) -> str:
        return f"server {self.number}"

    # Clients

    def accept(self, link: Link) -> None:
        """A client has connected."""
        self.links[link] = deque()

    def receive(self, link: Link, message: Any) -> None:
        """A client sends ``(xid, request)``."""
        if self.frozen:
            self._inbox.append((self.receive, (link, message)))
            return
        questions = self.links.get(link)
        if questions is None:
            return
        if self.contact or self._quorum.believes_to_lead(self):
            self._quorum.touch(link.session_id)
        else:
            self.heard.add(link.session_id)
        xid, request = message
        kind = type(request)
        if kind is Connect:
            self._connect(link, request)
        elif (kind in _READS or kind is Ping or kind is Sync) and self._quorum.is_astray(self, link):
            self._drop(link)
        elif kind is Ping:
            link.to_client(Reply(PING_XID, self.zxid, None, None))
        elif not link.session_id or _too_large(request):
            self._drop(link)
        elif kind in _READS and not questions:
            link.to_client(self._read(link, xid, request))
        else:
            question = Question(link, xid, request)
            questions.append(question)
            if kind is Sync and not self.contact and self._quorum.believes_to_lead(self):
                # Seen on 3.4.6: a leader cut off from its quorum answers these.
                question.reply = Reply(xid, self.zxid, None, request.path)
                self._answer(link)
            elif kind not in _READS:
                self._quorum.submit(self, question)

    def closed(self, link: Link) -> None:
        """A client has closed its connection, or lost it."""
        if self.frozen:
            self._inbox.append((self.closed, (link,)))
        else:
            self.links.pop(link, None)

    def thaw(self) -> None:
        """Go on where it was stopped: with what arrived meanwhile."""
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for function, arguments in inbox:
            function(*arguments)

    def close_clients(self) -> None:
        """Close all connections, and forget what hangs on them."""
        for link in list(self.links):
            link.close_by_server()
        self.links.clear()
        self.held.clear()
        self.heard.clear()
        self._data_watches.clear()
        self._child_watches.clear()

    def _drop(self, link: Link) -> None:
        self.links.pop(link, None)
        link.close_by_server()

    def _connect(self, link: Link, request: Any) -> None:
        if request.last_zxid_seen > self.zxid:
            self._drop(link)  # The client has seen a later state than this server has.
        elif not request.session_id:
            self._quorum.open_session(self, link, request.time_out)
        elif self.contact:
            self._quorum.reopen_session(self, link, request)
        elif self._quorum.believes_to_lead(self):
            known = request.session_id in self._sessions
            self.welcome(link, request.session_id, self._quorum.take_over(self, request.session_id) if known else 0)
        else:
            self.held.append(lambda: self._connect(link, request))

    def welcome(self, link: Link, session_id: int, granted_ms: int) -> None:
        """Answer Connect; 0 ms: the session is over."""
        if link in self.links:
            link.session_id = session_id if granted_ms else 0
            link.to_client(Granted(0, granted_ms, session_id, self._quorum.password(session_id)))

    def _answer(self, link: Link) -> None:
        """Answer what can be: in order, and so no read before the writes that were sent before it."""
        questions = self.links.get(link)
        while questions:
            question = questions[0]
            reply = question.reply
            if reply is None:
                if type(question.request) not in _READS:
                    return
                reply = self._read(link, question.xid, question.request)
            questions.popleft()
            link.to_client(reply)

    # Reads

    def _read(self, link: Link, xid: int, request: Any) -> Reply:
        kind, path, tree = type(request), request.path, self.tree
        znode = tree.znodes.get(path)
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
        """Take over what the leader committed, tell who watches, then answer who asked."""
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
        question = entry.question
        if entry.strays and entry.server is self and question is not None:
            self._drop(question.link)
        elif question is not None and entry.server is self:
            question.reply = Reply(question.xid, entry.zxid, entry.error, entry.value)
            self._answer(question.link)
        if entry.closes:
            self._sessions.discard(entry.session_id)
            for link in [link for link in self.links if link.session_id == entry.session_id]:
                self._drop(link)

    def _fire(self, change: Change) -> None:
        kind, path = change.kind, change.path
        told = self._data_watches.pop(path, None)
        if kind is Kind.DELETED and path in self._child_watches:
            told = (told or {}) | self._child_watches.pop(path)
        self._tell(told, _EVENTS[kind], path)
        if kind is not Kind.CHANGED:
            self._tell(self._child_watches.pop(change.parent, None), CHILDREN, change.parent)

    def _tell(self, links: dict[Link, None] | None, kind: int, path: str) -> None:
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
    """Whether a request exceeds jute.maxbuffer; few come near it, so that most need no exact measure."""
    kind = type(request)
    if kind in _READS:
        rough = len(request.path)
    elif kind is Transaction:
        # Paths and data, and a little for each operation.
        rough = sum([100 + sum([len(part) for part in o if type(part) in _TEXTS]) for o in request.operations])
    else:
        rough = sum(len(part) for part in request if type(part) in _TEXTS)
    return rough > MOST_BYTES // 4 and len(request.serialize()) + 8 > MOST_BYTES
