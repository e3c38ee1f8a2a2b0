"""The answers of a faulty broker are valid, so the clients can decode them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.config import HostPort
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NOT_LEADER_FOR_PARTITION
from kiel_groups.wire.fetch import FetchRequest
from kiel_groups.wire.group_requests import (
    DescribedGroup,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    FoundCoordinator,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestV1,
    JoinGroupRequestV4,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kiel_groups.wire.list_offsets import ListOffsetsRequest
from kiel_groups.wire.metadata import BrokerAddress, MetadataRequest
from kiel_groups.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestV1,
    OffsetCommitRequestV2,
    OffsetFetchRequest,
    OffsetFetchRequestV1,
)
from kiel_groups.wire.primitives import FieldType, Writer, by_partition
from kiel_groups.wire.produce import ProduceRequest
from tests.helpers.reference_codec import array, blob, int16, int32, string
from tests.proxies import Exchange, NextFailures, NextRefusals, failing
from tests.proxies.faulty_answers import understands, with_addresses, with_error

pytestmark = pytest.mark.unit

PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 7), TopicPartition("b", 0)]
CODE = NOT_LEADER_FOR_PARTITION.number


def payload(*fields: tuple[str, Any]) -> bytes:
    """Return an encoded answer with these fields after each partition's number."""

    def write(writer: Writer, value: None) -> None:
        for kind, content in fields:
            getattr(writer, kind)(content)

    return by_partition(FieldType[None](lambda reader: None, write, 0)).encode(dict.fromkeys(PARTITIONS))


def metadata() -> bytes:
    """Return an encoded Metadata answer with two brokers, and a topic whose only partition the first broker leads."""
    writer = Writer()
    writer.int32(2)
    for node in (1, 2):
        writer.int32(node)
        writer.string("127.0.0.1")
        writer.int32(9000 + node)
    writer.int32(1)
    writer.int16(0)
    writer.string("a")
    writer.int32(1)
    writer.int16(0)
    for number in (0, 1, 2, 1, 2, 1, 1):  # partition, leader, two replicas, one in-sync replica
        writer.int32(number)
    return writer.getvalue()


@pytest.mark.parametrize(
    ("request_type", "real", "decode", "error"),
    [
        (ProduceRequest, payload(("int16", 0), ("int64", 5)), ProduceRequest.decode_response, lambda r: r.error),
        (
            FetchRequest,
            payload(("int16", 0), ("int64", 5), ("blob", b"message set")),
            FetchRequest.decode_response,
            lambda r: r.error,
        ),
        (
            ListOffsetsRequest,
            payload(("int16", 0), ("int32", 1), ("int64", 5)),
            ListOffsetsRequest.decode_response,
            lambda r: r.error,
        ),
        (OffsetCommitRequest, payload(("int16", 0)), OffsetCommitRequest.decode_response, lambda r: r),
        (
            OffsetFetchRequest,
            payload(("int64", 5), ("string", "by me"), ("int16", 0)),
            OffsetFetchRequest.decode_response,
            lambda r: r.error,
        ),
        (OffsetCommitRequestV1, payload(("int16", 0)), OffsetCommitRequestV1.decode_response, lambda r: r),
        (OffsetCommitRequestV2, payload(("int16", 0)), OffsetCommitRequestV2.decode_response, lambda r: r),
        (
            OffsetFetchRequestV1,
            payload(("int64", 5), ("string", "by me"), ("int16", 0)),
            OffsetFetchRequestV1.decode_response,
            lambda r: r.error,
        ),
    ],
    ids=[
        *("produce", "fetch", "list offsets", "offset commit", "offset fetch"),
        *("offset commit v1", "offset commit v2", "offset fetch v1"),
    ],
)
def test_every_partition_gets_the_error(
    request_type: Any, real: bytes, decode: Callable[..., Any], error: Callable[[Any], Any]
) -> None:
    """``with_error()`` keeps the partitions of the real answer, and gives each of them the error code."""
    assert understands(request_type.API_KEY, request_type.API_VERSION)
    made = decode(with_error(request_type.API_KEY, real, CODE))
    results = getattr(made, "partitions", made)
    assert list(results) == PARTITIONS
    assert [error(result) for result in results.values()] == [NOT_LEADER_FOR_PARTITION] * 3


ERROR = NOT_LEADER_FOR_PARTITION
JOINED = int16(0) + int32(7) + string("range") + string("m-1") * 2 + array(string("m-1") + blob(b"topics"))
DESCRIBED = int16(0) + string("g") + string("Stable") + string("consumer") + string("range") + array()
#: A request to a coordinator, an answer to it, and the decoded answer after ``with_error()``.
GROUP_ANSWERS: list[tuple[Any, bytes, object]] = [
    (
        FindCoordinatorRequest("g"),
        int16(0) + int32(3) + string("kafka-3") + int32(9092),
        FoundCoordinator(ERROR, BrokerAddress(-1, "", -1)),
    ),
    (JoinGroupRequest("g", 1, "", "consumer", ()), JOINED, JoinGroupResponse(ERROR, -1, "", "", "", {})),
    (JoinGroupRequestV1("g", 1, "", "consumer", (), 1), JOINED, JoinGroupResponse(ERROR, -1, "", "", "", {})),
    (
        JoinGroupRequestV4("g", 1, "", "consumer", (), 1),
        int32(0) + JOINED,
        JoinGroupResponse(ERROR, -1, "", "", "", {}),
    ),
    (SyncGroupRequest("g", 7, "m-1", {}), int16(0) + blob(b"partitions"), SyncGroupResponse(ERROR, b"")),
    (HeartbeatRequest("g", 7, "m-1"), int16(0), ERROR),
    (LeaveGroupRequest("g", "m-1"), int16(0), ERROR),
    (ListGroupsRequest(), int16(0) + array(string("g") + string("consumer")), ListGroupsResponse(ERROR, ())),
    (DescribeGroupsRequest(("g",)), array(DESCRIBED), (DescribedGroup(ERROR, "g", "", "", "", ()),)),
]


@pytest.mark.parametrize(("request_", "real", "expected"), GROUP_ANSWERS, ids=lambda value: type(value).__name__)
def test_a_coordinators_answer_gets_the_error(request_: Any, real: bytes, expected: object) -> None:
    """``with_error()`` gives a coordinator's answer the error code, and removes what only a success has."""
    assert understands(request_.API_KEY, request_.API_VERSION)
    key, version = request_.API_KEY, request_.API_VERSION
    assert request_.decode_response(with_error(key, real, CODE, version)) == expected
    with pytest.raises(ProtocolError):
        with_error(key, real[:-1], CODE, version)


def test_next_refusals_answer_without_a_broker() -> None:
    """``NextRefusals`` answers the next requests of one kind with the error. Other requests go to the broker."""
    refuse = NextRefusals(HeartbeatRequest.API_KEY, CODE, times=2)
    assert refuse(LeaveGroupRequest.API_KEY, 0) is None
    assert refuse(HeartbeatRequest.API_KEY, 9) is None
    assert [refuse(HeartbeatRequest.API_KEY, 0) for _ in range(3)] == [int16(CODE), int16(CODE), None]
    assert refuse.made == 2
    with pytest.raises(ConfigError, match=r"api_key: 8 given; expected one of \[10, 11, 12, 13, 14, 16\]"):
        NextRefusals(OffsetCommitRequest.API_KEY, CODE)


def test_later_versions_are_not_understood() -> None:
    """``failing()`` returns an answer of a version that this package does not request as it is."""
    assert not understands(MetadataRequest.API_KEY, 1)
    answer = failing(HeartbeatRequest.API_KEY, CODE)
    later = Exchange(HeartbeatRequest.API_KEY, 1, 1, b"", int32(0) + int16(0))
    assert answer(later) is later.response


def test_a_topic_gets_the_error_in_metadata() -> None:
    """
    In a Metadata answer, ``with_error()`` gives each topic the error code and no partitions. The brokers do not change.
    """
    view = MetadataRequest().decode_response(with_error(MetadataRequest.API_KEY, metadata(), CODE))
    assert [broker.node_id for broker in view.brokers] == [1, 2]
    assert [(topic.topic, topic.error, topic.partitions) for topic in view.topics] == [
        ("a", NOT_LEADER_FOR_PARTITION, ())
    ]


def test_brokers_get_other_addresses() -> None:
    """
    ``with_addresses()`` gives the broker in the mapping its new address. The other broker, the leaders and the replicas
    do not change.
    """
    moved = with_addresses(3, metadata(), {HostPort("127.0.0.1", 9002): HostPort("127.0.0.1", 1)})
    view = MetadataRequest().decode_response(moved)
    assert view.brokers == (BrokerAddress(1, "127.0.0.1", 9001), BrokerAddress(2, "127.0.0.1", 1))
    assert view.topics == MetadataRequest().decode_response(metadata()).topics
    assert with_addresses(3, metadata(), {}) == metadata()


def test_a_coordinator_gets_another_address() -> None:
    """``with_addresses()`` replaces the address in a FindCoordinator answer, and does not change an error."""
    found = int16(0) + int32(3) + string("127.0.0.1") + int32(9003)
    moved = {HostPort("127.0.0.1", 9003): HostPort("127.0.0.1", 1)}
    request = FindCoordinatorRequest("g")
    decoded = request.decode_response(with_addresses(request.API_KEY, found, moved))
    assert decoded.broker == BrokerAddress(3, "127.0.0.1", 1)
    nowhere = int16(15) + int32(-1) + string("") + int32(-1)
    assert with_addresses(request.API_KEY, nowhere, moved) == nowhere
    assert with_addresses(HeartbeatRequest.API_KEY, int16(0), moved) == int16(0)


def test_next_failures_count_from_their_creation() -> None:
    """``NextFailures`` changes the next answers to one kind of request, whatever their numbers are."""
    answer = NextFailures(HeartbeatRequest.API_KEY, CODE, times=2)

    def replied(api_key: int, number: int, version: int = 0) -> Any:
        return answer(Exchange(api_key, version, number, b"", int16(0)))

    assert replied(LeaveGroupRequest.API_KEY, 1) == int16(0)
    assert replied(HeartbeatRequest.API_KEY, 5, version=9) == int16(0)
    assert [replied(HeartbeatRequest.API_KEY, number) for number in (7, 8, 9)] == [int16(CODE), int16(CODE), int16(0)]
    assert answer.made == 2


def test_failing_ends_after_the_given_number_of_answers() -> None:
    """``failing()`` changes only the given number of answers, and no answers to other kinds of requests."""
    answer = failing(OffsetCommitRequest.API_KEY, CODE, times=2)
    real = payload(("int16", 0))

    def replied(api_key: int, number: int) -> Any:
        return answer(Exchange(api_key, 0, number, b"", real))

    failed = with_error(OffsetCommitRequest.API_KEY, real, CODE)
    assert [replied(OffsetCommitRequest.API_KEY, number) for number in (1, 2, 3)] == [failed, failed, real]
    assert replied(ProduceRequest.API_KEY, 1) == real


def test_with_error_refuses_invalid_arguments() -> None:
    """``with_error()`` refuses an unknown request, a code that is not an int16, and bytes that are not an answer."""
    with pytest.raises(ConfigError, match=r"api_key: 18 given; expected one of \[0, 1, 2, 3, 8, .* 16\]"):
        with_error(18, b"", CODE)
    with pytest.raises(ConfigError, match="not an int16"):
        with_error(OffsetCommitRequest.API_KEY, payload(("int16", 0)), 1 << 15)
    with pytest.raises(ProtocolError, match="a broker's answer"):
        with_error(OffsetCommitRequest.API_KEY, b"\0\0", CODE)
