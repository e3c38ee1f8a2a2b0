"""Requests about the settings of topics, and their responses, byte by byte as Kafka's protocol guide has them."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.wire.error_codes import NO_ERROR, error_code
from kiel_groups.wire.framing import Request
from kiel_groups.wire.topic_requests import (
    AlterConfigsRequest,
    ConfigAnswer,
    ConfigEntry,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from tests.helpers.raw_requests import body_of
from tests.helpers.reference_codec import int16, int32, string

pytestmark = pytest.mark.unit


def int8(value: int) -> bytes:
    return bytes([value])


DESCRIBE = DescribeConfigsRequest("t")
REPLACE = AlterConfigsRequest("t", {"k": "v", "l": "w"}, validate_only=True)
CHANGE = IncrementalAlterConfigsRequest("t", {"k": "v"}, ("l",), validate_only=False)

TOPIC = int8(2) + string("t")
NULL = int16(-1)

SET = string("k") + int8(0) + string("v")

BODIES: list[tuple[Request[Any], bytes]] = [
    (DESCRIBE, int32(1) + TOPIC + int32(-1) + int8(0)),
    (REPLACE, int32(1) + TOPIC + int32(2) + string("k") + string("v") + string("l") + string("w") + int8(1)),
    (CHANGE, int32(1) + TOPIC + int32(2) + SET + string("l") + int8(1) + string("") + int8(0)),
]

ENTRY = string("k") + string("v") + int8(0) + int8(1) + int8(0)
SYNONYMS = int32(2) + string("k") + string("v") + int8(1) + string("log.k") + NULL + int8(5)
NO_VALUE = string("l") + NULL + int8(1) + int8(5) + int8(0) + int32(0)
RESPONSES: list[tuple[Request[Any], bytes, Any]] = [
    (
        DESCRIBE,
        int32(7) + int32(1) + int16(0) + NULL + TOPIC + int32(2) + ENTRY + SYNONYMS + NO_VALUE,
        (ConfigAnswer(NO_ERROR, "", {"k": ConfigEntry("v", 1), "l": ConfigEntry("", 5)}),),
    ),
    (REPLACE, int32(7) + int32(1) + int16(40) + string("bad") + TOPIC, (ConfigAnswer(error_code(40), "bad"),)),
    (CHANGE, int32(7) + int32(1) + int16(0) + NULL + TOPIC, (ConfigAnswer(NO_ERROR, ""),)),
]


@pytest.mark.parametrize(("request_", "expected"), BODIES)
def test_the_bytes_of_requests(request_: Request[Any], expected: bytes) -> None:
    """A null list of names asks for all settings; a deletion has no value."""
    assert body_of(request_) == expected


@pytest.mark.parametrize(("request_", "payload", "expected"), RESPONSES)
def test_responses_are_decoded(request_: Request[Any], payload: bytes, expected: object) -> None:
    """No prefix of a response is one, and no more bytes are."""
    assert request_.decode_response(payload) == expected
    for end in range(len(payload)):
        with pytest.raises(ProtocolError):
            request_.decode_response(payload[:end])
    with pytest.raises(ProtocolError, match="1 bytes after its end"):
        request_.decode_response(payload + b"\0")
