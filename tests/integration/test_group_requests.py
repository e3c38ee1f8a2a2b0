"""The requests of groups that brokers coordinate, as Kafka 0.9 answers them, and their refusal by Kafka 0.8.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from kiel_groups.clients.net.connection import Connection
from kiel_groups.config import HostPort, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE, ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.error_codes import (
    CONSUMER_COORDINATOR_NOT_AVAILABLE,
    ILLEGAL_GENERATION,
    NO_ERROR,
    NOT_COORDINATOR_FOR_CONSUMER,
    OFFSETS_LOAD_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import (
    DescribedGroup,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kiel_groups.wire.offsets import (
    FetchedOffset,
    OffsetCommitRequestV1,
    OffsetCommitRequestV2,
    OffsetFetchRequestV1,
)
from tests.helpers.cluster_data import produce
from tests.helpers.raw_requests import ask, connection_to
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

T = TypeVar("T")
Unique = Callable[[str], str]

#: The coordinator starts after the first request for it: it creates the topic of the offsets, and reads that.
STARTING = {CONSUMER_COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR_FOR_CONSUMER, OFFSETS_LOAD_IN_PROGRESS}


async def started(connection: Connection, request: Request[T], error_of: Callable[[T], ErrorCode]) -> T:
    """Return the first answer of a coordinator that has started."""

    async def answer() -> T | None:
        found = await ask(connection, request)
        return None if error_of(found) in STARTING else found

    found = await eventually(answer, "the coordinator starts", 60)
    assert found is not None
    return found


async def coordinator(cluster: Cluster, group: str) -> HostPort:
    """Return the address of the group's coordinator, once there is one."""
    (bootstrap, *_) = parse_hosts(cluster.brokers, 9092, "hosts")
    async with connection_to(bootstrap) as connection:
        found = await started(connection, FindCoordinatorRequest(group), lambda answer: answer.error)
    assert found.error == NO_ERROR
    return HostPort(found.broker.host, found.broker.port)


async def join(connection: Connection, group: str, topic: str) -> JoinGroupResponse:
    """Join a group as a new member that subscribes to the topic."""
    protocol = GroupProtocol("range", ConsumerSubscription((topic,)).encode())
    request = JoinGroupRequest(group, 10_000, "", PROTOCOL_TYPE, (protocol,))
    return await started(connection, request, lambda answer: answer.error)


async def described(connection: Connection, group: str) -> DescribedGroup:
    (description,) = await ask(connection, DescribeGroupsRequest((group,)))
    return description


async def test_a_member_joins_commits_and_leaves(shared_clusters: Callable[..., Cluster], unique: Unique) -> None:
    """A member finds its coordinator, joins, is assigned what it as the leader has decided, commits, and leaves."""
    cluster, topic, group = shared_clusters("3.9.5", "0.9.0.1"), unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with connection_to(await coordinator(cluster, group)) as connection:
        joined = await join(connection, group, topic)
        assert (joined.error, joined.generation, joined.protocol) == (NO_ERROR, 1, "range")
        assert joined.leader_id == joined.member_id != ""
        subscriptions = {
            member: ConsumerSubscription.parse(data, f"the subscription of {member}")
            for member, data in joined.members.items()
        }
        assert subscriptions == {joined.member_id: ConsumerSubscription((topic,))}

        decided = ConsumerAssignment({topic: (1, 0)}, b"data")
        member = (group, joined.generation, joined.member_id)
        synced = await ask(connection, SyncGroupRequest(*member, {joined.member_id: decided.encode()}))
        assert synced.error == NO_ERROR
        assert ConsumerAssignment.parse(synced.assignment, "the assignment") == decided

        assert await ask(connection, HeartbeatRequest(*member)) == NO_ERROR
        assert await ask(connection, HeartbeatRequest(group, 99, joined.member_id)) == ILLEGAL_GENERATION
        assert await ask(connection, HeartbeatRequest(group, joined.generation, "stranger")) == UNKNOWN_MEMBER_ID

        offsets = {zero: OffsetAndMetadata(7, "note")}

        async def is_stored() -> bool:
            return await ask(connection, OffsetCommitRequestV2(*member, offsets)) == {zero: NO_ERROR}

        # A broker of 0.9 refuses offsets of a topic of which the controller has not notified it yet.
        await eventually(is_stored, "the coordinator knows the new topic, and stores the offset")
        late = OffsetCommitRequestV2(group, 99, joined.member_id, {one: OffsetAndMetadata(9)})
        assert await ask(connection, late) == {one: ILLEGAL_GENERATION}
        fetched = await ask(connection, OffsetFetchRequestV1(group, (zero, one)))
        assert fetched == {zero: FetchedOffset(7, "note", NO_ERROR), one: FetchedOffset(-1, "", NO_ERROR)}

        listed = await ask(connection, ListGroupsRequest())
        assert listed.error == NO_ERROR
        assert ListedGroup(group, PROTOCOL_TYPE) in listed.groups

        description = await described(connection, group)
        assert description[:5] == (NO_ERROR, group, "Stable", PROTOCOL_TYPE, "range")
        (known,) = description.members
        assert (known.member_id, known.client_host) == (joined.member_id, "/127.0.0.1")
        assert ConsumerSubscription.parse(known.metadata, "the subscription") == ConsumerSubscription((topic,))
        assert ConsumerAssignment.parse(known.assignment, "the assignment") == decided

        assert await ask(connection, LeaveGroupRequest(group, joined.member_id)) == NO_ERROR
        assert await ask(connection, LeaveGroupRequest(group, joined.member_id)) == UNKNOWN_MEMBER_ID
        assert (await described(connection, group)).members == ()


async def test_a_member_without_an_assignment_gets_no_bytes(
    shared_clusters: Callable[..., Cluster], unique: Unique
) -> None:
    """A member that the leader does not name is assigned no partitions: the coordinator sends no bytes."""
    cluster, group = shared_clusters("3.9.5", "0.9.0.1"), unique("group")
    async with connection_to(await coordinator(cluster, group)) as connection:
        joined = await join(connection, group, "any")
        synced = await ask(connection, SyncGroupRequest(group, joined.generation, joined.member_id, {}))
        assert (synced.error, synced.assignment) == (NO_ERROR, b"")
        assert ConsumerAssignment.parse(synced.assignment, "the assignment") == ConsumerAssignment({})
        assert await ask(connection, LeaveGroupRequest(group, joined.member_id)) == NO_ERROR


async def test_kafka_0_8_2_stores_offsets_in_kafka(shared_clusters: Callable[..., Cluster], unique: Unique) -> None:
    """The coordinator of 0.8.2 stores and returns offsets with their metadata, for clients that are no members."""
    cluster, topic, group = shared_clusters("3.9.5", "0.8.2.2"), unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    # A broker refuses offsets of partitions that it does not know yet.
    await produce(cluster, topic, 2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with connection_to(await coordinator(cluster, group)) as connection:
        commit = OffsetCommitRequestV1(group, -1, "", {zero: OffsetAndMetadata(7, "note")})

        async def committed() -> bool:
            return await ask(connection, commit) == {zero: NO_ERROR}

        await eventually(committed, "the coordinator stores the offset")
        fetched = await ask(connection, OffsetFetchRequestV1(group, (zero, one)))
        assert fetched[zero] == FetchedOffset(7, "note", NO_ERROR)
        assert fetched[one].offset == -1
