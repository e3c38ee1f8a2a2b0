"""Extend kazoo's client: requests that survive a Ctrl-C, a stop that does not wait, and a faster handler."""

from __future__ import annotations

import errno
import logging
import math
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, repeat
from operator import mul
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.serialization import CloseInstance, Connect
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL

from kiel_groups.config import ZOOKEEPER_PORT, HostPort, ZooKeeperConfig, parse_hosts
from kiel_groups.errors import ConfigError, CredentialsError, NoZooKeeperError
from kiel_groups.group.lease import answer_limit_s
from kiel_groups.metrics import Metrics
from kiel_groups.security_file import tls_problem
from kiel_groups.zookeeper.rights import name_denied
from kiel_groups.zookeeper.security import ZooKeeperSecurity, security_of

log = logging.getLogger(__name__)


class Wakeup:
    """
    Replaces both ends of kazoo's pair of sockets by a counter in the kernel. The counter is readable while it is not 0.

    For each request, the caller writes a byte to the pair, and kazoo's thread reads a byte when it sends the request.
    Without a connection the thread reads nothing, and a pair of sockets has room for 278 bytes. During an outage, a
    caller with more requests, such as the event loop, would block until a server answers. If the client is stopped
    before that, the caller would block forever.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def __del__(self) -> None:
        # This is not done in close(): another thread may be about to write, and the number might belong to another file
        # by then.
        os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def send(self, wakes: bytes) -> int:
        """
        Add one wake-up for each byte, without blocking.

        Raises:
            OSError: The pair is closed.
        """
        self._check_open()
        os.eventfd_write(self._descriptor, len(wakes))
        return len(wakes)

    def recv(self, _count: int) -> bytes:
        """
        Remove one wake-up.

        Raises:
            OSError: There is no wake-up, or the pair is closed.
        """
        self._check_open()
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        """Make every later ``send`` and ``recv`` fail. Closing again does nothing."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class _ImmediateQueue:
    """Replaces kazoo's callback queue and the thread that empties it: ``put`` runs the callback at once."""

    def put(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            # The thread that reads from the server must not end.
            log.exception("a kazoo callback failed")


#: What kazoo's parser raises on bytes that are no response.
_UNREADABLE = (struct.error, ValueError, LookupError, RuntimeError, TypeError)


class UnreadableResponse(ConnectionLoss):  # type: ignore[misc]
    """The server's response to a request cannot be read, so the outcome of the request is unknown."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"a response cannot be read ({error}); is this a ZooKeeper server?")


class _Answer(AsyncResult):  # type: ignore[misc]
    """The answer to a request. An error of kazoo's parser becomes an ``UnreadableResponse``."""

    def set_exception(self, exception: Exception) -> None:
        super().set_exception(UnreadableResponse(exception) if isinstance(exception, _UNREADABLE) else exception)


class ImmediateHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """
    Delivers responses and watch events on the thread that reads them, in the order in which the server sent them.

    The callbacks must not block. In this package, the callbacks only wake an event loop or a thread. kazoo's own
    handler passes each response through a queue to another thread, and creates an epoll object for each poll of a
    socket, five or six times a request. The queue and the epoll objects cost half of the time of a request.

    Args:
        connect_limit_s: How long a host has to accept a connection, in seconds. kazoo would wait a whole session
            timeout for a host that drops packets, and lose the session although another server is available.
        is_logging: Whether to log the problems of TLS. A tool reports them itself.
    """

    name = "prompt_handler"

    def __init__(self, connect_limit_s: float = math.inf, *, is_logging: bool = True) -> None:
        super().__init__()
        self._connect_limit_s = connect_limit_s
        #: The TLS settings. kazoo's own TLS would trust the system's authorities in addition to the given ones.
        self.security = ZooKeeperSecurity()
        self._is_logging = is_logging
        #: How long a TLS handshake may take, in seconds, and the factor of this limit after a slower handshake.
        #: A handshake needs work of a server, so a busy server gets more time until there may be a lease to keep.
        self._handshake_limit_s, self._growth = connect_limit_s, 2
        #: The problems that were logged. kazoo tries again, and again.
        self._logged: set[str] = set()
        self.callback_queue = self.completion_queue = _ImmediateQueue()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def async_result(self) -> _Answer:
        return _Answer(self)

    def create_socket_pair(self) -> tuple[Wakeup, Wakeup]:
        """
        Return the pair that wakes kazoo's thread: the end that this thread reads, and the end that other threads write
        to.
        """
        wakes = Wakeup()
        return wakes, wakes

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", timeout: float = math.inf, **_: Any
    ) -> socket.socket:
        """
        Connect to a server, and perform the TLS handshake. The limit applies to each of the two steps. If a handshake
        exceeds the limit, and none has succeeded yet, the next handshake may take twice as long.

        ``hostname`` is the name of the server in the connection string. The certificates are read for each connection,
        because files with renewed ones replace them.

        Raises:
            OSError: The server cannot be reached, its certificate is refused, or the client's own certificate cannot be
                read.
        """
        # kazoo passes no timeout when it asks a server, over a separate connection, whether it accepts writes.
        limit_s = min(timeout, self._connect_limit_s)
        connection: socket.socket = super().create_connection(address, timeout=limit_s)
        connection.settimeout(min(timeout, self._handshake_limit_s))
        host = hostname or address[0]
        try:
            connection = encrypted(connection, self.security, host)
            self._handshake_limit_s, self._growth = self._connect_limit_s, 1
            return connection
        except TimeoutError:
            self._handshake_limit_s *= self._growth
            raise
        except (ssl.SSLError, ConfigError) as error:
            self.log_problem(host, error)
            raise OSError(str(error)) from error

    def log_problem(self, host: str, error: ssl.SSLError | ConfigError) -> None:
        """Log that a server cannot be used because of TLS, once for each problem."""
        problem = f"{host}: {tls_problem(error) if isinstance(error, ssl.SSLError) else error}"
        if self._is_logging and problem not in self._logged:
            self._logged.add(problem)
            log.warning("ZooKeeper at %s; trying again", problem)

    def dropped(self, error: UnreadableResponse) -> ConnectionDropped:
        """Log the first response that cannot be read. Return the error on which kazoo connects again."""
        if self._is_logging and type(error).__name__ not in self._logged:
            self._logged.add(type(error).__name__)
            log.warning("ZooKeeper: %s Connecting again", error)
        return ConnectionDropped(str(error))

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], _other: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """
        Return the sockets that are ready. Unlike ``select.select``, this method has no limit on descriptor numbers.

        ``timeout`` is in seconds. None means no limit.
        """
        # TLS decrypts whole records. A poll does not show what an earlier call has decrypted and not returned.
        decrypted = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        poller = select.poll()
        for sockets, events in ((readable, select.POLLIN), (writable, select.POLLOUT)):
            for each in sockets:
                poller.register(each, events)
        found = poller.poll(0 if decrypted else None if timeout is None else math.ceil(1000 * timeout))
        # A broken or closed socket counts as ready: its next use raises the error.
        ready = {descriptor for descriptor, _ in found}
        return (
            [s for s in readable if s.fileno() in ready or s in decrypted],
            [s for s in writable if s.fileno() in ready],
            [],
        )


def encrypted(connection: socket.socket, security: ZooKeeperSecurity, host: str) -> socket.socket:
    """
    Perform the TLS handshake of a connection, if the settings ask for TLS, and return the connection to use.

    If that fails, the connection is closed.
    """
    try:
        context = security.tls_context()
        return connection if context is None else context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


# Extend kazoo's client: interruptible requests, a stop that does not wait, connections that can be dropped.
#
# It also reports which session and timeout a server grants to the client, and limits the time that a server may take to
# accept the client.


#: The least time that a server has for each step of a connection, in seconds: a busy server must not count as dead.
LEAST_CONNECT_S = 0.5

#: How many connections in a row may break during SASL until the credentials count as refused.
MOST_BROKEN = 3

#: The largest response that is accepted, in bytes. Servers and Java clients accept 1 MiB unless ``jute.maxbuffer`` is
#: set; a list of very many children may have some MiB. Other protocols announce more: HTTP 1.2 GB.
MOST_RESPONSE_BYTES = 64 << 20
_CHUNK_BYTES = 64 << 10

_REFUSING = (KeeperState.AUTH_FAILED, KeeperState.CLOSED, KeeperState.EXPIRED_SESSION)


def connect_limit_s(asked_timeout_ms: int) -> float:
    """
    Return how many seconds a server may take to accept a connection, and then to answer Connect.

    kazoo waits a whole session timeout for the connection, and another one for the answer, which is longer than any
    lease. A host that drops packets never accepts. A frozen server, or a server of 3.9.5 just after its start,
    accepts the connection and does not answer. When a dead connection is noticed, a third of the session timeout is
    over. The rest of the lease, a sixth of the timeout, must suffice for such a server and the next server.

    Args:
        asked_timeout_ms: The session timeout that the client requests, in milliseconds.
    """
    return max(LEAST_CONNECT_S, answer_limit_s(asked_timeout_ms) / 2)


class SecuredClient(KazooClient):  # type: ignore[misc]
    """
    A kazoo client with the credentials, the TLS settings and the ACLs of ``security``.

    Args:
        handler: The handler, which performs TLS.
        security: The settings.
        settings: Further arguments of kazoo's client.
    """

    def __init__(self, handler: ImmediateHandler, security: ZooKeeperSecurity, **settings: Any) -> None:
        super().__init__(handler=handler, **settings)
        self._authenticate = self._connection._authenticate_with_sasl
        self._connection._authenticate_with_sasl = self._authenticate_with_sasl
        self._connection._read = self._read
        self._connection._read_socket = partial(self._read_response, self._connection._read_socket)
        #: The connections that broke during SASL, since the last success.
        self._broken = 0
        self.secure(security)

    def secure(self, security: ZooKeeperSecurity) -> None:
        """Use these credentials, TLS settings and ACLs. The client must not be started yet."""
        self.security = self.handler.security = security
        #: Why the client ends if SASL fails, in words.
        self.refusal = TICKET_REFUSED if security.has_ticket else REFUSED
        self.auth_data = security.auth_data
        self._connection.sasl_options = security.sasl_options

    def stop(self) -> None:
        """
        Stop as kazoo does, but do not wait for the answer of a server that has not accepted the client.

        This method may be called again after a Ctrl-C has interrupted it. kazoo's would return before its thread ends.
        """
        begin_stop(self)
        connection = self._connection._socket
        if connection is not None and not self.connected:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._safe_close()

    def _read(self, length: int, timeout_s: float) -> bytes:
        """
        Read so many bytes from the server within ``timeout_s`` seconds. kazoo's timeout begins anew with each byte.

        A slow response would end the session anyway: kazoo's thread sends no pings while it reads.

        Raises:
            ConnectionDropped: The connection broke, or the server announces more than ``MOST_RESPONSE_BYTES``.
            KazooTimeoutError: The bytes did not arrive in time.
        """
        if not 0 <= length <= MOST_RESPONSE_BYTES:
            raise ConnectionDropped(f"a response of {length} bytes is announced; is this a ZooKeeper server?")
        connection, deadline_s = self._connection._socket, time.monotonic() + timeout_s
        received = bytearray()
        with self._connection._socket_error_handling():
            while len(received) < length:
                left_s = deadline_s - time.monotonic()
                if left_s < 0 or not self.handler.select([connection], [], [], left_s)[0]:
                    raise self.handler.timeout_exception("socket time-out during read")
                try:
                    chunk = connection.recv(min(_CHUNK_BYTES, length - len(received)))
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                if not chunk:
                    raise ConnectionDropped("socket connection broken")
                received += chunk
        return bytes(received)

    def _read_response(self, read: Callable[[float], Any], timeout_s: float) -> Any:
        """
        Read a response as kazoo does. If it cannot be read, answer its request, and drop the connection: kazoo's thread
        would end, and with it the client.
        """
        request = next(iter(self._pending), None)
        try:
            response = read(timeout_s)
        except _UNREADABLE as error:
            if request is not None and request not in self._pending and request[1] is not None:
                request[1].set_exception(error)
            raise self.handler.dropped(UnreadableResponse(error)) from error
        if request is not None and isinstance(failure := getattr(request[1], "exception", None), UnreadableResponse):
            raise self.handler.dropped(failure)
        return response

    def _authenticate_with_sasl(self, host: str, timeout_s: float) -> None:
        """
        Perform SASL as kazoo does, but do not take each broken connection for refused credentials.

        Servers since 3.6 say that they refuse the credentials. Older servers only close the connection. A server that
        dies does this, too, so only the third broken connection in a row counts as a refusal.

        Raises:
            AuthFailedError: The server refuses the credentials.
            ConnectionDropped: The connection broke.
        """
        try:
            self._authenticate(host, timeout_s)
        except SessionClosedRequireSaslError as error:
            raise AuthFailedError from error
        except AuthFailedError as error:
            if not isinstance(error.__cause__, ConnectionDropped):
                if error.__cause__ is not None:
                    self.refusal = f"SASL failed: {_sasl_problem(error.__cause__)}"
                raise
            self._broken += 1
            if self._broken >= MOST_BROKEN:
                raise
            raise error.__cause__ from None
        self._broken = 0

    def _call(self, request: Any, answer: Any) -> bool | None:
        answer.rawlink(partial(name_denied, request, self.unchroot))
        called: bool | None = super()._call(request, answer)
        return called

    def create_async(self, path: str, value: bytes = b"", acl: Sequence[ACL] | None = None, **settings: Any) -> Any:
        return super().create_async(path, value, acl or self.security.acl_of(path), **settings)

    def ensure_path_async(self, path: str, acl: Sequence[ACL] | None = None) -> Any:
        # Each parent gets an ACL of its own.
        return super().ensure_path_async(path)

    def transaction(self) -> TransactionRequest:
        return _SecuredTransaction(self)


class _SecuredTransaction(TransactionRequest):  # type: ignore[misc]
    def create(self, path: str, value: bytes = b"", acl: Sequence[ACL] | None = None, **settings: Any) -> None:
        super().create(path, value, acl or self.client.security.acl_of(path), **settings)


class InterruptibleClient(SecuredClient):
    """
    A client that does not swallow a KeyboardInterrupt.

    kazoo wakes its connection thread for each request. kazoo treats any exception that is raised meanwhile as the end
    of the connection. A Ctrl-C that interrupts the main thread at that moment would be lost, and the session with it.

    Args:
        handler: The handler, which performs TLS.
        read_security: Reads the settings when the client is started. It may block.
        settings: Further arguments of kazoo's client.
    """

    def __init__(
        self, handler: ImmediateHandler, read_security: Callable[[], ZooKeeperSecurity], **settings: Any
    ) -> None:
        super().__init__(handler, ZooKeeperSecurity(), **settings)
        self._read_security = read_security

    def start_async(self) -> Any:
        """
        Read the settings, and start as kazoo does.

        Raises:
            CredentialsError: The file with the credentials cannot be read, or has a mistake.
        """
        try:
            self.secure(self._read_security())
        except ConfigError as error:
            raise CredentialsError(str(error)) from error
        return super().start_async()

    def changed_acls(self) -> ZooKeeperSecurity | None:
        """
        Read the settings again, and return them if their ACLs may replace those of ``security``. This method may block.

        If the settings have other credentials than this client, the ACLs may be for these, so the result is None. So it
        is if the file has a mistake. The next client then reports the mistake.
        """
        with suppress(ConfigError):
            security = self._read_security()
            if security.identities == self.security.identities and security.acls != self.security.acls:
                return security
        return None

    def _call(self, request: Any, answer: Any) -> bool | None:
        if self._state in _REFUSING:
            refused: bool | None = KazooClient._call(self, request, answer)
            return refused
        wake = self._connection._write_sock
        try:
            self._queue.append((request, answer))
            if wake is None:  # closed by another thread meanwhile
                raise OSError
            wake.send(b"\0")
        except OSError:
            answer.set_exception(ConnectionClosedError("Connection has been closed"))
        except BaseException:
            # kazoo sends one request for each byte. An extra byte does no harm. If one were missing, the last request,
            # which may be the close of the session, would never be sent.
            if wake is not None:
                wake.send(b"\0")
            raise
        return None


def begin_stop(client: KazooClient) -> None:
    """
    Stop a client as kazoo's ``stop()`` does, but do not wait for the client's end. A connected client closes its
    session.
    """
    wake = client._connection._write_sock
    if wake is None or client._stopped.is_set():
        return
    client._stopped.set()
    client._queue.append((CloseInstance, None))
    try:
        wake.send(b"\0")
    except OSError:
        log.debug("the kazoo client has stopped already", exc_info=True)


class Connection:
    """
    The current connection of a client. Callers on any thread may drop it.

    Several callers may find the same connection dead, one after the other. Only the first caller drops the connection,
    so that the client's next connection is not dropped as well.
    """

    def __init__(self, client: KazooClient, metrics: Metrics) -> None:
        self.client = client
        self._metrics = metrics
        self._dropped: socket.socket | None = None
        self._dropping = threading.Lock()

    @property
    def current(self) -> socket.socket | None:
        """
        The current connection's socket.

        Read this property before sending a request, to pass its value to ``leave``. kazoo uses one socket for each
        connection.
        """
        connection: socket.socket | None = self.client._connection._socket
        return connection

    def leave(self, used: socket.socket | None, why: str) -> None:
        """
        Shut down the socket ``used`` if it is current, so that kazoo resumes the session on the next server.

        Do nothing if the client is stopping. ``why`` completes a log line that begins with "ZooKeeper".
        """
        with self._dropping:
            # A client that is stopping has sent its last request, the close of the session.
            if used is None or used is self._dropped or used is not self.current or self.client._stopped.is_set():
                return
            self._dropped = used
        self._metrics.count("zookeeper_connections_dropped")
        log.warning("ZooKeeper %s; dropping the connection and reconnecting", why)
        try:
            used.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("the socket was closed already", exc_info=True)


def observe_connect(client: KazooClient, asked_timeout_ms: int, granted: Callable[[int, int], None]) -> None:
    """
    Call ``granted(session_id, timeout_ms)`` on kazoo's thread with each server's response to Connect.

    kazoo keeps the requested timeout, but not the granted timeout. The granted timeout is 0 if the server does not know
    the session any more.

    Before the first session there is no lease to keep. So each attempt may take twice as long as the previous attempt,
    up to kazoo's own limit. A slow server can thus answer in time, too.
    """
    connection = client._connection
    invoke = connection._invoke
    limit_s = connect_limit_s(asked_timeout_ms)
    first_limits_s = accumulate(repeat(2), mul, initial=limit_s)

    def invoke_observed(timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        wait_s = limit_s if client._session_id else next(first_limits_s)
        try:
            answer = invoke(min(timeout, wait_s), request, xid)
        except ConnectionDropped as error:
            # With TLS 1.3, a server refuses the client's certificate after the handshake.
            if isinstance(error.__context__, ssl.SSLError):
                client.handler.log_problem(connection._socket.server_hostname, error.__context__)
            raise
        granted(answer[0].session_id, answer[0].time_out)
        return answer

    connection._invoke = invoke_observed


REFUSED = "the user or the password of SASL is refused"
TICKET_REFUSED = "the ticket for SASL is refused"


def _sasl_problem(error: BaseException) -> str:
    """Return the text of an error of the library for SASL. Errors of Kerberos have tuples of texts and numbers."""
    texts = [str(each[0]) if isinstance(each, tuple) else str(each) for each in error.args]
    return "; ".join(texts) or type(error).__name__


# Find out why ZooKeeper does not answer: hosts that have no address, and servers that refuse further connections.
#
# kazoo retries such hosts until the connect timeout, and does not report why the connection failed.


#: How long a server may take to close a connection that it does not want, in seconds. Other servers wait for a
#: request.
_CLOSING_S = 2.0


def check_hosts(config: ZooKeeperConfig) -> None:
    """
    Resolve the addresses of all hosts. This function may block.

    Raises:
        NoZooKeeperError: No host has an address, so no connection can succeed.
    """
    servers = _servers(config)
    unresolved = _unresolved(servers)
    if len(unresolved) == len(servers):
        raise NoZooKeeperError(f"the host of ZooKeeper has no address: {', '.join(unresolved)}; is the name right?")


def no_answer(config: ZooKeeperConfig, limit_s: float) -> str:
    """
    Return the text of the error that no server has opened a session within ``limit_s`` seconds, with the likely reason.

    This function may block for up to four seconds for each host, and while host names are resolved.
    """
    servers = _servers(config)
    asked = f"ZooKeeper at {config.hosts} opened no session within {limit_s:g} s"
    try:
        security = security_of(config)
    except ConfigError as error:
        return f"{asked}: {error}"
    if problem := next(filter(None, (_problem(server, security) for server in servers)), ""):
        return f"{asked}: {problem}"
    unresolved = _unresolved(servers)
    aside = f" (without an address: {', '.join(unresolved)})" if unresolved else ""
    return f"no ZooKeeper answered at {config.hosts} within {limit_s:g} s; is it running, and the port right?{aside}"


def _problem(server: HostPort, security: ZooKeeperSecurity) -> str:
    """Return why a server accepts a connection, and then closes it or does not understand the client, or ""."""
    try:
        with encrypted(socket.create_connection(server, _CLOSING_S), security, server.host) as connection:
            is_closed = connection.recv(1) == b""
    except ssl.SSLError as error:
        return f"{server}: {tls_problem(error)}"
    except TimeoutError:
        is_closed = False
    except OSError as error:
        # ZooKeeper resets the connection, before or after the end of its data. On a busy machine the reset may arrive
        # before ``connect`` has returned.
        is_closed = isinstance(error, ConnectionResetError | BrokenPipeError)
    if is_closed:
        return (
            f"{server} closes each connection at once, as a server does that has as many from one address as its"
            " maxClientCnxns allows (60 by default), or as its maxCnxns allows in all; close some, or raise the limit"
        )
    return f"{server} speaks TLS; {NAME_A_FILE}" if not security.tls and speaks_tls(server) else ""


NAME_A_FILE = "name a file with the key 'tls' for it (docs/security.rst)"


def speaks_tls(server: HostPort) -> bool:
    """Return whether a server answers a TLS handshake. Its certificate does not matter, because nothing is sent."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), socket.create_connection(server, _CLOSING_S) as connection:
        try:
            context.wrap_socket(connection, server_hostname=server.host).close()
            return True
        except ssl.SSLError as error:
            # An alert is an answer, too.
            return "ALERT" in str(error.reason)
    return False


def _servers(config: ZooKeeperConfig) -> Sequence[HostPort]:
    return parse_hosts(config.hosts.removesuffix(config.chroot), ZOOKEEPER_PORT, "zookeeper")


def _unresolved(servers: Sequence[HostPort]) -> list[str]:
    """Return the host names that do not resolve, each with the reason."""
    unresolved = []
    for server in servers:
        try:
            socket.getaddrinfo(server.host, server.port)
        except OSError as error:
            unresolved.append(f"{server.host} ({error.strerror})")
    return unresolved
