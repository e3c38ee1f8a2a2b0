"""
One ZooKeeper session: opened once, closed once, never used again.

kazoo runs callbacks on threads of its own and, after an expiry, goes on silently with a new session. Here everything
arrives on the event loop, and the end of the session is the end of this object: whatever is asked of it afterwards,
and whatever was still unanswered, raises SessionLostError.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from socket import socket
from typing import Any, NamedTuple

from kazoo.exceptions import (
    ConnectionLoss,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
)
from kazoo.protocol.states import KazooState, WatchedEvent

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.session.delivery_gate import Gate
from kiel_groups.coordination.session.session_close import SessionClose
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.coordination.zookeeper.kazoo_client import Connection, overhear_connect
from kiel_groups.coordination.zookeeper.pending_requests import PendingRequests
from kiel_groups.coordination.zookeeper.transaction_results import MOVED, answer_of, tells_of_move, transaction_of
from kiel_groups.errors import ChrootMissingError, CoordinationError, SessionLostError
from kiel_groups.group.znodes.transactions import (
    Answer,
    Create,
    Done,
    Failure,
    Operation,
    Refused,
    Unknown,
)
from kiel_groups.metrics import Metrics

__all__ = ["Session", "SessionEvent", "Node"]

log = logging.getLogger(__name__)

_LOST = (ConnectionLoss, OperationTimeoutError)
#: How often a gate that is not open is looked at, in seconds. It opens from another thread, and seldom.
GATE_PAUSE_S = 0.02

#: Reads that one call has under way at once; more only fill kazoo's queue, and heartbeats wait behind them.
MOST_READS = 500


class SessionEvent(Enum):
    #: The connection broke; the session may still live.
    SUSPENDED = auto()
    #: The connection is back, on the same session; watches are gone and must be set anew.
    RESUMED = auto()
    #: The session is over. Final.
    ENDED = auto()


class Node(NamedTuple):
    """
    A znode as read: ``owner`` is the session of an ephemeral one, 0 otherwise; ``pzxid`` that of the last change of its
    children.
    """

    data: bytes
    version: int
    czxid: int
    mzxid: int
    owner: int
    pzxid: int = 0


Watcher = Callable[[], None]


class Session:
    """
    A session, from the event loop's side.

    Reads wait for a broken connection to come back; transactions do not, they answer Unknown. ``listener`` hears of
    the connection's states, on the loop.
    """

    def __init__(self, config: ZooKeeperConfig, metrics: Metrics, listener: Callable[[SessionEvent], None]) -> None:
        self.gate = Gate()
        #: Called on kazoo's thread whenever there is a connection (again).
        self.on_connected: Callable[[], None] = _nothing
        self.ended: str | None = None
        self._config = config
        self._metrics = metrics
        self._listener = listener
        self._id = 0
        self._opened = False
        self._loop = asyncio.get_running_loop()
        self._close_begun = threading.Lock()
        self._closed = asyncio.Event()
        #: Held until the session is over, for those who have no loop to wait on.
        self._open_lock = threading.Lock()
        self._open_lock.acquire()
        self._requests = PendingRequests(self._call_loop)
        self._connected = asyncio.Event()
        self._watchers: dict[Watcher, Callable[[WatchedEvent], None]] = {}
        self.client = runtime.client(config)
        self.connection = Connection(self.client, metrics)
        self._close = SessionClose(config, self.client, self._client_stopped, self._open_lock.release)

    @property
    def id(self) -> int:
        """The session's number; 0 before it is open."""
        return self._id

    @property
    def timeout_ms(self) -> int:
        """The session timeout that the server granted, in milliseconds; never more than at first."""
        return self.gate.timeout_ms

    @property
    def connected(self) -> bool:
        return self._connected.is_set() and self.ended is None

    async def trusted(self) -> None:
        """
        Wait until the gate is open; to be asked before every write that only an owner may make.

        Raises:
            SessionLostError: It is shut for good.
        """
        while not self.gate.is_open(runtime.boot_time_s()):
            if self.gate.shut_reason is not None:
                raise SessionLostError(f"the ZooKeeper session is not trusted any more: {self.gate.shut_reason}")
            await asyncio.sleep(GATE_PAUSE_S)

    async def open(self) -> None:
        """
        Connect and wait for the session, however long it takes: the caller sets the limit.

        Raises:
            NoZooKeeperError: No host has an address.
            ChrootMissingError: The chroot does not exist.
            SessionLostError: The session is over already.
        """
        await runtime.check_hosts(self._config)
        overhear_connect(self.client, self._config.session_timeout_ms, self._granted)
        self.client.add_listener(self._state_changed)
        await runtime.in_thread(self.client.start_async, "connect")
        await self._connected.wait()
        if self._config.chroot and await self.get("/") is None:
            raise ChrootMissingError(
                f"the chroot {self._config.chroot} does not exist in ZooKeeper at {self._config.hosts};"
                " create it first, or leave it out of zk_hosts"
            )

    def _granted(self, session_id: int, timeout_ms: int) -> None:
        """On kazoo's thread, before anybody is told of the connection."""
        self._close.granted(session_id, timeout_ms)
        if self._id not in (0, session_id):
            # kazoo's next session, after an expiry or a refusal: none of ours.
            self.gate.shut("session over")
        elif timeout_ms > 0:
            self._id = session_id
            self.gate.grant(timeout_ms)

    def _state_changed(self, state: str) -> None:
        """On kazoo's thread: the gate follows at once, the loop is told."""
        self.gate.suspended = state != KazooState.CONNECTED
        if state == KazooState.LOST:
            self.gate.shut("session over")
        elif state == KazooState.CONNECTED:
            self.on_connected()
        self._close.state_changed(state)
        self._call_loop(self._on_state, state)

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._end("expired or closed by the server")
        elif state == KazooState.SUSPENDED:
            self._connected.clear()
            self._listener(SessionEvent.SUSPENDED)
        elif not self._connected.is_set():
            self._connected.set()
            if self._opened and not self.ended:
                self._listener(SessionEvent.RESUMED)
            self._opened = True

    def _end(self, reason: str) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        self.gate.shut(reason)
        self._requests.end(reason)
        self._listener(SessionEvent.ENDED)

    def end(self, reason: str) -> None:
        """Give the session up: the gate is shut, everything unanswered fails; ``close`` is still to be called."""
        self._end(reason)

    def abandon(self, reason: str) -> None:
        """From any thread: give the session up and close it, although the event loop may never run again."""
        self.gate.shut(reason)
        self._call_loop(self._end, reason)
        self._begin_closing()

    def abandoned_within(self, reason: str, timeout_s: float) -> bool:
        """Without an event loop: ``abandon``, and wait; whether the session was closed in that time."""
        self.abandon(reason)
        closed = self._open_lock.acquire(timeout=timeout_s)
        if closed:
            self._open_lock.release()
        return closed

    async def close(self) -> None:
        """
        Close the session, once; that deletes its ephemeral znodes at once.

        Return when that is done, or at once if there is no connection. In the latter case the session is closed in the
        background, on the next connection, unless the process or the session ends before that.
        """
        self.gate.shut("closed")
        self._begin_closing()
        await self._closed.wait()
        self._end("closed")

    def _begin_closing(self) -> None:
        """From any thread, kazoo's too; once."""
        if self._close_begun.acquire(blocking=False):
            self._close.begin()

    def _client_stopped(self) -> None:
        self._call_loop(self._closed.set)

    def _call_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """From any thread; a loop that is closed by now has nobody left to tell."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("the event loop is closed; an answer of ZooKeeper is dropped")

    async def _read(self, ask: Callable[..., Any], path: str, watcher: Watcher | None) -> Any:
        return (await self._read_many(ask, [path], [watcher]))[0]

    async def _read_many(
        self, ask: Callable[..., Any], paths: Sequence[str], watchers: Sequence[Watcher | None] | None
    ) -> list[Any]:
        """Pipelined reads, again and again while the connection breaks; None where there is no such znode."""
        found: list[Any] = [None] * len(paths)
        pairs = zip(paths, watchers or [None] * len(paths), strict=True)
        asking = [partial(ask, path, self._kazoo_watcher(watcher)) for path, watcher in pairs]
        waiting = list(range(len(paths)))
        while waiting:
            asked, waiting = waiting[:MOST_READS], waiting[MOST_READS:]
            sent = self._requests.send([asking[number] for number in asked])
            for number, answer in zip(asked, await self._requests.answers(sent), strict=True):
                if isinstance(answer, _LOST):
                    self._metrics.count("zookeeper_reads_repeated")
                    waiting.append(number)
                elif isinstance(answer, NoAuthError):
                    raise CoordinationError(f"ZooKeeper refused to read {paths[number]}: not authorised (its ACL)")
                elif isinstance(answer, Exception) and not isinstance(answer, NoNodeError):
                    raise answer
                elif not isinstance(answer, Exception):
                    found[number] = answer
        return found

    def _kazoo_watcher(self, watcher: Watcher | None) -> Callable[[WatchedEvent], None] | None:
        """kazoo's side of a watcher: the same one each time, so that setting a watch twice fires it once."""
        if watcher is None:
            return None
        if watcher not in self._watchers:
            self._watchers[watcher] = lambda _event: self._call_loop(watcher)
        return self._watchers[watcher]

    def forget(self, watcher: Watcher) -> None:
        """Drop what is kept for a watcher that will not be used again."""
        self._watchers.pop(watcher, None)

    async def get(self, path: str, watcher: Watcher | None = None) -> Node | None:
        """
        Data and state of a znode, None where there is none; a watcher is set on an existing one only.

        A watcher is called on the loop when the znode changes and when the connection breaks: a hint to look again.
        """
        return _with_data(await self._read(self.client.get_async, path, watcher))

    async def exists(self, path: str, watcher: Watcher | None = None) -> Node | None:
        """State of a znode without its data, None where there is none; a watcher is set in both cases."""
        return _without_data(await self._read(self.client.exists_async, path, watcher))

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str] | None:
        """Names of the children, None where there is no such znode."""
        children: list[str] | None = await self._read(self.client.get_children_async, path, watcher)
        return children

    async def get_many(self, paths: Sequence[str], watchers: Sequence[Watcher] | None = None) -> list[Node | None]:
        """``get`` of many znodes, each with its watcher, pipelined; in the order of ``paths``."""
        return [_with_data(found) for found in await self._read_many(self.client.get_async, paths, watchers)]

    async def exists_many(self, paths: Sequence[str], watchers: Sequence[Watcher] | None = None) -> list[Node | None]:
        """``exists`` of many znodes, each with its watcher, pipelined; in the order of ``paths``."""
        return [_without_data(stat) for stat in await self._read_many(self.client.exists_async, paths, watchers)]

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """``children`` of many znodes, pipelined; in the order of ``paths``."""
        return await self._read_many(self.client.get_children_async, paths, None)

    async def transact(self, operations: Iterable[Operation]) -> Answer:
        """
        Send one transaction.

        A done one proves the session to a quorum, and renews the lease from the moment it was sent.

        Raises:
            SessionLostError: The session is over.
            CoordinationError: ZooKeeper refused it for the lack of rights.
        """
        return await self.submit(operations)

    def submit(self, operations: Iterable[Operation]) -> Coroutine[Any, Any, Answer]:
        """
        Send one transaction now; what this returns is to be awaited for the answer, as of ``transact``.

        Requests are answered in their order: what is read after this call is no older than the transaction.

        Raises:
            SessionLostError: The session is over.
        """
        listed = list(operations)
        used, sent_s = self.connection.current, runtime.boot_time_s()
        sent = self._requests.send([transaction_of(self.client, listed).commit_async])
        return self._outcome(listed, sent_s, used, sent)

    async def _outcome(
        self, listed: Sequence[Operation], sent_s: float, used: socket | None, sent: asyncio.Future[list[Any]]
    ) -> Answer:
        (results,) = await self._requests.answers(sent)
        moved = tells_of_move(results)
        if moved:
            self.connection.leave(used, MOVED)
        if moved or isinstance(results, _LOST):
            self._metrics.count("zookeeper_transactions_unknown")
            return Unknown()
        if isinstance(results, Exception):
            raise results
        answer = answer_of(results)
        if isinstance(answer, Done):
            self.gate.renew(sent_s)
        elif isinstance(answer, Refused) and answer.failure is Failure.NO_AUTH:
            raise CoordinationError(f"ZooKeeper refused to write {listed[answer.index].path}: not authorised (its ACL)")
        return answer

    async def ensure(self, folders: Iterable[str]) -> None:
        """Create persistent znodes, and those above them, where they are missing."""
        missing = list(folders)
        while True:
            missing = await self._missing(missing)
            # Above what is there, nothing is missing.
            for folder in await self._missing(parent for known in missing for parent in _with_parents(known)):
                answer: Answer = Unknown()
                while isinstance(answer, Unknown):
                    answer = await self.transact([Create(folder)])
                if (
                    isinstance(answer, Refused)
                    and answer.failure is Failure.NO_NODE
                    and await self.get("/") is not None
                ):
                    # What stood above it was cleared away since; without the chroot there would be no end to this.
                    break
                if isinstance(answer, Refused) and answer.failure is not Failure.NODE_EXISTS:
                    raise CoordinationError(f"ZooKeeper refused to create {folder}: {answer.failure.name}")
            else:
                return

    async def _missing(self, paths: Iterable[str]) -> list[str]:
        listed = sorted(set(paths))
        return [path for path, node in zip(listed, await self.exists_many(listed), strict=True) if node is None]


def _nothing() -> None:
    """Nobody wants to know."""


def _with_parents(path: str) -> list[str]:
    """``/a/b`` → ``/a``, ``/a/b``."""
    names = path.strip("/").split("/")
    return ["/" + "/".join(names[:count]) for count in range(1, len(names) + 1)]


def _with_data(found: Any) -> Node | None:
    # Null is what zkCli and Kafka write where no data is given.
    return None if found is None else _node(found[0] or b"", found[1])


def _without_data(stat: Any) -> Node | None:
    return None if stat is None else _node(b"", stat)


def _node(data: bytes, stat: Any) -> Node:
    return Node(data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner, stat.pzxid)
