"""
Authenticate a connection to a broker by SASL: SaslHandshake v0 and v1, SaslAuthenticate v0, PLAIN and SCRAM.

Kafka 0.10 and 0.11 take the messages of the mechanism as frames without a header, and close the connection if they
refuse them. From 1.0 on, they are requests, whose answers have errors.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count
from struct import Struct
from typing import NamedTuple, TypeVar

from kiel_groups.errors import ProtocolError
from kiel_groups.wire.error_codes import ERROR, NO_ERROR, ErrorCode
from kiel_groups.wire.framing import Request, encode_request, split_response
from kiel_groups.wire.primitives import BYTES, NULLABLE_STRING, STRING, array, fields, structure
from kiel_groups.wire.scram import HASHES, scram_messages
from kiel_groups.wire.versions import ApiVersionsRequest

T = TypeVar("T")

_SIZE = Struct(">i")

#: The largest answer that is accepted during an authentication, in bytes. A list of versions has some hundred.
MOST_SASL_BYTES = 1 << 16

_UNSUPPORTED_MECHANISM, _ILLEGAL_STATE = 33, 34


class SaslError(ConnectionError):
    """A broker refuses the user, the password or SASL at all. The text begins with "it", which is the broker."""


class SaslHandshakeResponse(NamedTuple):
    """The answer to a handshake: the mechanisms that the broker has enabled at this port."""

    error: ErrorCode
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """Choose a mechanism, whose messages then follow as frames without a header."""

    API_KEY, API_VERSION, ANSWER_NAME = 17, 0, "a SASL handshake response"
    BODY = fields(mechanism=STRING)
    ANSWER = structure(SaslHandshakeResponse, ERROR, array(STRING))

    mechanism: str


class SaslHandshakeRequestV1(SaslHandshakeRequest):
    """Choose a mechanism, whose messages then follow in requests."""

    __slots__ = ()

    API_VERSION = 1


class SaslAuthenticateResponse(NamedTuple):
    """The next message of the broker's half of a mechanism, or an error and its text."""

    error: ErrorCode
    text: str
    message: bytes


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """Send the next message of the client's half of a mechanism."""

    API_KEY, API_VERSION, ANSWER_NAME = 36, 0, "a SASL authenticate response"
    BODY = fields(message=BYTES)
    ANSWER = structure(SaslAuthenticateResponse, ERROR, NULLABLE_STRING, BYTES)

    message: bytes


def authentication(
    user: str, password: str, mechanism: str, client_id: str, nonce: str
) -> Generator[bytes, bytes, None]:
    """
    Yield the frames that authenticate a new connection, and receive the answer to each of them, without its size.

    If the connection ends, the caller throws a ConnectionError into the generator. If there is no answer in time, it
    throws a TimeoutError.

    Args:
        user: The name of the user.
        password: The password.
        mechanism: One of ``PLAIN``, ``SCRAM-SHA-256`` and ``SCRAM-SHA-512``.
        client_id: The name that brokers log.
        nonce: Random characters for SCRAM.

    Raises:
        SaslError: The broker refuses the user or the password, does not offer the mechanism, expects no SASL at this
            port, or does not answer the first request.
        ProtocolError: An answer cannot be decoded, or belongs to another request.
    """
    numbers = count()
    try:
        # Every broker that knows these mechanisms answers this before the handshake.
        found = yield from _ask(ApiVersionsRequest(), client_id, numbers)
        versions = found.versions.get(SaslHandshakeRequest.API_KEY)
        has_requests = versions is not None and versions.most >= SaslHandshakeRequestV1.API_VERSION
        handshake = SaslHandshakeRequestV1(mechanism) if has_requests else SaslHandshakeRequest(mechanism)
        offered = yield from _ask(handshake, client_id, numbers)
    except (ConnectionError, TimeoutError) as error:
        # Brokers of 0.8 and 0.9 do the one or the other, as does a port for something else.
        what = "does not answer" if isinstance(error, TimeoutError) else "closes the connection"
        release = "0.10.2" if mechanism in HASHES else "0.10"
        raise SaslError(
            f"it {what} before SASL begins; is this port for SASL, is TLS needed there or not, and is it a broker of"
            f" {release} or later, as {mechanism} needs?"
        ) from error
    if offered.error.number == _UNSUPPORTED_MECHANISM:
        mechanisms = _shown(", ".join(sorted(offered.mechanisms))) or "none"
        raise SaslError(f"it does not offer the SASL mechanism {mechanism}; it offers {mechanisms}")
    if offered.error.number == _ILLEGAL_STATE:
        raise SaslError("it expects no SASL at this port; leave out user and password, or use another port")
    if offered.error != NO_ERROR:
        raise SaslError(f"it refuses SASL: {offered.error}")
    messages = _plain(user, password)
    if mechanism in HASHES:
        messages = scram_messages(mechanism, user, password, nonce)
    message = next(messages)
    while True:
        answer = yield from _exchange(message, has_requests, mechanism, client_id, numbers)
        try:
            message = messages.send(answer)
        except StopIteration:
            return
        except ProtocolError as error:
            raise SaslError(f"{_refused(mechanism)}: {_shown(str(error))}") from error


def _plain(user: str, password: str) -> Generator[bytes, bytes, None]:
    yield f"\0{user}\0{password}".encode()


def _exchange(
    message: bytes, has_requests: bool, mechanism: str, client_id: str, numbers: Iterator[int]
) -> Generator[bytes, bytes, bytes]:
    """Send a message of the mechanism, and return the broker's answer. Raise SaslError if the broker refuses it."""
    try:
        if not has_requests:
            return (yield _SIZE.pack(len(message)) + message)
        answer = yield from _ask(SaslAuthenticateRequest(message), client_id, numbers)
    except ConnectionError as error:
        raise SaslError(f"{_refused(mechanism)}, or is stopping: it closed the connection") from error
    if answer.error != NO_ERROR:
        raise SaslError(f"{_refused(mechanism)}: {_shown(answer.text) or answer.error}")
    return answer.message


def _refused(mechanism: str) -> str:
    return f"it refuses the user or the password ({mechanism})"


def _shown(text: str) -> str:
    """Return a text for one line of a log. The server that sent it may be no broker: it has proved nothing yet."""
    return "".join(each if each.isprintable() else " " for each in text[:300])


def _ask(request: Request[T], client_id: str, numbers: Iterator[int]) -> Generator[bytes, bytes, T]:
    """Send a request with the next correlation id, and return its answer."""
    number = next(numbers)
    found, payload = split_response((yield encode_request(request, number, client_id)))
    if found != number:
        raise ProtocolError(f"an answer to another request: {found}")
    return request.decode_answer(payload)
