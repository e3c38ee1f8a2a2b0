"""
Requests to coordinators and their responses, byte by byte.

The bytes are those that the classes of kafka-python 2.0.6 (``kafka.protocol``) encode for the same values.
"""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import (
    CONSUMER_COORDINATOR_NOT_AVAILABLE,
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    NO_ERROR,
    NON_EMPTY_GROUP,
    NOT_COORDINATOR_FOR_CONSUMER,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    UNSUPPORTED_VERSION,
    error_code,
)
from kiel_groups.wire.framing import Request, encode_request
from kiel_groups.wire.group_requests import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    FoundCoordinator,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestV1,
    JoinGroupRequestV4,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kiel_groups.wire.metadata import BrokerAddress
from kiel_groups.wire.offsets import (
    DeletedOffsets,
    FetchedOffset,
    OffsetCommitRequestV1,
    OffsetCommitRequestV2,
    OffsetDeleteRequest,
    OffsetFetchRequestV1,
)
from kiel_groups.wire.versions import ApiVersionsRequest, ApiVersionsResponse, FetchProbeRequest, VersionRange
from tests.helpers.raw_requests import body_of
from tests.helpers.reference_codec import array, blob, int16, int32, string

pytestmark = pytest.mark.unit

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
RANGE = GroupProtocol("range", b"\0\1")

FIND = FindCoordinatorRequest("g")
JOIN = JoinGroupRequest("g", 30_000, "", "consumer", (RANGE, GroupProtocol("roundrobin", b"")))
JOIN_V1 = JoinGroupRequestV1("g", 10_000, "m-1", "consumer", (RANGE,), 300_000)
JOIN_V4 = JoinGroupRequestV4("g", 10_000, "m-1", "consumer", (RANGE,), 300_000)
SYNC = SyncGroupRequest("g", 7, "m-1", {"m-1": b"\0\1", "m-2": b""})
HEARTBEAT = HeartbeatRequest("g", 7, "m-1")
LEAVE = LeaveGroupRequest("g", "m-1")
COMMIT_V1 = OffsetCommitRequestV1("g", -1, "", {A0: OffsetAndMetadata(7), A1: OffsetAndMetadata(8, "note")})
COMMIT_V2 = OffsetCommitRequestV2(
    "g", 7, "m-1", {A0: OffsetAndMetadata(7), A1: OffsetAndMetadata(8, "note"), B0: OffsetAndMetadata(9)}
)
FETCH_OFFSETS = OffsetFetchRequestV1("g", (A0, B0))
DELETE_OFFSETS = OffsetDeleteRequest("g", (A0, A1, B0))
LIST = ListGroupsRequest()
DESCRIBE = DescribeGroupsRequest(("g", "h"))
DELETE = DeleteGroupsRequest(("g", "h"))
VERSIONS = ApiVersionsRequest()
PROBE = FetchProbeRequest()

#: A request, its API key and version, and its body in hexadecimal.
BODIES: list[tuple[Request[Any], int, int, str]] = [
    (FIND, 10, 0, "000167"),
    (
        JOIN,
        *(11, 0),
        "0001670000753000000008636f6e73756d657200000002000572616e6765000000020001000a726f756e64726f62696e00000000",
    ),
    (
        JOIN_V1,
        *(11, 1),
        "00016700002710000493e000036d2d310008636f6e73756d657200000001000572616e6765000000020001",
    ),
    (
        JOIN_V4,
        *(11, 4),
        "00016700002710000493e000036d2d310008636f6e73756d657200000001000572616e6765000000020001",
    ),
    (SYNC, 14, 0, "0001670000000700036d2d310000000200036d2d3100000002000100036d2d3200000000"),
    (SyncGroupRequest("g", 7, "m-2", {}), 14, 0, "0001670000000700036d2d3200000000"),
    (HEARTBEAT, 12, 0, "0001670000000700036d2d31"),
    (DELETE_OFFSETS, 47, 0, "000167000000020001610000000200000000000000010001620000000100000000"),
    (LEAVE, 13, 0, "00016700036d2d31"),
    (
        COMMIT_V1,
        *(8, 1),
        "000167ffffffff00000000000100016100000002000000000000000000000007ffffffffffffffff0000"
        "000000010000000000000008ffffffffffffffff00046e6f7465",
    ),
    (
        OffsetCommitRequestV1("g", 7, "m-1", {A0: OffsetAndMetadata(7)}, 1_700_000_000_000),
        *(8, 1),
        "0001670000000700036d2d3100000001000161000000010000000000000000000000070000018bcfe568000000",
    ),
    (
        COMMIT_V2,
        *(8, 2),
        "0001670000000700036d2d31ffffffffffffffff0000000200016100000002000000000000000000000007"
        "000000000001000000000000000800046e6f7465000162000000010000000000000000000000090000",
    ),
    (
        OffsetCommitRequestV2("g", -1, "", {A0: OffsetAndMetadata(7)}, 86_400_000),
        *(8, 2),
        "000167ffffffff00000000000005265c0000000001000161000000010000000000000000000000070000",
    ),
    (FETCH_OFFSETS, 9, 1, "0001670000000200016100000001000000000001620000000100000000"),
    (LIST, 16, 0, ""),
    (DESCRIBE, 15, 0, "00000002000167000168"),
    (DELETE, 42, 0, "00000002000167000168"),
    (VERSIONS, 18, 0, ""),
    (
        PROBE,
        *(1, 3),
        "ffffffff00000000000000000000000000000001000b6b69656c2d67726f7570730000000100000000000000000000000000000001",
    ),
]

#: A request, the payload of its response in hexadecimal, and the decoded response.
RESPONSES: list[tuple[Request[Any], str, Any]] = [
    (
        FIND,
        "00000000000300076b61666b612d3300002384",
        FoundCoordinator(NO_ERROR, BrokerAddress(3, "kafka-3", 9092)),
    ),
    (
        FIND,
        "000fffffffff0000ffffffff",
        FoundCoordinator(CONSUMER_COORDINATOR_NOT_AVAILABLE, BrokerAddress(-1, "", -1)),
    ),
    (
        JOIN,
        "000000000007000572616e676500036d2d3100036d2d310000000200036d2d3100000002000100046d2dc3a900000000",
        JoinGroupResponse(NO_ERROR, 7, "range", "m-1", "m-1", {"m-1": b"\0\1", "m-é": b""}),
    ),
    (
        JOIN_V4,
        "00000000004fffffffff0000000000036d2d3100000000",
        JoinGroupResponse(MEMBER_ID_REQUIRED, -1, "", "", "m-1", {}),
    ),
    (
        JOIN_V1,
        "000000000007000572616e676500036d2d3100036d2d3200000000",
        JoinGroupResponse(NO_ERROR, 7, "range", "m-1", "m-2", {}),
    ),
    (
        JOIN,
        "0019ffffffff0000000000036d2d3900000000",
        JoinGroupResponse(UNKNOWN_MEMBER_ID, -1, "", "", "m-9", {}),
    ),
    (SYNC, "0000000000020001", SyncGroupResponse(NO_ERROR, b"\0\1")),
    (SYNC, "001b00000000", SyncGroupResponse(REBALANCE_IN_PROGRESS, b"")),
    (HEARTBEAT, "001b", REBALANCE_IN_PROGRESS),
    (DELETE_OFFSETS, "00440000000000000000", DeletedOffsets(error_code(68), {})),
    (
        DELETE_OFFSETS,
        "0000000000050000000100016100000002000000000000000000010056",
        DeletedOffsets(NO_ERROR, {A0: NO_ERROR, A1: error_code(86)}),
    ),
    (LEAVE, "0019", UNKNOWN_MEMBER_ID),
    (
        COMMIT_V1,
        "000000020001610000000200000000000000000001001600016200000001000000000019",
        {A0: NO_ERROR, A1: ILLEGAL_GENERATION, B0: UNKNOWN_MEMBER_ID},
    ),
    (
        COMMIT_V2,
        "000000020001610000000200000000000000000001001600016200000001000000000019",
        {A0: NO_ERROR, A1: ILLEGAL_GENERATION, B0: UNKNOWN_MEMBER_ID},
    ),
    (
        FETCH_OFFSETS,
        "000000020001610000000100000000000000000000001100046e6f746500000001620000000100000000ffffffffffffffff00000000",
        {A0: FetchedOffset(17, "note", NO_ERROR), B0: FetchedOffset(-1, "", NO_ERROR)},
    ),
    (
        LIST,
        "0000000000020001670008636f6e73756d65720001630007636f6e6e656374",
        ListGroupsResponse(NO_ERROR, (ListedGroup("g", "consumer"), ListedGroup("c", "connect"))),
    ),
    (LIST, "000f00000000", ListGroupsResponse(CONSUMER_COORDINATOR_NOT_AVAILABLE, ())),
    (
        DESCRIBE,
        "0000000200000001670006537461626c650008636f6e73756d6572000572616e67650000000200036d2d3100046b69656c"
        "000a2f3132372e302e302e31000000020001000000010200036d2d3200046b69656c000a2f3132372e302e302e3200000000"
        "00000000001000016800000000000000000000",
        (
            DescribedGroup(
                *(NO_ERROR, "g", "Stable", "consumer", "range"),
                (
                    DescribedMember("m-1", "kiel", "/127.0.0.1", b"\0\1", b"\2"),
                    DescribedMember("m-2", "kiel", "/127.0.0.2", b"", b""),
                ),
            ),
            DescribedGroup(NOT_COORDINATOR_FOR_CONSUMER, "h", "", "", "", ()),
        ),
    ),
    (DELETE, "000000000000000200016700000001680044", {"g": NO_ERROR, "h": NON_EMPTY_GROUP}),
    (
        VERSIONS,
        "00000000000200000000000b001200000003",
        ApiVersionsResponse(NO_ERROR, {0: VersionRange(0, 11), 18: VersionRange(0, 3)}),
    ),
    (VERSIONS, "002300000000", ApiVersionsResponse(UNSUPPORTED_VERSION, {})),
]


def name(value: object) -> str | None:
    return type(value).__name__ if hasattr(value, "API_KEY") else None


@pytest.mark.parametrize(("request_", "key", "version", "expected"), BODIES, ids=name)
def test_a_request_has_the_bytes_of_kafka_python(request_: Request[Any], key: int, version: int, expected: str) -> None:
    """A request has the API key, the version and the body that kafka-python sends. A broker answers each of them."""
    assert body_of(request_).hex() == expected
    rest = int16(key) + int16(version) + int32(77) + string("me") + bytes.fromhex(expected)
    assert encode_request(request_, 77, "me") == int32(len(rest)) + rest
    assert request_.expects_response


@pytest.mark.parametrize(("request_", "payload", "expected"), RESPONSES, ids=name)
def test_a_response_is_read_from_the_bytes_of_kafka_python(
    request_: Request[Any], payload: str, expected: object
) -> None:
    """A response is decoded from the bytes that kafka-python decodes. Error codes are returned as values."""
    assert request_.decode_response(bytes.fromhex(payload)) == expected


@pytest.mark.parametrize(("request_", "payload", "expected"), RESPONSES, ids=name)
def test_truncated_or_longer_response_is_refused(request_: Request[Any], payload: str, expected: object) -> None:
    """No prefix of a response is a response, and neither is a response with another byte."""
    whole = bytes.fromhex(payload)
    for end in range(len(whole)):
        with pytest.raises(ProtocolError):
            request_.decode_response(whole[:end])
    with pytest.raises(ProtocolError, match="1 bytes after its end"):
        request_.decode_response(whole + b"\0")


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("0000000000000001000b6b69656c2d67726f75707300000001000000000003ffffffffffffffff00000000", True),
        ("0000000000000000", False),
        ("00000000", False),
    ],
    ids=["0.10.1", "0.9", "0.8"],
)
def test_an_answer_to_the_probe_says_whether_the_version_was_understood(payload: str, expected: bool) -> None:
    """A broker that does not look at the version answers for no topic; one of 0.8 does not say how it has throttled."""
    assert PROBE.decode_response(bytes.fromhex(payload)) is expected
    for wrong in (payload[:-2], payload + "00"):
        with pytest.raises(ProtocolError):
            PROBE.decode_response(bytes.fromhex(wrong))


def test_decoded_metadata_and_assignments_are_copies() -> None:
    """Metadata and assignments are copies, because a member keeps them longer than the buffer of the response."""
    payload = bytearray(int16(0) + blob(b"x"))
    answer = SYNC.decode_response(payload)
    payload[-1] = ord("y")
    assert answer.assignment == b"x"
    joined = JOIN.decode_response(int16(0) + int32(1) + string("") * 3 + array(string("m") + blob(b"x")))
    described = DESCRIBE.decode_response(
        array(int16(0) + string("") * 4 + array(string("") * 3 + blob(b"x") + blob(None)))
    )
    (member,) = described[0].members
    assert {type(each) for each in (joined.members["m"], member.metadata, member.assignment)} == {bytes}


def test_member_named_twice_is_refused() -> None:
    """A response that names a member twice is refused, because the two could subscribe to different topics."""
    member = string("m") + blob(b"")
    with pytest.raises(ProtocolError, match=r"a join-group response of .* member 'm' twice"):
        JOIN.decode_response(int16(0) + int32(1) + string("") * 3 + array(member, member))


def test_api_key_named_twice_is_refused() -> None:
    """A response that names an API key twice is refused, because the two ranges could contradict each other."""
    key = int16(3) + int16(0) + int16(1)
    with pytest.raises(ProtocolError, match="API key 3 twice"):
        VERSIONS.decode_response(int16(0) + array(key, key))


def test_count_beyond_the_bytes_left_is_refused() -> None:
    """A count is refused if the remaining bytes cannot have that many elements."""
    for count in (-1, 1, 2**31 - 1):
        for request_, head in (
            (JOIN, int16(0) + int32(1) + string("") * 3),
            (LIST, int16(0)),
            (VERSIONS, int16(0)),
            (DESCRIBE, b""),
            (DESCRIBE, int32(1) + int16(0) + string("") * 4),
        ):
            with pytest.raises(ProtocolError, match=f"array of {count} elements"):
                request_.decode_response(head + int32(count))


def test_fields_that_do_not_fit_are_the_callers_error() -> None:
    """A field that does not fit into its type raises a ConfigError with the reason."""
    with pytest.raises(ConfigError, match="not an int32"):
        body_of(JoinGroupRequestV1("g", 1, "", "consumer", (), 1 << 31))
    with pytest.raises(ConfigError, match="not an int64"):
        body_of(OffsetCommitRequestV2("g", 1, "", {}, 1 << 63))
    with pytest.raises(ConfigError, match="at most 32767 bytes"):
        body_of(FindCoordinatorRequest("é" * 20_000))
