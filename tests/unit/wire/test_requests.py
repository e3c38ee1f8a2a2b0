"""Requests and responses, byte by byte, as the protocol's description defines them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import (
    LEADER_NOT_AVAILABLE,
    NO_ERROR,
    NOT_LEADER_FOR_PARTITION,
    REPLICA_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kiel_groups.wire.fetch import FetchedPartition, FetchPosition, FetchRequest
from kiel_groups.wire.framing import Request, encode_request
from kiel_groups.wire.list_offsets import (
    EARLIEST,
    LATEST,
    FoundOffset,
    ListedOffsets,
    ListOffsetsRequest,
    ListOffsetsRequestV1,
    OffsetQuery,
)
from kiel_groups.wire.metadata import (
    BrokerAddress,
    ClusterAnswer,
    ClusterRequest,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicIdsRequest,
    TopicMetadata,
)
from kiel_groups.wire.offsets import FetchedOffset, OffsetCommitRequest, OffsetFetchRequest
from kiel_groups.wire.primitives import BYTES, STRING
from kiel_groups.wire.produce import ProducedPartition, ProduceRequest
from tests.helpers.raw_requests import body_of
from tests.helpers.reference_codec import array, blob, int16, int32, int64, string

pytestmark = pytest.mark.unit

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

METADATA = MetadataRequest(("a", "b"))
PRODUCE = ProduceRequest(-1, 500, {A0: b"set", B0: b""})
FETCH = FetchRequest(1000, 1, {A0: FetchPosition(7, 100), A1: FetchPosition(8, 200)})
LIST_OFFSETS = ListOffsetsRequest({A0: OffsetQuery(EARLIEST), A1: OffsetQuery(LATEST, 2)})
LIST_TIMES = ListOffsetsRequestV1({A0: EARLIEST, A1: 1_700_000_000_000})
COMMIT = OffsetCommitRequest("g", {A0: OffsetAndMetadata(7), A1: OffsetAndMetadata(8, "note")})
FETCH_OFFSETS = OffsetFetchRequest("g", (A0, B0))

BODIES: list[tuple[Request[Any], bytes]] = [
    (METADATA, array(string("a"), string("b"))),
    (MetadataRequest(), array()),
    (
        PRODUCE,
        int16(-1)
        + int32(500)
        + array(string("a") + array(int32(0) + blob(b"set")), string("b") + array(int32(0) + blob(b""))),
    ),
    (
        FETCH,
        int32(-1)
        + int32(1000)
        + int32(1)
        + array(
            string("a") + array(int32(0) + int64(7) + int32(100), int32(1) + int64(8) + int32(200)),
        ),
    ),
    (
        LIST_OFFSETS,
        int32(-1) + array(string("a") + array(int32(0) + int64(-2) + int32(1), int32(1) + int64(-1) + int32(2))),
    ),
    (LIST_TIMES, int32(-1) + array(string("a") + array(int32(0) + int64(-2), int32(1) + int64(1_700_000_000_000)))),
    (
        COMMIT,
        string("g")
        + array(string("a") + array(int32(0) + int64(7) + string(""), int32(1) + int64(8) + string("note"))),
    ),
    (FETCH_OFFSETS, string("g") + array(string("a") + array(int32(0)), string("b") + array(int32(0)))),
]

RESPONSES: list[tuple[Request[Any], bytes, Any]] = [
    (
        METADATA,
        # Brokers of 0.8 pass on a registration without a host, such as that of one with encrypted listeners only.
        array(
            int32(1) + string("kafka-1") + int32(9092),
            int32(3) + int16(-1) + int32(-1),
            int32(2) + string("kafka-2") + int32(9093),
        )
        + array(
            int16(0)
            + string("a")
            + array(
                int16(9) + int32(0) + int32(1) + array(int32(1), int32(2)) + array(int32(1)),
                int16(5) + int32(1) + int32(-1) + array() + array(),
            ),
            int16(3) + string("b") + array(),
        ),
        MetadataResponse(
            (BrokerAddress(1, "kafka-1", 9092), BrokerAddress(2, "kafka-2", 9093)),
            (
                TopicMetadata(
                    NO_ERROR,
                    "a",
                    (
                        PartitionMetadata(REPLICA_NOT_AVAILABLE, 0, 1, (1, 2), (1,)),
                        PartitionMetadata(LEADER_NOT_AVAILABLE, 1, -1, (), ()),
                    ),
                ),
                TopicMetadata(UNKNOWN_TOPIC_OR_PARTITION, "b", ()),
            ),
        ),
    ),
    (
        PRODUCE,
        array(
            string("a") + array(int32(0) + int16(0) + int64(41)), string("b") + array(int32(0) + int16(6) + int64(-1))
        ),
        {A0: ProducedPartition(NO_ERROR, 41), B0: ProducedPartition(NOT_LEADER_FOR_PARTITION, -1)},
    ),
    (
        FETCH,
        array(
            string("a")
            + array(
                int32(0) + int16(0) + int64(99) + blob(b"message set"),
                int32(1) + int16(3) + int64(-1) + blob(b""),
            )
        ),
        {
            A0: FetchedPartition(NO_ERROR, 99, memoryview(b"message set")),
            A1: FetchedPartition(UNKNOWN_TOPIC_OR_PARTITION, -1, memoryview(b"")),
        },
    ),
    (
        LIST_OFFSETS,
        array(
            string("a") + array(int32(0) + int16(0) + array(int64(5), int64(0)), int32(1) + int16(6) + array()),
        ),
        {A0: ListedOffsets(NO_ERROR, (5, 0)), A1: ListedOffsets(NOT_LEADER_FOR_PARTITION, ())},
    ),
    (
        LIST_TIMES,
        array(
            string("a") + array(int32(0) + int16(0) + int64(-1) + int64(5), int32(1) + int16(6) + int64(9) + int64(7))
        ),
        {A0: FoundOffset(NO_ERROR, -1, 5), A1: FoundOffset(NOT_LEADER_FOR_PARTITION, 9, 7)},
    ),
    (
        COMMIT,
        array(string("a") + array(int32(0) + int16(0), int32(1) + int16(3))),
        {A0: NO_ERROR, A1: UNKNOWN_TOPIC_OR_PARTITION},
    ),
    (
        FETCH_OFFSETS,
        array(
            string("a") + array(int32(0) + int64(17) + string(None) + int16(0)),
            string("b") + array(int32(0) + int64(-1) + string("") + int16(3)),
        ),
        {A0: FetchedOffset(17, "", NO_ERROR), B0: FetchedOffset(-1, "", UNKNOWN_TOPIC_OR_PARTITION)},
    ),
]


def name(value: object) -> str | None:
    return type(value).__name__ if hasattr(value, "API_KEY") else None


@pytest.mark.parametrize(("request_", "expected"), BODIES, ids=name)
def test_a_request_has_the_bytes_of_the_protocol(request_: Request[Any], expected: bytes) -> None:
    """A request is encoded as the protocol describes it, with its partitions grouped by topic."""
    assert body_of(request_) == expected


@pytest.mark.parametrize(
    ("request_", "key"),
    [(PRODUCE, 0), (FETCH, 1), (LIST_OFFSETS, 2), (METADATA, 3), (COMMIT, 8), (FETCH_OFFSETS, 9)],
    ids=name,
)
def test_frame_has_size_key_version_correlation_and_client(request_: Request[Any], key: int) -> None:
    """The frame of a request starts with size, API key, version, correlation id and client id. Then comes the body."""
    rest = int16(key) + int16(0) + int32(77) + string("me") + body_of(request_)
    assert encode_request(request_, 77, "me") == int32(len(rest)) + rest


@pytest.mark.parametrize(("request_", "payload", "expected"), RESPONSES, ids=name)
def test_a_response_is_read_from_the_bytes_of_the_protocol(
    request_: Request[Any], payload: bytes, expected: object
) -> None:
    """A response is decoded as the protocol describes it. Error codes are returned as values."""
    assert request_.decode_response(payload) == expected


@pytest.mark.parametrize(("request_", "payload", "expected"), RESPONSES, ids=name)
def test_response_truncated_anywhere_is_refused(request_: Request[Any], payload: bytes, expected: object) -> None:
    """A truncated response is refused: no prefix of a response is a valid response."""
    for end in range(len(payload)):
        with pytest.raises(ProtocolError):
            request_.decode_response(payload[:end])


@pytest.mark.parametrize(("request_", "payload", "expected"), RESPONSES, ids=name)
def test_response_with_bytes_after_its_end_is_refused(request_: Request[Any], payload: bytes, expected: object) -> None:
    """A response with bytes after its end is refused, because it answers another request."""
    with pytest.raises(ProtocolError, match="1 bytes after its end"):
        request_.decode_response(payload + b"\0")


@pytest.mark.parametrize(("request_", "payload", "expected"), RESPONSES, ids=name)
@pytest.mark.parametrize("count", [-1, 2**31 - 1, -(2**31), 1000])
def test_count_beyond_the_bytes_left_is_refused(
    request_: Request[Any], payload: bytes, expected: object, count: int
) -> None:
    """A count is refused if the remaining bytes cannot have that many elements."""
    with pytest.raises(ProtocolError, match=f"array of {count} elements"):
        request_.decode_response(int32(count) + payload[4:])


def test_a_count_is_limited_by_the_smallest_size_of_an_element() -> None:
    """A count is limited by the smallest size of an element. Three brokers do not fit into 14 bytes."""
    with pytest.raises(ProtocolError, match="array of 3 elements, with 14 bytes left, at byte 4"):
        METADATA.decode_response(int32(3) + bytes(14))


def test_partition_named_twice_is_refused() -> None:
    """A response that names a partition twice is refused, because the two answers could contradict each other."""
    payload = array(string("a") + array(int32(0) + int16(0), int32(0) + int16(3)))
    with pytest.raises(ProtocolError, match="partition a:0 twice"):
        COMMIT.decode_response(payload)


def test_topic_that_is_no_utf8_is_refused() -> None:
    """A topic that is not UTF-8 raises a ProtocolError instead of a UnicodeDecodeError."""
    payload = array(int16(2) + b"\xff\xfe" + array())
    with pytest.raises(ProtocolError, match="no UTF-8, at byte 6"):
        COMMIT.decode_response(payload)


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (int16(2) + b"x", "a value of 2 bytes, with 1 bytes left, at byte 2"),
        (int16(-2), "a length of -2, at byte 2"),
    ],
)
def test_a_text_that_ends_early_is_described(payload: bytes, found: str) -> None:
    """An error about a response says what the response has, how much of it is left, and where."""
    with pytest.raises(ProtocolError, match=f"a name of {len(payload)} bytes holds {found}"):
        STRING.decode(payload, "a name")


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (int32(4) + b"xyz", "a value of 4 bytes, with 3 bytes left, at byte 4"),
        (int32(-2), "a length of -2, at byte 4"),
        (b"xyz", "a value of 4 bytes, with 3 bytes left, at byte 0"),
    ],
)
def test_bytes_that_end_early_are_described(payload: bytes, found: str) -> None:
    """Bytes of a negative length other than null's are refused, as are bytes that end before their length."""
    with pytest.raises(ProtocolError, match=f"a value of {len(payload)} bytes holds {found}"):
        BYTES.decode(payload, "a value")


@pytest.mark.parametrize("topic", [int16(-1), int16(-2)])
def test_topic_of_negative_length_is_refused(topic: bytes) -> None:
    """A topic of negative length is refused, because a topic is never null."""
    with pytest.raises(ProtocolError, match="a length of -"):
        COMMIT.decode_response(array(topic + array()))


def test_fetched_message_set_is_a_view() -> None:
    """A fetched message set is a view of the response, not a copy. A null set is read as an empty one."""
    one, null = int16(0) + int64(1) + blob(b"x"), int16(0) + int64(1) + blob(None)
    payload = bytearray(array(string("a") + array(int32(0) + one, int32(1) + null)))
    partitions = FETCH.decode_response(payload)
    payload[payload.index(b"x")] = ord("y")
    assert partitions[A0].message_set == b"y"
    assert partitions[A1].message_set == b""


def test_only_produce_without_acks_expects_no_response() -> None:
    """A broker answers every request except a produce request with acks 0."""
    requests: list[Request[Any]] = [METADATA, PRODUCE, FETCH, LIST_OFFSETS, COMMIT, FETCH_OFFSETS]
    assert all(request.expects_response for request in requests)
    assert not ProduceRequest(0, 500, {}).expects_response


def test_fields_that_do_not_fit_are_the_callers_error() -> None:
    """A field that does not fit into its type raises a ConfigError with the reason, never a ``struct.error``."""
    with pytest.raises(ConfigError, match=r"^40000 cannot be sent to a broker: not an int16"):
        body_of(ProduceRequest(40_000, 500, {}))
    with pytest.raises(ConfigError, match=f"^{1 << 63} cannot be sent to a broker: not an int64"):
        body_of(FetchRequest(1, 1, {A0: FetchPosition(1 << 63, 1)}))
    with pytest.raises(ConfigError, match="at most 32767 bytes"):
        body_of(OffsetCommitRequest("g", {A0: OffsetAndMetadata(1, "é" * 20_000)}))
    with pytest.raises(ConfigError, match="no UTF-8 form"):
        body_of(MetadataRequest(("\ud800",)))


def test_longest_text_is_written() -> None:
    """A text of 32,767 bytes, the longest one, is written."""
    assert body_of(MetadataRequest(("t" * 32_767,)))[4:6] == int16(32_767)


def test_mapping_of_results_keeps_every_partition() -> None:
    """A response with many topics and partitions is decoded completely."""
    payload = array(*(string(f"t{t}") + array(*(int32(p) + int16(0) for p in range(50))) for t in range(20)))
    errors: Mapping[TopicPartition, object] = COMMIT.decode_response(payload)
    assert set(errors) == {TopicPartition(f"t{t}", p) for t in range(20) for p in range(50)}


def test_the_id_of_a_cluster_is_asked_for_without_topics() -> None:
    """Brokers have a rack or none, and a cluster an id or none."""
    assert body_of(ClusterRequest()) == array()
    brokers = array(
        int32(1) + string("a") + int32(9092) + string("east"), int32(2) + string("b") + int32(9092) + int16(-1)
    )
    assert ClusterRequest.decode_response(brokers + string("id") + int32(1) + array()) == ClusterAnswer("id", 1)
    assert ClusterRequest.decode_response(brokers + int16(-1) + int32(1) + array()) == ClusterAnswer("", 1)


# Metadata v10, the only request in the flexible format

IDS = TopicIdsRequest(("a", "b" * 200))
ID = bytes(range(16))


def _topic_with_id(error: int, name: bytes, topic_id: bytes) -> bytes:
    """Return a topic of an answer, with one partition of two replicas."""
    replicas = b"\x03" + int32(1) + int32(2)
    partition = int16(0) + int32(0) + int32(1) + int32(7) + replicas + replicas + b"\x01" + b"\x00"
    return int16(error) + bytes([len(name) + 1]) + name + topic_id + b"\x00\x02" + partition + int32(-1) + b"\x00"


def test_topic_ids_are_asked_for_by_name() -> None:
    """A length of more than 126 takes two bytes. No topic is created, and no rights are asked for."""
    named = bytes(16) + b"\x02a\x00" + bytes(16) + b"\xc9\x01" + b"b" * 200 + b"\x00"
    assert body_of(IDS) == b"\x00\x03" + named + b"\x00\x00\x00\x00"


@pytest.mark.parametrize("size", [126, 127, 128, 254])
def test_topic_ids_are_read_of_long_names_and_many_topics(size: int) -> None:
    """The length of a name and the number of topics take one byte up to 126, and two bytes beyond."""
    length = bytes([size + 1]) if size < 127 else bytes([(size + 1) & 0x7F | 0x80, (size + 1) >> 7])
    one = _topic_with_id(0, b"a", ID)
    long = one.replace(b"\x02a", length + b"a" * size, 1)
    payload = b"\x00" + int32(0) + b"\x01\x00" + int32(0) + length + long + one * (size - 1) + int32(0) + b"\x00"
    assert IDS.decode_response(payload) == {"a" * size: ID.hex(), "a": ID.hex()}
    assert length in body_of(TopicIdsRequest(("a" * size,)))


def test_topic_ids_are_read_and_missing_ones_left_out() -> None:
    """A topic that does not exist, or whose brokers are set to an earlier protocol, has no id. Tags are skipped."""
    broker = int32(1) + b"\x05host" + int32(9092) + b"\x00" + b"\x01\x07\x02xy"
    topics = (
        b"\x04" + _topic_with_id(0, b"a", ID) + _topic_with_id(3, b"b", bytes(16)) + _topic_with_id(0, b"c", bytes(16))
    )
    answer = b"\x00" + int32(0) + b"\x02" + broker + b"\x03id" + int32(1) + topics + int32(-1) + b"\x00"
    assert IDS.decode_response(answer) == {"a": ID.hex()}
    with pytest.raises(ProtocolError, match="a topic-ids response"):
        IDS.decode_response(answer[:-9])


def test_garbage_in_the_flexible_format_is_refused() -> None:
    """A number that never ends, and a name that is no text."""
    with pytest.raises(ProtocolError, match="more than five bytes"):
        IDS.decode_response(b"\xff" * 5 + b"\x01" + bytes(80))
    with pytest.raises(ProtocolError, match="no UTF-8"):
        IDS.decode_response(b"\x00" + int32(0) + b"\x02" + int32(1) + b"\x02\xff" + bytes(40))
