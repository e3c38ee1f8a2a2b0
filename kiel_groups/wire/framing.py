"""
Declare requests, and encode and split the frames of requests and responses. A frame begins with its size in four bytes.

A broker answers the requests of one connection in their order. The correlation id assigns each response to its request.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, ClassVar, Generic, TypeVar

import six

from kiel_groups.errors import ProtocolError
from kiel_groups.wire.primitives import Buffer, FieldType, Writer

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

_INT32 = Struct(">i")

#: The error of a server that answers with TLS.
TLS_PORT = "this port is for TLS, which the settings of the client do not ask for (docs/security.rst)"

#: The end of the error of a server that answers in another protocol, such as HTTP.
NOT_A_BROKER = "Is this a Kafka broker?"

#: How the records of TLS begin: with their type, an alert or a handshake, and the version.
_TLS_RECORDS, _TLS_VERSION = (21, 22), 3

#: The length of the size that precedes a frame.
SIZE_BYTES = _INT32.size


class Request(Generic[AnswerT_co]):
    """
    The base class of requests. A subclass is a frozen dataclass that declares its fields and the type of its response.

    ``BODY`` has the types of the fields after the header. Each key is the name of the attribute with the field's value.
    ``ANSWER`` is the type of the response, and ``ANSWER_NAME`` is the name of the response in errors. ``NAMED`` is the
    attribute with the partitions that the request names, if the response is a mapping with results for these
    partitions.
    """

    __slots__ = ()

    NAMED: ClassVar[str | None] = None

    API_KEY: ClassVar[int]
    API_VERSION: ClassVar[int]
    BODY: ClassVar[Mapping[str, FieldType[Any]]]
    ANSWER: ClassVar[FieldType[Any]]
    ANSWER_NAME: ClassVar[str]

    @property
    def expects_response(self) -> bool:
        """Whether the broker answers this request: False only for a produce request with acks 0."""
        return True

    def write_body(self, writer: Writer) -> None:
        """Write the request without its header."""
        for name, field in self.BODY.items():
            field.write(writer, getattr(self, name))

    @classmethod
    def decode_response(cls, payload: Buffer) -> AnswerT_co:
        """
        Decode the payload of a response, which begins after the correlation id.

        Raises:
            ProtocolError: The payload is not a response to this kind of request.
        """
        answer: AnswerT_co = cls.ANSWER.decode(payload, cls.ANSWER_NAME)
        return answer

    def decode_answer(self, payload: Buffer) -> AnswerT_co:
        """
        Decode the payload of the response to this request.

        Raises:
            ProtocolError: The payload is not a response to this kind of request, or has a result for a partition that
                the request does not name.
        """
        answer: Any = self.decode_response(payload)
        others = answer.keys() - set(getattr(self, self.NAMED)) if self.NAMED is not None else ()
        if others:
            raise ProtocolError(f"{self.ANSWER_NAME} has a result for {min(others)}, which the request does not name")
        decoded: AnswerT_co = answer
        return decoded


def encode_request(request: Request[object], correlation_id: int, client_id: str) -> bytes:
    """
    Encode a request with its header as a frame, which begins with its size.

    Args:
        request: The request.
        correlation_id: An int32 that the broker repeats in the response.
        client_id: A name that appears in the broker's logs and metrics.

    Raises:
        ConfigError: A field does not fit its type in the protocol.
    """
    writer = Writer()
    writer.int16(request.API_KEY)
    writer.int16(request.API_VERSION)
    writer.int32(correlation_id)
    # Nothing has checked the client id. Bytes are accepted, too.
    writer.string(six.ensure_text(client_id))
    request.write_body(writer)
    return writer.getvalue(after_size=True)


def decode_size(header: Buffer, limit: int, least: int = _INT32.size) -> int:
    """
    Return the size of the response that follows, in bytes.

    Args:
        header: The four bytes that precede a response.
        limit: The largest response to accept, in bytes.
        least: The smallest response, in bytes: by default that of a correlation id.

    Raises:
        ProtocolError: The size is below the least or above the limit; or the server speaks TLS.
    """
    size: int = _INT32.unpack(header)[0]
    if not least <= size <= limit:
        if is_tls(header):
            raise ProtocolError(TLS_PORT)
        raise ProtocolError(
            f"a response of {size} bytes is announced ({bytes(header)!r}); expected {least} to {limit}. {NOT_A_BROKER}"
        )
    return size


def is_tls(head: Buffer) -> bool:
    """Return whether the first bytes of a response are those of TLS. An alert has less bytes than a header."""
    return len(head) > 1 and head[0] in _TLS_RECORDS and head[1] == _TLS_VERSION


def split_response(frame: Buffer) -> tuple[int, memoryview]:
    """
    Split a response, given without its size, into its correlation id and a view of its payload.

    Raises:
        ProtocolError: The response is shorter than a correlation id.
    """
    if len(frame) < _INT32.size:
        raise ProtocolError(f"a response of {len(frame)} bytes has no room for its correlation id")
    return _INT32.unpack_from(frame)[0], memoryview(frame)[_INT32.size :]
