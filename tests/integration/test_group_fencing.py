"""Fencing tokens: each claim of a partition has a larger number than the claims before it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from kiel_groups import TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import owners, produce, zookeeper
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration


async def test_tokens_grow_with_every_claim(cluster: Cluster, unique: Callable[[str], str]) -> None:
    """The tokens are the czxids of the owner znodes. A member has no token for a partition that it does not own."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]

    def tokens(member: Member) -> list[int | None]:
        return [member.consumer.fencing_token(partition) for partition in partitions]

    async with group_of(cluster, name, [topic]) as group:
        first = await group.join()
        await group.balanced(topic, 2)
        before = tokens(first)
        with zookeeper(cluster) as client:
            assert {number: claim[1] for number, claim in owners(client, name, topic).items()} == dict(
                enumerate(before)
            )
        second = await group.join()
        await group.balanced(topic, 2)
        (moved,) = second.partitions(topic)
        now = tokens(second)[moved]
        was = before[moved]
        assert now is not None
        assert was is not None
        assert now > was
        assert tokens(first)[moved] is None
        assert tokens(second)[1 - moved] is None
        assert tokens(first)[1 - moved] == before[1 - moved], "a partition that does not move keeps its claim"


async def test_the_token_is_known_in_the_assigned_hook_and_for_each_record(
    cluster_39: Cluster, unique: Callable[[str], str]
) -> None:
    """An application can give the token to a sink before the first record, and each delivered record has a token."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    values = await produce(cluster_39, topic, 20)
    seen: list[int | None] = []
    async with group_of(cluster_39, name, [topic]) as group:
        member = Member(cluster_39, name, [topic])
        group.members.append(member)

        def assigned(taken: Collection[TopicPartition]) -> None:
            seen.extend(member.consumer.fencing_token(partition) for partition in taken)

        member.on_partitions_assigned = assigned  # type: ignore[method-assign]
        await member.start()
        await group.delivered(values)
        await eventually(lambda: len(seen) == 2, "both are assigned")
        tokens = [member.consumer.fencing_token(record.topic_partition) for record in member.records]
        assert None not in seen
        assert set(tokens) <= set(seen)


async def test_a_record_of_a_lost_claim_has_no_token(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """The record has no token even if the same consumer claims the partition again while the record is in flight."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    partition = TopicPartition(topic, 0)
    async with group_of(cluster_39, name, [topic]) as group:
        member = await group.join()
        member.go_on.clear()
        await eventually(lambda: member.records, "a record is in flight")
        consumer, (record,) = member.consumer, member.records
        before = consumer.fencing_token(record)
        assert before is not None
        assert before == consumer.fencing_token(partition)
        with zookeeper(cluster_39) as client:
            client.delete(GroupLayout(name).member(str(consumer.member_id)))
        await eventually(lambda: member.lost_partitions, "the member has lost its partition")
        assert consumer.fencing_token(record) is None
        await eventually(lambda: (consumer.fencing_token(partition) or 0) > before, "the partition is claimed again")
        assert member.records == [record]
        assert consumer.fencing_token(record) is None
        member.go_on.set()
        await eventually(lambda: len(member.deliveries) == 2, "it is delivered again")
        again = member.records[1]
        assert again == record
        assert member.deliveries[1].token == consumer.fencing_token(partition)
