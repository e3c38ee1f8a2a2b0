"""
Answers of a faulty broker: error codes instead of results, and other addresses of brokers.

The answers have the versions that this package requests (``understands``), and keep the topics and partitions of the
real answer, except that topics lose their partitions in a Metadata answer with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kiel_groups.config import HostPort
from kiel_groups.errors import ConfigError
from kiel_groups.wire.fetch import FetchRequest
from kiel_groups.wire.group_requests import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestV1,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kiel_groups.wire.list_offsets import ListOffsetsRequest
from kiel_groups.wire.metadata import BrokerAddress, MetadataRequest, MetadataResponse, PartitionMetadata
from kiel_groups.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestV1,
    OffsetCommitRequestV2,
    OffsetFetchRequest,
    OffsetFetchRequestV1,
)
from kiel_groups.wire.primitives import Buffer, Reader, Writer, read_partitions, write_partitions
from kiel_groups.wire.produce import ProduceRequest

__all__ = ["refusal", "understands", "with_error", "with_addresses"]

_NO_OFFSET = -1
_NO_GENERATION = -1
_NO_BROKER = BrokerAddress(-1, "", -1)


def understands(api_key: int, api_version: int) -> bool:
    """Return whether ``with_error`` and ``with_addresses`` know the answers to requests of this version."""
    return (api_key, api_version) in _UNDERSTOOD


def with_error(api_key: int, payload: Buffer, code: int) -> bytes:
    """
    Replace every result of an answer by an error.

    In a Metadata answer, each topic gets the code and loses its partitions. In a DescribeGroups answer, each group gets
    the code and loses its state and members.

    Args:
        api_key: The request: 0 Produce, 1 Fetch, 2 ListOffsets, 3 Metadata, 8 OffsetCommit, 9 OffsetFetch,
            10 FindCoordinator, 11 JoinGroup, 12 Heartbeat, 13 LeaveGroup, 14 SyncGroup, 15 DescribeGroups,
            16 ListGroups.
        payload: The broker's answer, after the correlation id, in a version that ``understands`` names.
        code: The Kafka error code, an int16.

    Raises:
        ConfigError: ``api_key`` is another number, or ``code`` is not an int16.
        ProtocolError: ``payload`` is not an answer to the request.
    """
    if api_key == MetadataRequest.API_KEY:
        view = MetadataRequest().decode_response(payload)
        return _metadata(view, {}, code)
    if api_key == DescribeGroupsRequest.API_KEY:
        return _described(payload, code)
    if api_key in _WHOLE_ANSWERS:
        decode, _ = _WHOLE_ANSWERS[api_key]
        decode(payload)
        return refusal(api_key, code)
    if api_key not in _RESULTS:
        known = sorted((*_RESULTS, MetadataRequest.API_KEY, DescribeGroupsRequest.API_KEY, *_WHOLE_ANSWERS))
        raise ConfigError(f"api_key: {api_key} given; expected one of {known}")
    skip, least_bytes, write = _RESULTS[api_key]
    partitions = read_partitions(Reader(payload, "a broker's answer"), skip, least_bytes)
    writer = Writer()
    write_partitions(writer, dict.fromkeys(partitions, code).items(), write)
    return writer.getvalue()


def refusal(api_key: int, code: int) -> bytes:
    """
    Return the answer of a broker that refuses a request of a group, and does not perform it.

    Args:
        api_key: The request: 10 FindCoordinator, 11 JoinGroup, 12 Heartbeat, 13 LeaveGroup, 14 SyncGroup,
            16 ListGroups. Answers to others name partitions or groups.
        code: The Kafka error code, an int16.

    Raises:
        ConfigError: ``api_key`` is another number, or ``code`` is not an int16.
    """
    if api_key not in _WHOLE_ANSWERS:
        raise ConfigError(f"api_key: {api_key} given; expected one of {sorted(_WHOLE_ANSWERS)}")
    _, write = _WHOLE_ANSWERS[api_key]
    writer = Writer()
    write(writer, code)
    return writer.getvalue()


def with_addresses(api_key: int, payload: Buffer, addresses: Mapping[HostPort, HostPort]) -> bytes:
    """
    Replace the addresses of brokers in an answer. Brokers that are not in the mapping keep their addresses.

    Args:
        api_key: The request. Only answers to 3 Metadata and 10 FindCoordinator have addresses; others are returned
            as they are.
        payload: The broker's answer, after the correlation id, in a version that ``understands`` names.
        addresses: The new addresses by the present ones.

    Raises:
        ProtocolError: ``payload`` is not an answer to the request.
    """
    if api_key == MetadataRequest.API_KEY:
        return _metadata(MetadataRequest().decode_response(payload), addresses, None)
    if api_key == FindCoordinatorRequest.API_KEY:
        error, broker = FindCoordinatorRequest("").decode_response(payload)
        writer = Writer()
        writer.int16(error.number)
        _write_broker(writer, broker, addresses)
        return writer.getvalue()
    return bytes(payload)


def _metadata(view: MetadataResponse, addresses: Mapping[HostPort, HostPort], topic_error: int | None) -> bytes:
    writer = Writer()
    writer.int32(len(view.brokers))
    for broker in view.brokers:
        _write_broker(writer, broker, addresses)
    writer.int32(len(view.topics))
    for topic in view.topics:
        writer.int16(topic.error.number if topic_error is None else topic_error)
        writer.string(topic.topic)
        partitions = topic.partitions if topic_error is None else ()
        writer.int32(len(partitions))
        for partition in partitions:
            _write_partition(writer, partition)
    return writer.getvalue()


def _write_broker(writer: Writer, broker: BrokerAddress, addresses: Mapping[HostPort, HostPort]) -> None:
    real = HostPort(broker.host, broker.port)
    address = addresses.get(real, real)
    writer.int32(broker.node_id)
    writer.string(address.host)
    writer.int32(address.port)


def _write_partition(writer: Writer, partition: PartitionMetadata) -> None:
    writer.int16(partition.error.number)
    writer.int32(partition.partition)
    writer.int32(partition.leader)
    for nodes in (partition.replicas, partition.isr):
        writer.int32(len(nodes))
        for node in nodes:
            writer.int32(node)


def _skip_produced(reader: Reader) -> None:
    reader.int16()
    reader.int64()


def _write_produced(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.int64(_NO_OFFSET)


def _skip_fetched(reader: Reader) -> None:
    reader.int16()
    reader.int64()
    reader.blob()


def _write_fetched(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.int64(_NO_OFFSET)
    writer.blob(b"")


def _skip_listed(reader: Reader) -> None:
    reader.int16()
    for _ in reader.array(8):
        reader.int64()


def _write_listed(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.int32(0)


def _skip_committed(reader: Reader) -> None:
    reader.int16()


def _write_committed(writer: Writer, code: int) -> None:
    writer.int16(code)


def _skip_offset(reader: Reader) -> None:
    reader.int64()
    reader.optional_string()
    reader.int16()


def _write_offset(writer: Writer, code: int) -> None:
    writer.int64(_NO_OFFSET)
    writer.string("")
    writer.int16(code)


#: API key → for the fields after a partition's number: a function that skips them, their least size in bytes, and a
#: function that writes an error in their place.
_RESULTS: Mapping[int, tuple[Callable[[Reader], None], int, Callable[[Writer, int], None]]] = {
    ProduceRequest.API_KEY: (_skip_produced, 10, _write_produced),
    FetchRequest.API_KEY: (_skip_fetched, 14, _write_fetched),
    ListOffsetsRequest.API_KEY: (_skip_listed, 6, _write_listed),
    OffsetCommitRequest.API_KEY: (_skip_committed, 2, _write_committed),
    OffsetFetchRequest.API_KEY: (_skip_offset, 12, _write_offset),
}


def _described(payload: Buffer, code: int) -> bytes:
    groups = DescribeGroupsRequest(()).decode_response(payload)
    writer = Writer()
    writer.int32(len(groups))
    for described in groups:
        writer.int16(code)
        writer.string(described.group)
        for _ in ("state", "type of protocol", "protocol"):
            writer.string("")
        writer.int32(0)
    return writer.getvalue()


def _write_code(writer: Writer, code: int) -> None:
    writer.int16(code)


def _write_no_coordinator(writer: Writer, code: int) -> None:
    writer.int16(code)
    _write_broker(writer, _NO_BROKER, {})


def _write_not_joined(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.int32(_NO_GENERATION)
    for _ in ("protocol", "leader's id", "member's id"):
        writer.string("")
    writer.int32(0)


def _write_no_assignment(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.blob(b"")


def _write_no_groups(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.int32(0)


#: API key → for answers with one result: a function that decodes them, and one that writes an error.
_WHOLE_ANSWERS: Mapping[int, tuple[Callable[[Buffer], object], Callable[[Writer, int], None]]] = {
    FindCoordinatorRequest.API_KEY: (FindCoordinatorRequest("").decode_response, _write_no_coordinator),
    JoinGroupRequest.API_KEY: (JoinGroupRequest("", 0, "", "", ()).decode_response, _write_not_joined),
    HeartbeatRequest.API_KEY: (HeartbeatRequest("", 0, "").decode_response, _write_code),
    LeaveGroupRequest.API_KEY: (LeaveGroupRequest("", "").decode_response, _write_code),
    SyncGroupRequest.API_KEY: (SyncGroupRequest("", 0, "", {}).decode_response, _write_no_assignment),
    ListGroupsRequest.API_KEY: (ListGroupsRequest().decode_response, _write_no_groups),
}

_UNDERSTOOD = {
    (request.API_KEY, request.API_VERSION)
    for request in (
        ProduceRequest,
        FetchRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetCommitRequestV1,
        OffsetCommitRequestV2,
        OffsetFetchRequest,
        OffsetFetchRequestV1,
        FindCoordinatorRequest,
        JoinGroupRequest,
        JoinGroupRequestV1,
        HeartbeatRequest,
        LeaveGroupRequest,
        SyncGroupRequest,
        DescribeGroupsRequest,
        ListGroupsRequest,
    )
}
