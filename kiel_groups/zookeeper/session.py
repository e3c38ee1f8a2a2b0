"""Wrap one ZooKeeper session for the event loop: opened once, closed once, never used again."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError, OperationTimeoutError
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.security import ACL

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.errors import (
    AuthorizationError,
    ChrootMissingError,
    CoordinationError,
    CredentialsError,
    SessionLostError,
)
from kiel_groups.group.lease import answer_limit_s
from kiel_groups.group.znodes.transactions import Answer, Create, Done, Failure, Operation, Refused, Unknown
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.delivery_gate import GATE_PAUSE_S, DeliveryGate
from kiel_groups.zookeeper.kazoo_client import Connection, begin_stop, observe_connect
from kiel_groups.zookeeper.pending_requests import (
    ACL_REFUSED,
    MOVED,
    PendingRequests,
    acl_tries,
    answer_of,
    refuses_acl,
    reports_move,
    transaction_of,
)
from kiel_groups.zookeeper.rights import denied, right_of, tries
from kiel_groups.zookeeper.runtime import Runtime

log = logging.getLogger(__name__)


# Start the client of one ZooKeeper session, and close the session, whether or not the client is connected at that
# moment.
#
# A session that is not closed keeps its owner znodes for the whole session timeout, although its gate is shut and no
# consumer uses them. kazoo closes a session over its connection. Without a connection, kazoo's client stops and leaves
# the session open. Then a new client resumes the session, and its first request closes it.


#: The pause between two checks of a client, in seconds; a change of the session's state wakes the thread at once.
CLIENT_CHECK_S = 0.05
#: How long kazoo's thread may take to end when its client is closed, in seconds.
THREAD_S = 1.0


class SessionClose:
    """
    Starts and stops a session's client, and closes the session.

    If the session's own client has no connection, a new client closes the session. That client connects with the
    session's id and password, sends one request, Close, and stops. If a server answers that the session is over, kazoo
    would open a new session. The client is stopped before that.

    Args:
        config: The servers, and the session timeout to request.
        client: The session's own client.
        stopped: Called on this object's thread when the session's own client has ended, with or without a close.
        ended: Called on this object's thread at the end: the session is closed, was never opened, or must have expired.
        runtime: Clock, threads, and the clients that resume the session.
    """

    def __init__(
        self,
        config: ZooKeeperConfig,
        client: KazooClient,
        stopped: Callable[[], None],
        ended: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        self._config = config
        self._client = client
        self._stopped = stopped
        self._ended = ended
        self._runtime = runtime
        self._is_own = True
        self._is_closing = False
        #: This lock is held while the client starts and while it is stopped: if a stop came before the end of the
        #: start, the client would run on.
        self._start_lock = threading.Lock()
        #: Id and password; None before there was a session.
        self._session: tuple[int, bytes] | None = None
        self._timeout_ms = config.session_timeout_ms
        #: Whether a server has reported that the session is over.
        self._is_over = False
        self._connected = False
        #: When to give up, in seconds of boot time: by then the servers have expired the session themselves.
        self._give_up_s = float("inf")
        #: When the current client started to stop, in seconds of boot time; None before that.
        self._stopping_s: float | None = None
        self._ticker = runtime.ticker(self._step, "close")

    def start_client(self) -> None:
        """Start the session's own client, unless the close has begun. Any thread may call this method."""
        with self._start_lock:
            if not self._is_closing:
                self._client.start_async()

    def granted(self, session_id: int, timeout_ms: int) -> None:
        """Process a server's response to Connect. kazoo's thread calls this method."""
        if self._session is not None and (timeout_ms <= 0 or session_id != self._session[0]):
            self._is_over = True
            if not self._is_own:
                self._client._stopped.set()
        self._timeout_ms = max(self._timeout_ms, timeout_ms)

    def state_changed(self, state: str) -> None:
        """
        Process a change of the connection's state.

        kazoo's thread calls this method. The order in which kazoo calls its listeners is not fixed.
        """
        if state == KazooState.CONNECTED:
            self._connected = True
            self._session = self._session or self._client.client_id
        else:
            # Only the answer to Close ends a client that is connected.
            self._is_over |= state == KazooState.LOST and self._connected
            self._connected = False
        self._ticker.wake()

    def begin(self) -> None:
        """Start a thread that closes the session. Any thread may call this method, but only once."""
        self._give_up_s = self._runtime.boot_time_s() + self._timeout_ms / 1000
        # The caller must not block, so the flag is set without the lock. The stop waits for a start that does not see
        # the flag.
        self._is_closing = True
        self._ticker.start()

    def _step(self) -> float | None:
        """Perform the next step of the close. Return the seconds until the following step, or None at the end."""
        now_s, client = self._runtime.boot_time_s(), self._client
        if self._stopping_s is None:
            if self._is_own or client.connected or self._is_over or now_s >= self._give_up_s:
                self._stopping_s = now_s
                with self._start_lock:
                    begin_stop(client)
        elif client.client_state == KeeperState.CLOSED:
            self._end_client()
            if self._is_over or self._session is None or now_s >= self._give_up_s:
                self._ended()
                return None
            self._resume(self._session)
        elif now_s - self._stopping_s >= answer_limit_s(self._timeout_ms):
            # The server does not answer in time. Another server may.
            self._stopping_s = now_s
            self._drop_connection()
        return CLIENT_CHECK_S

    def _end_client(self) -> None:
        client = self._client
        try:
            client.handler.stop()
            client._connection.stop(THREAD_S)
            client.close()
        except Exception:
            log.debug("the ZooKeeper client of a closed session did not stop cleanly", exc_info=True)
        if self._is_own:
            self._stopped()
        elif self._is_over:
            log.info("closed a ZooKeeper session that was abandoned without a connection")

    def _resume(self, session: tuple[int, bytes]) -> None:
        client = self._runtime.client(self._config, session)
        observe_connect(client, self._config.session_timeout_ms, self.granted)
        client.add_listener(self.state_changed)
        former = self._client, self._is_own, self._stopping_s
        self._client, self._is_own, self._stopping_s = client, False, None
        try:
            client.start_async()
        except CredentialsError:
            log.debug("the session cannot be closed yet", exc_info=True)
            self._client, self._is_own, self._stopping_s = former

    def _drop_connection(self) -> None:
        try:
            self._client._connection._socket.shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):
            log.debug("the connection was closed already", exc_info=True)


# Wrap one ZooKeeper session for the event loop: opened once, closed once, never used again.
#
# kazoo runs callbacks on threads of its own and, after an expiry, silently continues with a new session. Here every
# result arrives on the event loop, and the end of the session is the end of the object: unanswered requests fail with
# SessionLostError, and so does every later request.


_LOST = (ConnectionLoss, OperationTimeoutError)

#: The most reads that a session has in flight. More would only fill queues, and delay the heartbeats behind them: a
#: thousand members that claim at once share the server, which then answers few reads of each within a lease.
MOST_READS = 50


class SessionEvent(Enum):
    """A change of a session's connection or of the session itself."""

    #: The connection broke; the session may still live.
    SUSPENDED = auto()
    #: The connection is back, on the same session; watches are gone and must be set again.
    RESUMED = auto()
    #: The session is over for good.
    ENDED = auto()


class Node(NamedTuple):
    """
    A znode's data and state, as read from ZooKeeper.

    ``owner`` is the id of the session that an ephemeral znode belongs to, or 0 for any other znode. ``pzxid`` is the
    zxid of the last change of the znode's children. ``children`` is the number of the children.
    """

    data: bytes
    version: int
    czxid: int
    mzxid: int
    owner: int
    pzxid: int = 0
    children: int = 0


Watcher = Callable[[], None]


class Session:
    """
    One ZooKeeper session, for use on the event loop.

    If the connection breaks, the session repeats unanswered reads after the next connection. An unanswered transaction
    gets the answer ``Unknown``. The session calls ``listener`` on the loop with each SessionEvent. A session is opened
    and closed only once.
    """

    def __init__(
        self, config: ZooKeeperConfig, metrics: Metrics, listener: Callable[[SessionEvent], None], runtime: Runtime
    ) -> None:
        self.gate = DeliveryGate()
        self.ended: str | None = None
        self._config = config
        self._metrics = metrics
        self._listener = listener
        self._runtime = runtime
        #: The session's id, or 0 before the session is open.
        self.id = 0
        #: How the session's client connects to the registered brokers.
        self.broker_protocol = config.broker_protocol
        self._opened = False
        #: Why SASL failed, or None.
        self._refusal: str | None = None
        self._loop = asyncio.get_running_loop()
        self._close_started = threading.Lock()
        self._closed = asyncio.Event()
        #: Held until the session is over, for callers that have no event loop to wait on.
        self._open_lock = threading.Lock()
        self._open_lock.acquire()
        self._requests = PendingRequests(self._call_loop)
        #: One slot for each read in flight; and the lock held by the call that waits for slots.
        self._read_slots = asyncio.Semaphore(MOST_READS)
        self._read_turn = asyncio.Lock()
        self._connected = asyncio.Event()
        #: The ACLs of the file that ZooKeeper has not accepted at the last try.
        self._refused_acls: dict[str, list[ACL]] = {}
        #: Replaced and never changed, because kazoo's thread reads it.
        self._connect_listeners: tuple[Callable[[], None], ...] = ()
        self._watchers: dict[Watcher, Callable[[WatchedEvent], None]] = {}
        self.client = runtime.client(config)
        self.connection = Connection(self.client, metrics)
        self._close = SessionClose(config, self.client, self._client_stopped, self._open_lock.release, runtime)

    @property
    def timeout_ms(self) -> int:
        """The session timeout that the server granted, in milliseconds, at most the first granted timeout."""
        return self.gate.timeout_ms

    @property
    def connected(self) -> bool:
        return self._connected.is_set() and self.ended is None

    def add_connect_listener(self, listener: Callable[[], None]) -> None:
        """Register a function that kazoo's thread calls after each connection, when the gate has been updated."""
        self._connect_listeners = (*self._connect_listeners, listener)

    @property
    def is_orphaned(self) -> bool:
        """
        Whether the session's event loop is closed, so that nothing can use the session. Any thread may read this
        property.
        """
        return self._loop.is_closed()

    @property
    def trusted(self) -> bool:
        """Whether the gate is open at this moment."""
        return self.gate.is_open(self._runtime.boot_time_s())

    async def wait_trusted(self) -> None:
        """
        Wait until the gate is open. Callers await this before every write that only an owner may send.

        Raises:
            SessionLostError: The gate is shut for good.
        """
        while not self.trusted:
            if self.gate.shut_reason is not None:
                raise SessionLostError(f"the ZooKeeper session is not trusted any more: {self.gate.shut_reason}")
            await asyncio.sleep(GATE_PAUSE_S)

    async def open(self) -> None:
        """
        Connect and wait for the session. The caller sets the time limit.

        Raises:
            NoZooKeeperError: No host has an address.
            ChrootMissingError: The chroot does not exist.
            CredentialsError: ZooKeeper refused the user or the password of SASL, or it requires SASL; or the file with
                the credentials cannot be read, or has a mistake.
            SessionLostError: The session is over already.
        """
        await self._runtime.check_hosts(self._config)
        observe_connect(self.client, self._config.session_timeout_ms, self._granted)
        self.client.add_listener(self._state_changed)
        await self._runtime.in_thread(self._close.start_client, "connect")
        await self._connected.wait()
        try:
            # kazoo reports the connection before SASL. The answer to a request follows the end of SASL.
            is_asked = self._config.chroot or self._config.security
            is_missing = bool(is_asked) and await self.exists("/") is None
        except SessionLostError:
            if self._refusal is not None:
                raise CredentialsError(f"ZooKeeper at {self._config.hosts}: {self._refusal}") from None
            raise
        if is_missing:
            raise ChrootMissingError(
                f"the chroot {self._config.chroot} does not exist in ZooKeeper at {self._config.hosts};"
                " create it first, or leave it out of the address"
            )

    def _granted(self, session_id: int, timeout_ms: int) -> None:
        """Process a server's response to Connect, on kazoo's thread, before kazoo notifies its listeners."""
        self._close.granted(session_id, timeout_ms)
        if self.id not in (0, session_id):
            # After an expiry or a refusal kazoo has opened another session, which must not be used.
            self.gate.shut("session over")
        elif timeout_ms > 0:
            self.id = session_id
            self.gate.grant(timeout_ms, self._runtime.boot_time_s())

    def _state_changed(self, state: str) -> None:
        """Update the gate at once, on kazoo's thread, and notify the loop."""
        self.gate.suspended = state != KazooState.CONNECTED
        if state == KazooState.LOST:
            self.gate.shut("session over")
            if self.client.client_state == KeeperState.AUTH_FAILED:
                # kazoo ends the client, but the server keeps the session until it expires.
                self._refusal = self.client.refusal
                self._call_loop(self.end, self._refusal)
        elif state == KazooState.CONNECTED:
            for listener in self._connect_listeners:
                listener()
        self._close.state_changed(state)
        self._call_loop(self._on_state, state)

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self.end("expired or closed by the server")
        elif state == KazooState.SUSPENDED:
            self._connected.clear()
            self._listener(SessionEvent.SUSPENDED)
        elif not self._connected.is_set():
            self._connected.set()
            if self._opened and not self.ended:
                self._listener(SessionEvent.RESUMED)
            self._opened = True

    def end(self, reason: str) -> None:
        """
        Stop using the session: shut the gate, fail all unanswered requests, and notify the listener.

        Later calls do nothing. The caller must still call ``close``.
        """
        if self.ended is not None:
            return
        self.ended = reason
        self.gate.shut(reason)
        self._requests.end(reason)
        self._listener(SessionEvent.ENDED)

    def abandon(self, reason: str) -> None:
        """
        Shut the gate, and end and close the session. Any thread may call this method, even if the loop never runs
        again.
        """
        self.gate.shut(reason)
        self._call_loop(self.end, reason)
        self._begin_closing()

    def abandoned_within(self, reason: str, timeout_s: float) -> bool:
        """
        Abandon the session, and block until it has ended. Return False if it has not ended after ``timeout_s`` seconds.
        """
        self.abandon(reason)
        closed = self._open_lock.acquire(timeout=timeout_s)
        if closed:
            self._open_lock.release()
        return closed

    def close(self) -> asyncio.Future[None]:
        """
        Close the session. ZooKeeper then deletes the session's ephemeral znodes immediately.

        The close begins before this method returns, and continues if the returned future is cancelled. The future is
        done when kazoo's client has stopped. If the client had no connection or got no answer, a thread closes the
        session in the background, over another connection, unless the process or the session ends first.
        """
        self.gate.shut("closed")
        self._begin_closing()
        return asyncio.ensure_future(self._wait_closed())

    async def _wait_closed(self) -> None:
        await self._closed.wait()
        self.end("closed")

    def _begin_closing(self) -> None:
        """Start to close the session, unless an earlier call did. Any thread may call this method."""
        if self._close_started.acquire(blocking=False):
            self._close.begin()

    def _client_stopped(self) -> None:
        self._call_loop(self._closed.set)

    def _call_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """
        Call a function on the loop. If the loop is closed, close the session, because nothing can use the session any
        more.

        Any thread may call this method.
        """
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("the event loop is closed; dropping an answer of ZooKeeper")
            self._begin_closing()

    async def _read(self, ask: Callable[..., Any], path: str, watcher: Watcher | None) -> Any:
        return (await self._read_many(ask, [path], [watcher]))[0]

    async def _read_many(
        self, ask: Callable[..., Any], paths: Sequence[str], watchers: Sequence[Watcher | None] | None
    ) -> list[Any]:
        """
        Send pipelined reads, and repeat the reads that a broken connection lost.

        Returns:
            The result of each read, or None for a missing znode.

        Raises:
            SessionLostError: The session is over.
            AuthorizationError: ZooKeeper refused a read because of an ACL.
        """
        found: list[Any] = [None] * len(paths)
        pairs = zip(paths, watchers or [None] * len(paths), strict=True)
        requests = [partial(ask, path, self._kazoo_watcher(watcher)) for path, watcher in pairs]
        waiting = list(range(len(paths)))
        while waiting:
            asked, waiting = waiting[:MOST_READS], waiting[MOST_READS:]
            answers = await self._answers([requests[number] for number in asked])
            for number, answer in zip(asked, answers, strict=True):
                if isinstance(answer, _LOST):
                    self._metrics.count("zookeeper_reads_repeated")
                    waiting.append(number)
                elif isinstance(answer, NoAuthError):
                    raise denied("read", paths[number])
                elif isinstance(answer, Exception) and not isinstance(answer, NoNodeError):
                    raise answer
                elif not isinstance(answer, Exception):
                    found[number] = answer
        return found

    async def _answers(self, reads: Sequence[Callable[[], Any]]) -> list[Any]:
        """Send reads as soon as the session has slots for all of them, and return the answers."""
        taken = 0
        try:
            async with self._read_turn:
                while taken < len(reads):
                    await self._read_slots.acquire()
                    taken += 1
            return await self._requests.answers(self._requests.send(reads))
        finally:
            for _ in range(taken):
                self._read_slots.release()

    def _kazoo_watcher(self, watcher: Watcher | None) -> Callable[[WatchedEvent], None] | None:
        """Return the same callback each time for a watcher, so that kazoo calls it once if a watch is set twice."""
        if watcher is None:
            return None
        if watcher not in self._watchers:
            self._watchers[watcher] = lambda _event: self._call_loop(watcher)
        return self._watchers[watcher]

    def forget(self, watcher: Watcher) -> None:
        """Drop the callback of a watcher that will not be used again."""
        self._watchers.pop(watcher, None)

    async def get(self, path: str, watcher: Watcher | None = None) -> Node | None:
        """
        Read a znode's data and state. If the znode does not exist, return None and set no watch.

        The session calls ``watcher`` on the loop when the znode changes or the connection breaks, as a hint to read
        again.
        """
        return _with_data(await self._read(self.client.get_async, path, watcher))

    async def exists(self, path: str, watcher: Watcher | None = None) -> Node | None:
        """Read a znode's state without its data. If the znode does not exist, return None and still set the watch."""
        return _without_data(await self._read(self.client.exists_async, path, watcher))

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str] | None:
        """Read the names of a znode's children. If the znode does not exist, return None and set no watch."""
        children: list[str] | None = await self._read(self.client.get_children_async, path, watcher)
        return children

    async def get_many(self, paths: Sequence[str], watchers: Sequence[Watcher] | None = None) -> list[Node | None]:
        """Perform ``get`` for many znodes in one pipeline, each with its watcher, in the order of ``paths``."""
        return [_with_data(found) for found in await self._read_many(self.client.get_async, paths, watchers)]

    async def exists_many(self, paths: Sequence[str], watchers: Sequence[Watcher] | None = None) -> list[Node | None]:
        """Perform ``exists`` for many znodes in one pipeline, each with its watcher, in the order of ``paths``."""
        return [_without_data(stat) for stat in await self._read_many(self.client.exists_async, paths, watchers)]

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Perform ``children`` for many znodes in one pipeline, in the order of ``paths``."""
        return await self._read_many(self.client.get_children_async, paths, None)

    async def follow_acls(self) -> None:
        """
        Read the file with the credentials again, if there is one, and use its ACLs for later znodes.

        If ZooKeeper does not accept them, log that once, and keep the former ACLs. The error is SessionLostError.
        """
        if self._config.security is None:
            return
        found = await self._runtime.in_thread(self.client.changed_acls, "security")
        acls = {} if found is None else found.acls
        requests = acl_tries(self.client, acls.values(), self._runtime.unique_name)
        answers = await self._requests.answers(self._requests.send(requests)) if requests else []
        if any(isinstance(each, Exception) for each in answers):
            return  # The connection broke. The next call tries again.
        refused = ", ".join(key for key, results in zip(acls, answers, strict=True) if refuses_acl(results))
        if found and not refused:
            self.client.security = found
        elif refused and acls != self._refused_acls:
            where = f"ZooKeeper at {self._config.hosts}", refused, self._config.security
            log.error("%s refuses %s of %s, so new znodes get the former ACLs: %s", *where, ACL_REFUSED)
        self._refused_acls = acls

    def transact(self, operations: Iterable[Operation]) -> Coroutine[Any, Any, Answer]:
        """
        Send one transaction at once, and return a coroutine that waits for the answer.

        The server handles requests in order, so a read that is sent after this call is no older than the transaction.
        The answer Done proves that the session was alive when the transaction was sent, and renews the lease from that
        time.

        Raises:
            SessionLostError: The session is over.
            AuthorizationError: ZooKeeper refused the transaction because of an ACL. The coroutine raises this error,
                and the next one.
            CredentialsError: ZooKeeper does not accept the ACL of a new znode.
        """
        listed = list(operations)
        used, sent_s = self.connection.current, self._runtime.boot_time_s()
        sent = self._requests.send([transaction_of(self.client, listed).commit_async])
        return self._outcome(listed, sent_s, used, sent)

    async def _outcome(
        self, listed: Sequence[Operation], sent_s: float, used: socket.socket | None, sent: asyncio.Future[list[Any]]
    ) -> Answer:
        (results,) = await self._requests.answers(sent)
        moved = reports_move(results)
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
            operation = listed[answer.index]
            raise denied(*right_of(operation, operation.path))
        elif isinstance(answer, Refused) and answer.failure is Failure.INVALID_ACL:
            # Names of ephemeral znodes differ in each session, so texts with them would be logged at each try.
            operation = listed[answer.index]
            parent = right_of(operation, operation.path)[1]
            raise CredentialsError(f"ZooKeeper refused to create a znode in {parent}: {ACL_REFUSED}")
        return answer

    async def check_right(self, error: AuthorizationError) -> None:
        """
        Try whether ZooKeeper still refuses what it has refused with ``error``, without writing anything.

        Raises:
            SessionLostError: The session is over.
            AuthorizationError: The right is still missing.
        """
        answer: Answer = Unknown()
        while isinstance(answer, Unknown):
            answer = await self.transact(tries(error, self._runtime.unique_name()))

    async def ensure(self, folders: Iterable[str]) -> None:
        """
        Create persistent znodes and their parents where they are missing.

        Raises:
            SessionLostError: The session is over.
            AuthorizationError: ZooKeeper refused to create a znode because of an ACL.
            CoordinationError: ZooKeeper refused to create a znode for another reason.
        """
        missing = list(folders)
        while True:
            missing = await self._missing(missing)
            # A znode that exists has all of its parents.
            for folder in await self._missing(parent for known in missing for parent in _with_parents(known)):
                answer: Answer = Unknown()
                while isinstance(answer, Unknown):
                    answer = await self.transact([Create(folder)])
                if (
                    isinstance(answer, Refused)
                    and answer.failure is Failure.NO_NODE
                    and await self.get("/") is not None
                ):
                    # The parent was deleted since, so start again. If the chroot were gone, the loop would never end.
                    break
                if isinstance(answer, Refused) and answer.failure is not Failure.NODE_EXISTS:
                    raise CoordinationError(f"ZooKeeper refused to create {folder}: {answer.failure.name}")
            else:
                return

    async def _missing(self, paths: Iterable[str]) -> list[str]:
        listed = sorted(set(paths))
        return [path for path, node in zip(listed, await self.exists_many(listed), strict=True) if node is None]


async def get_watched(session: Session, path: str, watcher: Watcher) -> Node | None:
    """Read a znode and watch it. If the znode does not exist, return None and watch for its creation."""
    node = await session.get(path, watcher)
    # A read of a missing znode sets no watch.
    if node is None and await session.exists(path, watcher) is not None:
        node = await session.get(path, watcher)
    return node


async def children_watched(session: Session, path: str, watcher: Watcher) -> list[str] | None:
    """
    Read the names of a znode's children and watch them.

    If the znode does not exist, return None and watch for its creation.
    """
    names = await session.children(path, watcher)
    if names is None and await session.exists(path, watcher) is not None:
        names = await session.children(path, watcher)
    return names


def _with_parents(path: str) -> list[str]:
    """Return the parents of a path and the path itself: ``/a`` and ``/a/b`` for ``/a/b``."""
    names = path.strip("/").split("/")
    return ["/" + "/".join(names[:count]) for count in range(1, len(names) + 1)]


def _with_data(found: Any) -> Node | None:
    # zkCli and Kafka create znodes without data as null.
    return None if found is None else _node(found[0] or b"", found[1])


def _without_data(stat: Any) -> Node | None:
    return None if stat is None else _node(b"", stat)


def _node(data: bytes, stat: Any) -> Node:
    return Node(data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner, stat.pzxid, stat.numChildren)
