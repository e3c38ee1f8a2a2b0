"""Ask a broker which requests it knows: a probe that brokers of all releases answer, and ApiVersions v0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.fetch import CLIENT_REPLICA_ID, FetchRequest
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = [
    "FetchProbeRequest",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "VersionRange",
]


# Fetch v3 as a question: is the broker of 0.10.1 or later?
#
# ApiVersions, which asks for that, harms the other clients of a broker of 0.9: the broker fails on the unknown API key
# while it takes the requests that have just arrived on all its connections, and drops the rest of them. They are never
# answered. A fetch request harms no client. Brokers of 0.9 do not look at its version: where v3 has the most bytes of
# the answer, they read the number of topics, and ignore what follows. So this request has 0 there, and one topic after
# it.


#: The name of no topic in particular: it makes no difference whether the topic exists.
_TOPIC = "kiel-groups"

#: The sizes of an answer of v0 without topics, and of the field that later versions put before it.
_EMPTY_BYTES, _THROTTLE_BYTES = 4, 4


@dataclass(frozen=True, slots=True)
class FetchProbeRequest:
    """
    Ask a broker whether it is of 0.10.1 or later, in a way that any broker bears.

    Brokers of 0.10.0 and of 4.0 or later do not know this version, and close the connection.
    """

    API_KEY: ClassVar[int] = 1
    API_VERSION: ClassVar[int] = 3

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(CLIENT_REPLICA_ID)
        # Neither a wait nor bytes to wait for.
        writer.int32(0)
        writer.int32(0)
        # The most bytes in v3; in v0 to v2, the number of topics.
        writer.int32(0)
        writer.int32(1)
        writer.string(_TOPIC)
        writer.int32(1)
        # Partition 0, from offset 0 on, with as few bytes as possible.
        writer.int32(0)
        writer.int64(0)
        writer.int32(1)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> bool:
        """Return whether the answer is about a topic, as that of 0.10.1 and later. What it says of it is not read."""
        # Brokers of 0.8 answer without the time for which they have throttled the client, as in v0.
        in_v0 = payload if len(payload) == _EMPTY_BYTES else memoryview(payload)[_THROTTLE_BYTES:]
        return bool(FetchRequest(0, 0, {}).decode_response(in_v0).partitions)


# ApiVersions v0: ask a broker which versions of each request it takes.
#
# It exists from 0.10.0 on. An older broker does not answer: 0.9 ignores the request, and 0.8 closes the connection.


_API_BYTES = 2 + 2 + 2


class VersionRange(NamedTuple):
    """The versions of one request that a broker takes, both ends included."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    """
    The versions that a broker takes, by API key.

    4.x names version 0 of a produce request for the sake of old clients, and yet closes the connection when it comes.
    """

    error: ErrorCode
    versions: Mapping[int, VersionRange]


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    """Ask a broker which versions of each request it takes."""

    API_KEY: ClassVar[int] = 18
    API_VERSION: ClassVar[int] = 0

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        return b""

    def decode_response(self, payload: Buffer) -> ApiVersionsResponse:
        reader = Reader(payload, "an API-versions response")
        error = error_code(reader.int16())
        versions: dict[int, VersionRange] = {}
        for _ in reader.array(_API_BYTES):
            key = reader.int16()
            if key in versions:
                raise reader.refuse(f"API key {key} twice")
            versions[key] = VersionRange(reader.int16(), reader.int16())
        reader.end()
        return ApiVersionsResponse(error, versions)
