"""
Open connections to brokers: TCP, then TLS and SASL if the settings ask for them.

Every connection to a broker is opened here, for an event loop or as a blocking socket.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple, TypeVar

from kiel_groups.broker_security import BrokerSecurity, broker_security
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import ProtocolError
from kiel_groups.security_file import NO_TLS, tls_problem
from kiel_groups.wire.framing import SIZE_BYTES, decode_size
from kiel_groups.wire.sasl import MOST_SASL_BYTES, SaslError, authentication

#: How long an address may take before the next one is tried beside it, in seconds: the delay of RFC 8305.
_NEXT_ADDRESS_S = 0.25

#: The part of the time to connect after which a broker that does not answer during SASL is an error of SASL. The rest
#: of the time is for this error, which says more than the end of the time.
_SASL_SHARE = 0.9


class _Access(NamedTuple):
    """What a new connection needs beyond TCP: the context of TLS or None, and the credentials."""

    tls: ssl.SSLContext | None
    security: BrokerSecurity
    client_id: str

    def authentication(self) -> Generator[bytes, bytes, None] | None:
        """Return the steps of SASL, or None without SASL."""
        user, password, mechanism = self.security.sasl_user, self.security.sasl_password, self.security.sasl_mechanism
        return authentication(user, password, mechanism, self.client_id, secrets.token_urlsafe(24)) if user else None


def _access(config: BrokerConfig) -> _Access | None:
    """
    Read the credentials and the certificates. Return None for a plain connection.

    Raises:
        ConfigError: The file with the credentials, or a certificate, cannot be read or has a mistake.
    """
    if config.is_plain:
        return None
    security = broker_security(config)
    tls = config.ssl_context or security.tls_context()
    return _Access(tls, security, config.client_id) if tls or security.sasl_user else None


def connection_problem(error: BaseException | None) -> str:
    """Return why a connection to a broker failed or ended, preferably in the operating system's words."""
    if error is None:
        return "closed by the other side"
    if isinstance(error, ssl.SSLError):
        return tls_problem(error)
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        # asyncio replaces the operating system's text by its own text.
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error)


class Stream(asyncio.BaseProtocol):
    """
    The transport protocol of an open connection.

    Attributes:
        carrier: The transport below TLS. It may still have bytes to send that TLS reports as sent.
    """

    carrier: asyncio.Transport | None = None

    def close(self) -> None:
        """Close the connection at once."""
        raise NotImplementedError


P = TypeVar("P", bound=Stream)


async def open_stream(address: HostPort, make: Callable[[], P], timeout_s: float, config: BrokerConfig) -> P:
    """
    Connect to the first address of a broker that accepts a connection.

    Addresses are tried in the resolver's order. The next address is tried when an address refuses, or has not answered
    for 0.25 s, so that a host that drops packets does not use up the time.

    Args:
        address: The broker.
        make: Returns a new protocol, which is passed the connection.
        timeout_s: How long connecting may take, in seconds.
        config: The settings of the client, with its credentials.

    Raises:
        TimeoutError: No address has accepted a connection in time, and none has refused TLS or SASL.
        OSError: All addresses refuse, or the name has no address, or TLS or SASL fails. A refusal of TLS or SASL comes
            before the errors of addresses that cannot be reached, and otherwise, the error is that of the last address.
        ConfigError: The file with the credentials, or a certificate, cannot be read or has a mistake.
        ProtocolError: An answer during SASL cannot be decoded.
    """
    attempts: list[asyncio.Future[P]] = []
    opened: asyncio.Future[P] | None = None
    by_s = asyncio.get_running_loop().time() + _SASL_SHARE * timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            access = None if config.is_plain else await asyncio.to_thread(_access, config)
            hosts = await _hosts_of(address)
            for host in hosts:
                attempts.append(asyncio.ensure_future(_connect(host, address, make, access, by_s)))
                opened = await _first_open(attempts, None if len(attempts) == len(hosts) else _NEXT_ADDRESS_S)
                if opened is not None:
                    break
        return (opened or _refused(attempts) or attempts[-1]).result()
    except TimeoutError:
        if (refused := _refused(attempts)) is not None:
            refused.result()
        raise
    finally:
        for attempt in attempts:
            if attempt is not opened:
                attempt.cancel()
                attempt.add_done_callback(_close)


async def _connect(host: str, address: HostPort, make: Callable[[], P], access: _Access | None, by_s: float) -> P:
    """
    Connect to an address of a broker, and return the stream. Answers of SASL must come by the time ``by_s`` of the
    event loop's clock.
    """
    loop = asyncio.get_running_loop()
    if access is None:
        _, stream = await loop.create_connection(make, host, address.port)
        return stream
    raw, exchange = await loop.create_connection(_Exchange, host, address.port)
    transport = raw
    try:
        if access.tls is not None:
            transport = await _encrypted(raw, exchange, access.tls, address.host)
        if (steps := access.authentication()) is not None:
            await exchange.authenticate(transport, steps, by_s)
        exchange.check_open()
    except BaseException:
        raw.abort()
        raise
    stream = make()
    stream.carrier = raw if access.tls is not None else None
    transport.set_protocol(stream)
    stream.connection_made(transport)
    return stream


async def _encrypted(raw: asyncio.Transport, exchange: _Exchange, tls: ssl.SSLContext, host: str) -> asyncio.Transport:
    """Perform the TLS handshake, and return the transport to use."""
    # What came before the handshake, in plain text, must not count as an answer that came by TLS.
    if raw.is_closing() or exchange.has_received:
        raise ConnectionResetError(NO_TLS)
    try:
        found = await asyncio.get_running_loop().start_tls(raw, exchange, tls, server_hostname=host)
    except ConnectionError as error:
        raise ConnectionResetError(NO_TLS) from error
    if found is None:  # The connection has ended meanwhile.
        raise ConnectionResetError(NO_TLS)
    return found


async def _hosts_of(address: HostPort) -> Sequence[str]:
    """Return the addresses of a host, in the resolver's order. If the resolver fails, return the host's name."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        pass
    else:
        return [address.host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError:
        return [address.host]
    return list(dict.fromkeys(str(sockaddr[0]) for _, _, _, _, sockaddr in found))


async def _first_open(attempts: Sequence[asyncio.Future[P]], patience_s: float | None) -> asyncio.Future[P] | None:
    """
    Return an attempt that has succeeded, or None if the caller should start the next attempt.

    The next attempt is due after ``patience_s``, or once the newest attempt has failed. If ``patience_s`` is None, the
    result None means that all attempts have failed.
    """
    loop = asyncio.get_running_loop()
    started_s, waiting = loop.time(), {attempt for attempt in attempts if not attempt.done()}
    while waiting:
        left_s = None if patience_s is None else started_s + patience_s - loop.time()
        done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if attempt.exception() is None:
                return attempt
        if not done or (patience_s is not None and attempts[-1].done()):
            break
    return None


def _refused(attempts: Iterable[asyncio.Future[P]]) -> asyncio.Future[P] | None:
    """Return the first attempt that has reached a broker which refuses TLS or SASL, or None."""
    refusals = (ssl.SSLError, ConnectionResetError, SaslError, ProtocolError)
    return next((each for each in attempts if each.done() and isinstance(each.exception(), refusals)), None)


def _close(attempt: asyncio.Future[P]) -> None:
    """Close the stream of an attempt, if the attempt has succeeded after another attempt."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


class _Exchange(asyncio.Protocol):
    """The protocol of a connection until it is open: passes the messages of SASL."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._end: BaseException | None = None

    async def authenticate(
        self, transport: asyncio.WriteTransport, steps: Generator[bytes, bytes, None], by_s: float
    ) -> None:
        """
        Send the frames of an authentication, and pass their answers to it. Raise the errors of ``steps``.

        ``by_s`` is when each answer must have come, on the event loop's clock.
        """
        frame = next(steps)
        while True:
            transport.write(frame)
            try:
                async with asyncio.timeout_at(by_s):
                    answer = await self._read(decode_size(await self._read(SIZE_BYTES), MOST_SASL_BYTES, 0))
            except (ConnectionError, TimeoutError) as error:
                steps.throw(error)
                raise
            # On a thread, because SCRAM hashes the password thousands of times.
            found = await asyncio.to_thread(_following, steps, answer)
            if found is None:
                return
            frame = found

    @property
    def has_received(self) -> bool:
        """Whether bytes have arrived that are not part of an answer yet."""
        return bool(self._received)

    def check_open(self) -> None:
        """Raise ConnectionError if the connection has ended."""
        if self._end is not None:
            raise self._end

    async def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            self.check_open()
            self._changed.clear()
            await self._changed.wait()
        found = bytes(self._received[:size])
        del self._received[:size]
        return found

    def data_received(self, data: bytes) -> None:
        # A broker sends one answer at a time. More would fill the memory of a client that is hashing the password.
        if len(self._received) < SIZE_BYTES + MOST_SASL_BYTES:
            self._received += data
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        # A refusal of the client's certificate arrives after the handshake, as an error of TLS.
        self._end = exc if isinstance(exc, OSError) else ConnectionResetError("closed by the other side")
        self._changed.set()


def _following(steps: Generator[bytes, bytes, None], answer: bytes) -> bytes | None:
    """Return the frame that follows an answer, or None at the end."""
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def open_socket(address: HostPort, config: BrokerConfig, timeout_s: float) -> socket.socket:
    """
    Connect to a broker, and return the blocking socket.

    Args:
        address: The broker.
        config: The settings of the client, with its credentials.
        timeout_s: How long connecting may take, in seconds. It remains the socket's timeout.

    Raises:
        OSError: The broker cannot be reached in time, or TLS or SASL fails.
        ConfigError: The file with the credentials, or a certificate, cannot be read or has a mistake.
        ProtocolError: An answer during SASL cannot be decoded.
    """
    by_s = time.monotonic() + timeout_s
    access = _access(config)
    connection = _connected(address, by_s)
    try:
        if access is None:
            connection.settimeout(timeout_s)
            return connection
        if access.tls is not None:
            connection.settimeout(left_s(by_s))
            try:
                connection = access.tls.wrap_socket(connection, server_hostname=address.host)
            except ConnectionError as error:
                raise ConnectionResetError(NO_TLS) from error
        if (steps := access.authentication()) is not None:
            _authenticate(connection, steps, by_s)
        connection.settimeout(timeout_s)
        return connection
    except BaseException:
        connection.close()
        raise


def _connected(address: HostPort, by_s: float) -> socket.socket:
    """
    Connect to the first address of a broker that accepts a connection, in the resolver's order.

    The addresses share the time until ``by_s``, on the monotonic clock.
    """
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    hosts = list(dict.fromkeys(str(sockaddr[0]) for _, _, _, _, sockaddr in found))
    for left, host in zip(range(len(hosts), 0, -1), hosts, strict=True):
        try:
            return socket.create_connection((host, address.port), left_s(by_s) / left)
        except OSError:
            if left == 1:
                raise
    raise AssertionError("a resolver returns an address or raises an error")


def _authenticate(connection: socket.socket, steps: Generator[bytes, bytes, None], by_s: float) -> None:
    frame: bytes | None = next(steps)
    while frame is not None:
        try:
            connection.settimeout(left_s(by_s))
            connection.sendall(frame)
            answer = receive(connection, decode_size(receive(connection, SIZE_BYTES, by_s), MOST_SASL_BYTES, 0), by_s)
        except (ConnectionError, TimeoutError) as error:
            steps.throw(error)
            raise
        frame = _following(steps, answer)


def receive(connection: socket.socket, size: int, by_s: float) -> bytes:
    """Return the next ``size`` bytes of a socket. Raise OSError if they do not arrive before the time ``by_s``."""
    received = bytearray()
    while len(received) < size:
        connection.settimeout(left_s(by_s))
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("closed by the other side")
        received += part
    return bytes(received)


def left_s(by_s: float) -> float:
    """Return the seconds until the monotonic time ``by_s``. Raise TimeoutError if that time has come."""
    left_s = by_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no answer in time")
    return left_s
