"""
Answers of a faulty broker: error codes instead of results, and other addresses of brokers.

The answers have the versions that this package requests (``understands``), and keep the topics and partitions of the
real answer, except that topics lose their partitions in a Metadata answer with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kiel_groups.config import HostPort
from kiel_groups.errors import ConfigError
from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.fetch import FetchedPartition, FetchRequest
from kiel_groups.wire.framing import Request
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
from kiel_groups.wire.list_offsets import ListedOffsets, ListOffsetsRequest
from kiel_groups.wire.metadata import BrokerAddress, MetadataRequest, MetadataResponse, TopicMetadata
from kiel_groups.wire.offsets import (
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitRequestV1,
    OffsetCommitRequestV2,
    OffsetFetchRequest,
    OffsetFetchRequestV1,
)
from kiel_groups.wire.primitives import Buffer
from kiel_groups.wire.produce import ProducedPartition, ProduceRequest

__all__ = ["refusal", "understands", "with_error", "with_addresses"]

#: The name of a payload in errors.
_WHAT = "a broker's answer"
_NO_OFFSET = -1
_NO_GENERATION = -1
_NO_BROKER = BrokerAddress(-1, "", -1)


def understands(api_key: int, api_version: int) -> bool:
    """Return whether ``with_error`` and ``with_addresses`` know the answers to requests of this version."""
    return (api_key, api_version) in _UNDERSTOOD


def with_error(api_key: int, payload: Buffer, code: int, api_version: int = 0) -> bytes:
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
        api_version: The version of the request.

    Raises:
        ConfigError: ``api_key`` is another number, or ``code`` is not an int16.
        ProtocolError: ``payload`` is not an answer to the request.
    """
    if api_key in _REFUSED:
        _refused(api_key, api_version)[0].ANSWER.decode(payload, _WHAT)
        return refusal(api_key, code, api_version)
    if api_key not in _FAILED:
        raise ConfigError(f"api_key: {api_key} given; expected one of {sorted({*_REFUSED, *_FAILED})}")
    request, failed = _FAILED[api_key]
    return request.ANSWER.encode(failed(request.ANSWER.decode(payload, _WHAT), error_code(code)))


def refusal(api_key: int, code: int, api_version: int = 0) -> bytes:
    """
    Return the answer of a broker that refuses a request of a group, and does not perform it.

    Args:
        api_key: The request: 10 FindCoordinator, 11 JoinGroup, 12 Heartbeat, 13 LeaveGroup, 14 SyncGroup,
            16 ListGroups. Answers to others name partitions or groups.
        code: The Kafka error code, an int16.
        api_version: The version of the request.

    Raises:
        ConfigError: ``api_key`` is another number, or ``code`` is not an int16.
    """
    if api_key not in _REFUSED:
        raise ConfigError(f"api_key: {api_key} given; expected one of {sorted(_REFUSED)}")
    request, refused = _refused(api_key, api_version)
    return request.ANSWER.encode(refused(error_code(code)))


def _refused(api_key: int, api_version: int) -> tuple[type[Request[Any]], Callable[[ErrorCode], object]]:
    """Return the entry of ``_REFUSED``, with the class of the request's version if its answer differs."""
    request, refused = _REFUSED[api_key]
    return _LATER.get((api_key, api_version), request), refused


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

    def moved(broker: BrokerAddress) -> BrokerAddress:
        real = HostPort(broker.host, broker.port)
        return BrokerAddress(broker.node_id, *addresses.get(real, real))

    if api_key == MetadataRequest.API_KEY:
        view = MetadataRequest.decode_response(payload)
        return MetadataRequest.ANSWER.encode(view._replace(brokers=tuple(map(moved, view.brokers))))
    if api_key == FindCoordinatorRequest.API_KEY:
        found = FindCoordinatorRequest.decode_response(payload)
        return FindCoordinatorRequest.ANSWER.encode(found._replace(broker=moved(found.broker)))
    return bytes(payload)


def _each_partition(result: Callable[[ErrorCode], object]) -> Callable[[Any, ErrorCode], object]:
    """Return what replaces the result of each partition in an answer."""

    def failed(answer: Any, error: ErrorCode) -> object:
        return dict.fromkeys(answer, result(error))

    return failed


def _failed_topics(view: MetadataResponse, error: ErrorCode) -> MetadataResponse:
    return view._replace(topics=tuple(TopicMetadata(error, each.topic, ()) for each in view.topics))


def _failed_groups(groups: tuple[DescribedGroup, ...], error: ErrorCode) -> tuple[DescribedGroup, ...]:
    return tuple(DescribedGroup(error, each.group, "", "", "", ()) for each in groups)


#: API key → a request whose answer is one result, and what makes that answer of an error.
_REFUSED: Mapping[int, tuple[type[Request[Any]], Callable[[ErrorCode], object]]] = {
    FindCoordinatorRequest.API_KEY: (FindCoordinatorRequest, lambda error: FoundCoordinator(error, _NO_BROKER)),
    JoinGroupRequest.API_KEY: (
        JoinGroupRequest,
        lambda error: JoinGroupResponse(error, _NO_GENERATION, "", "", "", {}),
    ),
    HeartbeatRequest.API_KEY: (HeartbeatRequest, lambda error: error),
    LeaveGroupRequest.API_KEY: (LeaveGroupRequest, lambda error: error),
    SyncGroupRequest.API_KEY: (SyncGroupRequest, lambda error: SyncGroupResponse(error, b"")),
    ListGroupsRequest.API_KEY: (ListGroupsRequest, lambda error: ListGroupsResponse(error, ())),
}

#: API key and version → a request whose answer differs from that to the request in ``_REFUSED``.
_LATER: Mapping[tuple[int, int], type[Request[Any]]] = {
    (JoinGroupRequestV4.API_KEY, JoinGroupRequestV4.API_VERSION): JoinGroupRequestV4
}

#: API key → a request whose answer has several results, and what replaces each of them by an error.
_FAILED: Mapping[int, tuple[type[Request[Any]], Callable[[Any, ErrorCode], object]]] = {
    ProduceRequest.API_KEY: (
        ProduceRequest,
        _each_partition(lambda error: ProducedPartition(error, _NO_OFFSET)),
    ),
    FetchRequest.API_KEY: (
        FetchRequest,
        _each_partition(lambda error: FetchedPartition(error, _NO_OFFSET, memoryview(b""))),
    ),
    ListOffsetsRequest.API_KEY: (ListOffsetsRequest, _each_partition(lambda error: ListedOffsets(error, ()))),
    MetadataRequest.API_KEY: (MetadataRequest, _failed_topics),
    OffsetCommitRequest.API_KEY: (OffsetCommitRequest, _each_partition(lambda error: error)),
    OffsetFetchRequest.API_KEY: (
        OffsetFetchRequest,
        _each_partition(lambda error: FetchedOffset(_NO_OFFSET, "", error)),
    ),
    DescribeGroupsRequest.API_KEY: (DescribeGroupsRequest, _failed_groups),
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
        JoinGroupRequestV4,
        HeartbeatRequest,
        LeaveGroupRequest,
        SyncGroupRequest,
        DescribeGroupsRequest,
        ListGroupsRequest,
    )
}
