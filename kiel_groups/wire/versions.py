"""The requests that find out what a broker supports: ApiVersions v0, and a probe that harms brokers of no release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import ERROR, ErrorCode
from kiel_groups.wire.fetch import CLIENT_REPLICA_ID, FetchPosition, FetchRequest
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import INT16, Buffer, Writer, fields, mapping, numbers, structure

# Fetch v3 as a question: is the broker of 0.10.1 or later?
#
# ApiVersions, which asks for the release's versions, harms the other clients of a broker of 0.9. The broker fails on
# the unknown API key while it takes the requests that have just arrived on all its connections. It drops the rest of
# these requests, and never answers them. A fetch request harms no client. Brokers of 0.9 do not look at the version of
# the request: where v3 has the most bytes of the answer, they read the number of topics, and ignore what follows. So
# this request has 0 there, and one topic after it.


#: The sizes of an answer of v0 without topics, and of the field that later versions put before it.
_EMPTY_BYTES, _THROTTLE_BYTES = 4, 4


@dataclass(frozen=True, slots=True)
class FetchProbeRequest(Request[bool]):
    """
    Ask a broker whether its release is 0.10.1 or later, by a Fetch request of version 3 that harms no other client.

    Brokers of 0.10.0, and of 4.0 or later, do not support version 3 of Fetch, and close the connection.
    """

    API_KEY, API_VERSION = 1, 3

    def write_body(self, writer: Writer) -> None:
        """Write a fetch that returns at once, with at most one byte, from a topic that need not exist."""
        # The last 0 is the most bytes in v3; in v0 to v2, it is the number of topics.
        head = numbers(tuple, "iiii").encode((CLIENT_REPLICA_ID, 0, 0, 0))
        partition = TopicPartition("kiel-groups", 0)
        writer.raw(head + FetchRequest.BODY["partitions"].encode({partition: FetchPosition(0, 1)}))

    @classmethod
    def decode_response(cls, payload: Buffer) -> bool:
        """Return whether the response names a topic. Only brokers of 0.10.1 or later return such a response."""
        # Brokers of 0.8 answer without the time for which they have throttled the client, as in v0.
        in_v0 = payload if len(payload) == _EMPTY_BYTES else memoryview(payload)[_THROTTLE_BYTES:]
        return bool(FetchRequest.decode_response(in_v0))


# ApiVersions v0: ask a broker which versions of each request it takes.
#
# It exists from 0.10.0 on. An older broker does not answer: 0.9 ignores the request, and 0.8 closes the connection.


class VersionRange(NamedTuple):
    """The versions of one request that a broker supports, from ``least`` to ``most`` inclusive."""

    least: int
    most: int


class ApiVersionsResponse(NamedTuple):
    """
    The versions of each request that a broker supports, by API key.

    Brokers of 4.x list version 0 of produce requests for old clients, but close the connection when they receive such a
    request.
    """

    error: ErrorCode
    versions: Mapping[int, VersionRange]


#: What is said about brokers that do not support the fetch requests of Kafka 0.8.
TOO_NEW = (
    "no longer support the requests of Kafka 0.8, as those of Kafka 4; kiel-groups reads and writes Kafka 0.8 to 3.9:"
    " use another client there, such as confluent-kafka, or Kafka's own tools"
)


def supports_early_requests(ranges: Mapping[int, VersionRange]) -> bool:
    """
    Return whether a broker supports the first fetch requests.

    A broker that does not is of 4.0 or later, and supports neither the first produce and offset requests.
    """
    fetches = ranges.get(FetchRequest.API_KEY)
    return fetches is not None and fetches.least <= FetchRequest.API_VERSION


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """Ask a broker which versions of each request it supports."""

    API_KEY, API_VERSION, ANSWER_NAME, BODY = 18, 0, "an API-versions response", fields()
    ANSWER = structure(ApiVersionsResponse, ERROR, mapping(INT16, numbers(VersionRange, "hh"), "API key"))
