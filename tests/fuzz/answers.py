"""Every request of the package, and answers that have all of what answers may have."""

from __future__ import annotations

from typing import Any

from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR, UNKNOWN
from kiel_groups.wire.fetch import FetchedPartition, FetchRequest
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    FoundCoordinator,
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
from kiel_groups.wire.list_offsets import (
    FoundOffset,
    ListedOffsets,
    ListOffsetsRequest,
    ListOffsetsRequestV1,
)
from kiel_groups.wire.metadata import (
    BrokerAddress,
    ClusterRequest,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicIdsRequest,
    TopicMetadata,
)
from kiel_groups.wire.offsets import (
    DeletedOffsets,
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitRequestV1,
    OffsetCommitRequestV2,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestV1,
)
from kiel_groups.wire.produce import ProducedPartition, ProduceRequest
from kiel_groups.wire.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeRequestV1,
    SaslHandshakeResponse,
)
from kiel_groups.wire.topic_requests import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kiel_groups.wire.versions import ApiVersionsRequest, ApiVersionsResponse, FetchProbeRequest, VersionRange

REQUESTS: list[Request[Any]] = [
    MetadataRequest(),
    ProduceRequest(1, 1, {}),
    FetchRequest(1, 1, {}),
    ListOffsetsRequest({}),
    ListOffsetsRequestV1({}),
    OffsetCommitRequest("g", {}),
    OffsetFetchRequest("g", ()),
    FindCoordinatorRequest("g"),
    JoinGroupRequest("g", 1, "", "consumer", ()),
    JoinGroupRequestV1("g", 1, "", "consumer", (), 1),
    JoinGroupRequestV4("g", 1, "", "consumer", (), 1),
    SyncGroupRequest("g", 1, "m", {}),
    HeartbeatRequest("g", 1, "m"),
    LeaveGroupRequest("g", "m"),
    OffsetCommitRequestV1("g", 1, "m", {}),
    OffsetCommitRequestV2("g", 1, "m", {}),
    OffsetFetchRequestV1("g", ()),
    OffsetDeleteRequest("g", ()),
    ListGroupsRequest(),
    DescribeGroupsRequest(()),
    DeleteGroupsRequest(("g",)),
    ApiVersionsRequest(),
    FetchProbeRequest(),
    SaslHandshakeRequest("PLAIN"),
    SaslHandshakeRequestV1("PLAIN"),
    SaslAuthenticateRequest(b"message"),
    ClusterRequest(),
    TopicIdsRequest(("t",)),
    CreateTopicsRequest({}, 1),
    CreatePartitionsRequest({}, 1),
    DeleteTopicsRequest((), 1),
    DescribeConfigsRequest("t"),
    AlterConfigsRequest("t", {}, validate_only=True),
    IncrementalAlterConfigsRequest("t", {}, (), validate_only=True),
]

P0, P1 = TopicPartition("t", 0), TopicPartition("u", 7)
BROKERS = (BrokerAddress(1, "kafka-1", 9092), BrokerAddress(2, "kafka-2", 9092))
MEMBER = DescribedMember("m-1", "kiel", "/127.0.0.1", b"topics", b"partitions")

#: Answers with all of what they may have.
ANSWERS: list[tuple[type[Request[Any]], object]] = [
    (
        MetadataRequest,
        MetadataResponse(
            BROKERS, (TopicMetadata(NO_ERROR, "t", (PartitionMetadata(NO_ERROR, 0, 1, (1, 2), (2,)),) * 2),) * 2
        ),
    ),
    (ProduceRequest, {P0: ProducedPartition(NO_ERROR, 5), P1: ProducedPartition(UNKNOWN, -1)}),
    (FetchRequest, {tp: FetchedPartition(NO_ERROR, 5, memoryview(b"messages")) for tp in (P0, P1)}),
    (ListOffsetsRequest, {P0: ListedOffsets(NO_ERROR, (5, 0)), P1: ListedOffsets(UNKNOWN, ())}),
    (ListOffsetsRequestV1, {P0: FoundOffset(NO_ERROR, 1_700_000_000_000, 5), P1: FoundOffset(UNKNOWN, -1, -1)}),
    (OffsetCommitRequest, {P0: NO_ERROR, P1: UNKNOWN}),
    (OffsetFetchRequest, {P0: FetchedOffset(5, "note", NO_ERROR), P1: FetchedOffset(-1, "", UNKNOWN)}),
    (OffsetDeleteRequest, DeletedOffsets(NO_ERROR, {P0: NO_ERROR, P1: UNKNOWN})),
    (FindCoordinatorRequest, FoundCoordinator(NO_ERROR, BROKERS[0])),
    (JoinGroupRequest, JoinGroupResponse(NO_ERROR, 7, "range", "m-1", "m-1", {"m-1": b"topics", "m-2": b""})),
    (JoinGroupRequestV4, JoinGroupResponse(UNKNOWN, -1, "", "", "m-1", {})),
    (SyncGroupRequest, SyncGroupResponse(NO_ERROR, b"partitions")),
    (HeartbeatRequest, NO_ERROR),
    (ListGroupsRequest, ListGroupsResponse(NO_ERROR, (ListedGroup("g", "consumer"),) * 3)),
    (DescribeGroupsRequest, (DescribedGroup(NO_ERROR, "g", "Stable", "consumer", "range", (MEMBER,) * 3),) * 2),
    (DeleteGroupsRequest, {"g": NO_ERROR, "h": UNKNOWN}),
    (ApiVersionsRequest, ApiVersionsResponse(NO_ERROR, {key: VersionRange(0, key) for key in range(9)})),
    (SaslHandshakeRequest, SaslHandshakeResponse(NO_ERROR, ("PLAIN", "SCRAM-SHA-256"))),
    (SaslAuthenticateRequest, SaslAuthenticateResponse(UNKNOWN, "why", b"message")),
    (CreateTopicsRequest, {"t": NO_ERROR, "u": UNKNOWN}),
]
