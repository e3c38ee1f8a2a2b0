"""
Requests that change topics and their responses, byte by byte.

The bytes are those that the classes of kafka-python 2.0.6 (``kafka.protocol.admin``) encode for the same values.
"""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.wire.error_codes import (
    INVALID_PARTITIONS,
    NO_ERROR,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kiel_groups.wire.framing import Request, encode_request
from kiel_groups.wire.topic_requests import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from tests.helpers.raw_requests import body_of
from tests.helpers.reference_codec import int16, int32, string

pytestmark = pytest.mark.unit

CREATE = CreateTopicsRequest({"a": NewTopic(3, 2), "é": NewTopic(1, 1, settings={"a": "7"})}, 30_000)
GROW = CreatePartitionsRequest({"a": 3, "b": 5}, 30_000)
DELETE = DeleteTopicsRequest(("a", "b"), 30_000)

#: A request, its API key, and its body in hexadecimal.
BODIES: list[tuple[Request[Any], int, str]] = [
    (
        CREATE,
        19,
        "0000000200016100000003000200000000000000000002c3a9000000010001000000000000000100016100013700007530",
    ),
    (GROW, 37, "0000000200016100000003ffffffff00016200000005ffffffff0000753000"),
    (DELETE, 20, "0000000200016100016200007530"),
]

#: A request, the payload of its response in hexadecimal, and the decoded response.
RESPONSES: list[tuple[Request[Any], str, Any]] = [
    (CREATE, "0000000200016100000001620024", {"a": NO_ERROR, "b": TOPIC_ALREADY_EXISTS}),
    (GROW, "00000007000000020001610000ffff000162002500056665776572", {"a": NO_ERROR, "b": INVALID_PARTITIONS}),
    (DELETE, "0000000200016100000001620003", {"a": NO_ERROR, "b": UNKNOWN_TOPIC_OR_PARTITION}),
]


def name(value: object) -> str | None:
    return type(value).__name__ if hasattr(value, "API_KEY") else None


@pytest.mark.parametrize(("request_", "key", "expected"), BODIES, ids=name)
def test_a_change_has_the_bytes_of_kafka_python(request_: Request[Any], key: int, expected: str) -> None:
    """A request has the API key, version 0, and the body that kafka-python sends."""
    assert body_of(request_).hex() == expected
    rest = int16(key) + int16(0) + int32(77) + string("me") + bytes.fromhex(expected)
    assert encode_request(request_, 77, "me") == int32(len(rest)) + rest
    assert request_.expects_response


@pytest.mark.parametrize(("request_", "payload", "expected"), RESPONSES, ids=name)
def test_the_errors_of_changes_are_read_from_the_bytes_of_kafka_python(
    request_: Request[Any], payload: str, expected: object
) -> None:
    """A response is decoded into the error of each topic. No prefix is a response, and no more bytes are."""
    whole = bytes.fromhex(payload)
    assert request_.decode_response(whole) == expected
    for end in range(len(whole)):
        with pytest.raises(ProtocolError):
            request_.decode_response(whole[:end])
    with pytest.raises(ProtocolError, match="1 bytes after its end"):
        request_.decode_response(whole + b"\0")


def test_a_number_that_does_not_fit_is_the_callers_error() -> None:
    """A number of partitions or replicas that does not fit into its type raises a ConfigError."""
    with pytest.raises(ConfigError, match="not an int16"):
        body_of(CreateTopicsRequest({"a": NewTopic(1, 1 << 15)}, 1))
    with pytest.raises(ConfigError, match="not an int32"):
        body_of(CreatePartitionsRequest({"a": 1 << 31}, 1))
