"""The sender of a request is found in its header: a broker, by its number, or a client."""

from __future__ import annotations

import pytest

from tests.helpers.reference_codec import int16, int32, string
from tests.proxies.sender_proxy import sender_of

pytestmark = pytest.mark.unit

FETCH, UPDATE_METADATA, API_VERSIONS = 1, 6, 18


def request(api_key: int, api_version: int, client_id: str | None, body: bytes = b"") -> bytes:
    return int16(api_key) + int16(api_version) + int32(7) + string(client_id) + body


@pytest.mark.parametrize(
    ("sent", "sender"),
    [
        # Seen on 0.9.0.1: a replica fetcher, and the controller.
        (request(FETCH, 1, "ReplicaFetcherThread-0-0", int32(2)), 2),
        (request(UPDATE_METADATA, 1, "0"), 0),
        # Seen on 3.9.1: a replica fetcher, a follower of the controller's log, and a broker that registers.
        (request(FETCH, 17, "broker-1-fetcher-0"), 1),
        (request(API_VERSIONS, 4, "raft-client-2"), 2),
        (request(API_VERSIONS, 4, "12"), 12),
        # Clients.
        (request(FETCH, 0, "kiel-groups", int32(-1)), None),
        (request(FETCH, 17, "consumer-1", int32(100)), None),
        (request(API_VERSIONS, 4, None), None),
        (request(API_VERSIONS, 4, "broker"), None),
        (request(FETCH, 0, "me"), None),
        (int16(7) + int16(0) + int32(7), None),
    ],
)
def test_brokers_are_distinguished_from_clients(sent: bytes, sender: int | None) -> None:
    """A broker's request has its number in the client id or, on 0.9, in a fetch. Other requests are a client's."""
    assert sender_of(sent) == sender
