"""The ``broker-v1`` store: ZooKeeper coordinates the members, and the group's offsets are in Kafka."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, GroupConfigError, NoOffsetsError
from kiel_groups.group.commit_note import NotedText
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.model import OffsetAndMetadata
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.members import Member, end_session, group_of
from tests.helpers.offsets_in_kafka import KEEPING, OffsetsInKafka
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

NOT_KEEPING = ("0.8.0", "0.8.1.1")

STORE = {"store": "broker-v1", "auto_commit_interval_ms": 100}


@pytest.fixture(params=KEEPING, ids=lambda version: f"kafka{version}")
def keeping_cluster(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> Cluster:
    """Return a shared cluster. The test runs once for each release that keeps offsets in Kafka."""
    return shared_clusters("3.9.5", request.param)


async def test_members_share_rebalance_and_commit(keeping_cluster: Cluster, unique: Unique) -> None:
    """
    Every record is delivered once, also during clean rebalances. In the end the offsets in Kafka are the ends of the
    logs, and ZooKeeper has none.
    """
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 200)
    async with group_of(cluster, name, [topic], **STORE) as group:
        first = await group.join()
        first.pace_s = 0.002
        await eventually(lambda: first.records, "the first member reads")
        await group.join()
        await group.balanced(topic, 4)
        await group.leave(first)
        values += await produce(cluster, topic, 200, first=200)
        assert await group.delivered(values) == Counter(values)
        assert group.overlaps() == []
        await OffsetsInKafka(cluster, name, topic, 4).add_up_to(400)
        with zookeeper(cluster) as client:
            assert stored_offsets(client, name, topic) == {}


async def test_nothing_is_lost_when_a_member_dies(keeping_cluster: Cluster, unique: Unique) -> None:
    """The next owners start at the committed offsets, and deliver again what was not committed."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 400)
    async with group_of(cluster, name, [topic], **STORE, session_timeout_ms=4_000) as group:
        members = [await group.join(), await group.join()]
        for member in members:
            member.pace_s = 0.005
        await eventually(lambda: all(len(member.records) > 30 for member in members), "both members read")
        end_session(cluster, members[0])
        await eventually(lambda: members[0].lost_partitions, "the first member has lost its partitions")
        for member in members:
            member.pace_s = 0.0
        counts = await group.delivered(values)
        assert sum(counts.values()) < 2 * len(values), "the members started at committed offsets"
        await OffsetsInKafka(cluster, name, topic, 4).add_up_to(400)


@pytest.mark.parametrize(("reset", "start"), [("earliest", 0), ("latest", 10)])
async def test_the_start_is_stored_at_the_first_claim(
    keeping_cluster: Cluster, unique: Unique, reset: str, start: int
) -> None:
    """
    At the first claim, the member chooses the start by the reset policy, and stores it. An added partition starts at
    its beginning.
    """
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 10)
    in_kafka = OffsetsInKafka(cluster, name, topic, 2)
    async with group_of(cluster, name, [topic], store="broker-v1", auto_offset_reset=reset) as group:
        await group.join()
        await group.balanced(topic, 1)
        assert await OffsetsInKafka(cluster, name, topic, 1).offsets() == {0: start}
        await cluster.grow_topic(topic, 2)
        await group.balanced(topic, 2)
        assert await in_kafka.offsets() == {0: start, 1: 0}


async def test_two_members_begin_together_at_latest(keeping_cluster: Cluster, unique: Unique) -> None:
    """Both start where the group began, whichever of them comes first, and no record written since is skipped."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    await produce(cluster, topic, 20)
    async with group_of(cluster, name, [topic], **STORE, auto_offset_reset="latest") as group:
        await asyncio.gather(group.join(), group.join())
        await group.balanced(topic, 2)
        values = await produce(cluster, topic, 20, first=20)
        assert await group.delivered(values) == Counter(values)


async def test_a_commit_notes_the_log_and_the_claim(keeping_cluster: Cluster, unique: Unique) -> None:
    """The text of an offset has the application's text, the creation of the topic, and the claim's fencing token."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 1)
    in_kafka = OffsetsInKafka(cluster, name, topic, 1)
    consumer = GroupedConsumer(
        cluster.brokers, name, cluster.zk_hosts, store="broker-v1", autocommit=False, deserializer=bytes
    )
    async with consumer:
        await eventually(lambda: consumer.consume(topic), "the value is delivered")
        await consumer.commit_offsets("by the test")
        offset, metadata = (await in_kafka.stored())[0]
        text, note = NotedText.parse(metadata)
        assert (offset, text) == (1, "by the test")
        with zookeeper(cluster) as client:
            assert note is not None
            assert note.created == client.get(topic_path(topic))[1].czxid
            assert note.claim == owners(client, name, topic)[0][1]
        assert await consumer.committed(TopicPartition(topic, 0)) == 1
        assert list(await consumer.fetch_committed_offsets()) == [TopicPartition(topic, 0)]


async def test_a_text_that_is_too_long_is_left_out(
    keeping_cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """When the coordinator answers with code 12, the offset is stored with the note alone, and a warning is logged."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 1)
    consumer = GroupedConsumer(
        cluster.brokers, name, cluster.zk_hosts, store="broker-v1", autocommit=False, deserializer=bytes
    )
    async with consumer:
        await eventually(lambda: consumer.consume(topic), "the value is delivered")
        await consumer.commit_offsets("x" * 5_000)
    offset, metadata = (await OffsetsInKafka(cluster, name, topic, 1).stored())[0]
    assert offset == 1
    assert NotedText.parse(metadata).text == ""
    assert "the metadata of a commit is too long" in caplog.text


async def test_brokers_without_room_for_the_note_store_offsets_without_it(
    start_cluster: Callable[..., Cluster], unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """With a small offset.metadata.max.bytes the group reads and commits all the same, and a warning names it."""
    cluster = start_cluster(broker_overrides={"offset.metadata.max.bytes": 16})
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 1)
    consumer = GroupedConsumer(cluster.brokers, name, cluster.zk_hosts, store="broker-v1", deserializer=bytes)
    async with consumer:
        await eventually(lambda: consumer.consume(topic), "the value is delivered")
        await consumer.commit_offsets("a text")
        assert await OffsetsInKafka(cluster, name, topic, 1).stored() == {0: OffsetAndMetadata(1, "a text")}
    assert "the brokers' offset.metadata.max.bytes is too small for the note" in caplog.text


async def test_a_topic_that_is_created_again_starts_at_its_beginning(keeping_cluster: Cluster, unique: Unique) -> None:
    """
    Kafka keeps the offsets of the deleted topic. Neither an owner nor a group that was stopped meanwhile takes them for
    positions in the new log, although they are within it.
    """
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    values = await produce(cluster, topic, 40)
    in_kafka = OffsetsInKafka(cluster, name, topic, 2)
    async with group_of(cluster, name, [topic], **STORE) as group:
        await group.join()
        await group.delivered(values)
        await in_kafka.add_up_to(40)
        await recreate(cluster, topic)
        values = await produce(cluster, topic, 60, first=1_000)
        await group.delivered(values, 60)
        await in_kafka.add_up_to(60)
    await recreate(cluster, topic)
    values = await produce(cluster, topic, 80, first=2_000)
    async with group_of(cluster, name, [topic], **STORE, auto_offset_reset="earliest") as group:
        await group.join()
        assert await group.delivered(values, 60) == Counter(values)
        await in_kafka.add_up_to(80)


async def recreate(cluster: Cluster, topic: str) -> None:
    """Delete a topic, and create it again."""
    await cluster.delete_topic(topic)
    await cluster.create_topic(topic, 2)


async def test_offsets_that_another_program_stored_are_where_the_group_starts(
    keeping_cluster: Cluster, unique: Unique
) -> None:
    """An operator resets offsets while the group is stopped; they have no note, and count for the present topic."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    values = await produce(cluster, topic, 10)
    await OffsetsInKafka(cluster, name, topic, 1).write({0: 7}, "by an operator")
    async with group_of(cluster, name, [topic], **STORE) as group:
        await group.join()
        assert await group.delivered(values[7:]) == Counter(values[7:])


async def test_a_group_continues_at_its_offsets_in_zookeeper(keeping_cluster: Cluster, unique: Unique) -> None:
    """A group whose ``config`` an operator has changed, while it was stopped, skips and repeats nothing."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    values = await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
        await group.join()
        await group.delivered(values)
    with zookeeper(cluster) as client:
        client.delete(GroupLayout(name).config)
    values = await produce(cluster, topic, 40, first=40)
    async with group_of(cluster, name, [topic], **STORE) as group:
        await group.join()
        assert await group.delivered(values) == Counter(values)
        await OffsetsInKafka(cluster, name, topic, 2).add_up_to(80)


async def test_a_group_without_offsets_and_without_a_reset_policy(keeping_cluster: Cluster, unique: Unique) -> None:
    """The consumer raises an error that says what to do, and stores nothing."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 3)

    async def read() -> None:
        async with GroupedConsumer(
            cluster.brokers, name, cluster.zk_hosts, store="broker-v1", auto_offset_reset="none"
        ) as consumer:
            await consumer.subscribe(topic)
            async for _ in consumer:
                raise AssertionError("no start offset is known")

    with pytest.raises(NoOffsetsError, match=f"group {name} has no offsets of {topic}:0 in Kafka"):
        await asyncio.wait_for(read(), 30)
    assert await OffsetsInKafka(cluster, name, topic, 1).offsets() == {}


async def test_a_member_with_the_other_store_is_refused(keeping_cluster: Cluster, unique: Unique) -> None:
    """All members of a group use the same offset store."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    async with group_of(cluster, name, [topic], store="broker-v1") as group:
        await group.join()
        other = Member(cluster, name, [topic])
        with pytest.raises(GroupConfigError, match="store is 'broker-v1' there and 'zookeeper' here"):
            await other.start()


@pytest.mark.parametrize("kafka", NOT_KEEPING)
async def test_brokers_without_offsets_in_kafka_are_refused(
    shared_clusters: Callable[..., Cluster], unique: Unique, kafka: str
) -> None:
    """The error names the setting, the release and the remedy, and the consumer does not join the group."""
    cluster, name = shared_clusters("3.9.5", kafka), unique("group")
    with pytest.raises(ConfigError) as caught:
        await GroupedConsumer(cluster.brokers, name, cluster.zk_hosts, store="broker-v1").connect()
    assert str(caught.value) == (
        "store: 'broker-v1' needs brokers that keep offsets in Kafka, from 0.8.2 on, and these close the connection on"
        " being asked, as those of Kafka 0.8.0 and 0.8.1 do; use store='zookeeper', or upgrade the brokers"
    )
    with zookeeper(cluster) as client:
        assert client.exists(GroupLayout(name).root) is None


async def test_the_coordinator_is_killed_and_restarted(start_cluster: Callable[..., Cluster]) -> None:
    """Commits wait for the coordinator, which loads the group's offsets (code 14), and nothing is lost."""
    cluster = start_cluster()
    await cluster.create_topic("t", 2)
    values = await produce(cluster, "t", 20)
    in_kafka = OffsetsInKafka(cluster, "g", "t", 2)
    async with group_of(cluster, "g", ["t"], **STORE) as group:
        await group.join()
        await group.delivered(values)
        await in_kafka.add_up_to(20)
        await cluster.kafka[0].restart()
        values += await produce(cluster, "t", 20, first=20)
        await group.delivered(values, 60)
        await in_kafka.add_up_to(40, 60)
    async with group_of(cluster, "g", ["t"], **STORE) as group:
        member = await group.join()
        more = await produce(cluster, "t", 10, first=40)
        assert await group.delivered(more) == Counter(more)
        assert set(member.values) == set(more)


@pytest.mark.slow
async def test_the_coordinator_moves_to_another_broker(start_cluster: Callable[..., Cluster]) -> None:
    """The members find the new coordinator, commit there, and the next owners start at these offsets."""
    # By default, leaders wait 10 s for a replica that lags, and producers give up after a few such waits.
    patience = {"offsets.topic.replication.factor": 3, "replica.lag.time.max.ms": 3_000}
    cluster = start_cluster(brokers=3, broker_overrides=patience)
    await cluster.create_topic("t", 3, replication=3)
    values = await produce(cluster, "t", 60)
    in_kafka = OffsetsInKafka(cluster, "g", "t", 3)
    async with group_of(cluster, "g", ["t"], **STORE) as group:
        first = await group.join()
        await group.join()
        await group.balanced("t", 3)
        await group.delivered(values)
        await in_kafka.add_up_to(60)
        for broker in cluster.kafka:
            # One of them is the coordinator.
            await broker.kill()
            values += await produce(cluster, "t", 30, first=len(values))
            await group.delivered(values, 60)
            await in_kafka.are_the_ends(60)
            await broker.start()
        await group.leave(first)
        more = await produce(cluster, "t", 30, first=len(values))
        counts = await group.delivered(more, 60)
        assert all(counts[value] == 1 for value in more)


async def test_describe_and_groups_show_offsets_and_lag(keeping_cluster: Cluster, unique: Unique) -> None:
    """The tools ask the group's coordinator. Offsets that the group once had in ZooKeeper do not count."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    values = await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic], **STORE) as group:
        member = await group.join()
        await group.delivered(values)
        await OffsetsInKafka(cluster, name, topic, 2).add_up_to(40)
        await group.leave(member)
        await produce(cluster, topic, 20, first=40)
        await group.join(autocommit=False)
        await group.balanced(topic, 2)
        with zookeeper(cluster) as client:
            client.create(GroupLayout(name).offset(TopicPartition(topic, 0)), b"3", makepath=True)
        outcome = await described(cluster, "describe", name, "--json", "--check")
        assert (outcome.returncode, outcome.stderr) == (0, "")
        document = json.loads(outcome.stdout)
        assert (document["wrong"], document["lag"]) == ([], 20)
        assert sum(each["committed"] for each in document["partitions"]) == 40
        assert all(time.time() * 1000 - each["committed_at"] < 600_000 for each in document["partitions"])
    listed = json.loads((await described(cluster, "groups", "--lag", "--json")).stdout)
    assert [each["lag"] for each in listed if each["group"] == name] == [20]


async def described(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a thread, because members run on the event loop of this process."""
    return await asyncio.to_thread(kiel_groups_here, *arguments, "--zookeeper", cluster.zk_hosts)
