"""The tools and consumers of Kafka 0.8 and ZooKeeper, used with groups of this protocol on real servers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.clients import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ForeignMemberError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.ops.actions.offsets_file import read_offsets_file
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.zookeeper_groups import ZooKeeperGroups
from kiel_groups.wire.offsets import OFFSETS_TOPIC
from tests.helpers.cluster_data import await_committed, owners, produce, stored_offsets, zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.java_tools import console_consumer, offset_checker, offset_table, zk_cli, zk_offsets_tool
from tests.helpers.members import Group, group_of
from tests.helpers.offsets_in_kafka import OffsetsInKafka
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
Clusters = Callable[..., Cluster]

PARTITIONS = 4

#: ConsumerOffsetChecker of 0.8.2.2 requests a coordinator, which a broker of 0.8.1.1 never answers.
CHECKERS = [("0.8.1.1", "0.8.1.1"), ("0.8.1.1", "0.8.2.2"), ("0.8.2.2", "0.8.2.2")]


@pytest.mark.parametrize(("tool", "broker"), CHECKERS, ids=lambda version: f"v{version}")
async def test_the_offset_checker_shows_offsets_lag_and_owners(
    shared_clusters: Clusters, unique: Unique, tool: str, broker: str
) -> None:
    """
    The tool prints a row with offset, lag and owner for each partition. When all members have left, the owner is
    ``none``.
    """
    cluster, topic, name = shared_clusters("3.9.5", broker), unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic], autocommit=False) as group:
        await group.join()
        await group.join()
        await group.balanced(topic, PARTITIONS)
        outcome = await asyncio.to_thread(offset_checker, tool, cluster.zk_hosts, name)
        rows = offset_table(outcome.stdout)
        assert [row.partition for row in rows] == list(range(PARTITIONS)), outcome
        assert {row.offset for row in rows} == {"0"}
        assert sum(int(row.lag) for row in rows) == sum(int(row.log_size) for row in rows) == 40
        with zookeeper(cluster) as client:
            assert {row.partition: row.owner for row in rows} == {
                partition: owner for partition, (owner, _) in owners(client, name, topic).items()
            }
    rows = offset_table((await asyncio.to_thread(offset_checker, tool, cluster.zk_hosts, name)).stdout)
    assert [row.owner for row in rows] == ["none"] * PARTITIONS


async def test_the_offset_checker_shows_offsets_in_kafka(cluster_39: Cluster, unique: Unique) -> None:
    """The tool of 0.8.2.2 asks the coordinator of a group whose store is ``broker-v1``."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    values = await produce(cluster_39, topic, 40)
    async with group_of(cluster_39, name, [topic], store="broker-v1") as group:
        await group.join()
        await group.delivered(values)
    rows = offset_table((await asyncio.to_thread(offset_checker, "0.8.2.2", cluster_39.zk_hosts, name)).stdout)
    assert sum(int(row.offset) for row in rows) == sum(int(row.log_size) for row in rows) == 40
    assert {row.lag for row in rows} == {"0"}


@pytest.mark.parametrize("tool", ["0.8.1.1", "0.8.2.2"])
async def test_exported_offsets_are_changed_and_imported(
    cluster_39: Cluster, unique: Unique, tmp_path: Path, tool: str
) -> None:
    """
    The export has the offsets of all partitions. A stopped group starts at imported offsets, and a running group adopts
    them.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 40)
    exported, changed = tmp_path / "exported", tmp_path / "changed"

    async def tool_run(main: str, file: Path, *arguments: str) -> None:
        outcome = await asyncio.to_thread(zk_offsets_tool, main, tool, cluster_39.zk_hosts, file, *arguments)
        assert outcome.returncode == 0, outcome

    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await eventually(lambda: len(group.values) == 40, "all is consumed")
    await await_committed(cluster_39, name, topic, 40)
    await tool_run("ExportZkOffsets", exported, "--group", name)
    offsets = dict(line.rsplit(":", 1) for line in exported.read_text().split())
    ours = await asyncio.to_thread(
        kiel_groups_here, "offsets", "export", name, "--format", "kafka", "--zookeeper", cluster_39.zk_hosts
    )
    assert sorted(ours.stdout.split()) == sorted(exported.read_text().split())
    assert read_offsets_file(exported, name).group == name
    with zookeeper(cluster_39) as client:
        assert offsets == {
            f"/consumers/{name}/offsets/{topic}/{partition}": str(offset)
            for partition, offset in stored_offsets(client, name, topic).items()
        }

    def write_three_less() -> None:
        changed.write_text("".join(f"{path}:{int(offset) - 3}\n" for path, offset in offsets.items()))

    write_three_less()
    await tool_run("ImportZkOffsets", changed)
    async with group_of(cluster_39, name, [topic], reconcile_interval_ms=300, auto_commit_interval_ms=200) as group:
        await group.join()
        await eventually(lambda: len(group.values) == 6, "the stopped group starts three records earlier")
        await await_committed(cluster_39, name, topic, 40)
        await tool_run("ImportZkOffsets", changed)
        await eventually(lambda: len(group.values) == 12, "the running group reads three records again")
        await await_committed(cluster_39, name, topic, 40)


async def test_zkcli_reads_every_znode_and_resets_an_offset(cluster: Cluster, unique: Unique) -> None:
    """
    ``get`` prints the JSON of each znode, and owners as text. A running group adopts an offset written by ``set``.
    """
    version, topic, name = cluster.zookeeper.version, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 10)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic], reconcile_interval_ms=300, auto_commit_interval_ms=200) as group:
        member = await group.join()
        await group.balanced(topic, 1)
        await eventually(lambda: len(group.values) == 10, "all is consumed")
        member_id = member.consumer.member_id
        paths = [layout.member(str(member_id)), layout.group_state, layout.assignment(str(member_id)), layout.config]
        paths.append(layout.consumer_id(str(member_id)))
        commands = [f"get {path}" for path in paths]
        output = await asyncio.to_thread(
            zk_cli, version, cluster.zk_hosts, *commands, f"get {layout.topic_owners(topic)}/0"
        )
        # zkCli reports its connection at any time, even in the middle of a line.
        documents = [json.loads(found) for found in re.findall(r"\{\".*\}", output)]
        assert [document for document in documents if document.get("subscription") == [topic]], output
        assert [document for document in documents if document.get("leader") == member_id], output
        assert [document for document in documents if document.get("for") == member_id], output
        assert [document for document in documents if document.get("store") == "zookeeper"], output
        assert [document for document in documents if document.get("pattern") == "static"], output
        assert f"{member_id}-0" in output
        await await_committed(cluster, name, topic, 10)
        await asyncio.to_thread(zk_cli, version, cluster.zk_hosts, f"set {layout.topic_offsets(topic)}/0 4")
        await eventually(lambda: len(group.values) == 16, "six records are delivered again")


async def await_alarms(group: Group, alarms: int) -> None:
    """Wait until the leader has raised ``alarms`` alarms."""
    metrics = group.members[0].consumer.metrics
    await eventually(lambda: metrics.counter("foreign_members_alarms") == alarms, "the leader raises an alarm", 60)


async def test_a_java_consumer_that_joins_later_raises_an_alarm(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The leader logs and counts the consumer, and ``describe`` shows it. Claims do not change. The end of the consumer is
    logged, too.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await group.join()
        await group.balanced(topic, PARTITIONS)
        with zookeeper(cluster_39) as client, caplog.at_level(logging.INFO, "kiel_groups"):
            before = owners(client, name, topic)
            with console_consumer("0.8.2.2", cluster_39.zk_hosts, name, topic) as process:
                await await_alarms(group, 1)
                java = [each for each in client.get_children(f"/consumers/{name}/ids") if each not in str(before)]
                assert any(java[0] in record.message and record.levelname == "ERROR" for record in caplog.records)
                outcome = await asyncio.to_thread(
                    kiel_groups_here, "describe", name, "--check", "--zookeeper", cluster_39.zk_hosts
                )
                assert outcome.returncode == 1
                shown = " ".join(outcome.stdout.split())
                assert f"live consumer does not take part in the group's protocol: {java[0]}" in shown
                # The consumer handles SIGTERM only after it has given up claiming the group's partitions.
                await asyncio.to_thread(process.end, signal.SIGKILL)
            await eventually(
                lambda: any("the foreign members are gone" in record.message for record in caplog.records),
                "its session has ended",
            )
            assert owners(client, name, topic) == before
        values = await produce(cluster_39, topic, 20)
        await group.delivered(values)


@pytest.mark.parametrize("version", ["0.8.1.1", "0.8.2.2"])
async def test_a_java_consumer_keeps_members_from_joining(
    shared_clusters: Clusters, unique: Unique, version: str
) -> None:
    """The error names the consumer. The member leaves no znodes. When the consumer has ended, a member can join."""
    cluster, topic, name = shared_clusters("3.9.5", version), unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    consumer = GroupedConsumer(cluster.brokers, name, cluster.zk_hosts)
    folder = f"/consumers/{name}/owners/{topic}"
    with zookeeper(cluster) as client:
        with console_consumer(version, cluster.zk_hosts, name, topic) as process:
            await eventually(
                lambda: client.exists(folder) and len(client.get_children(folder)) == PARTITIONS,
                "the Java consumer owns all partitions",
            )
            (java,) = client.get_children(f"/consumers/{name}/ids")
            with pytest.raises(ForeignMemberError, match=java):
                await consumer.connect()
            assert client.exists(GroupLayout(name).root) is None
            await asyncio.to_thread(process.end, signal.SIGTERM)
        await eventually(lambda: client.get_children(f"/consumers/{name}/ids") == [], "its session has ended")
    async with group_of(cluster, name, [topic]) as group:
        await group.join()
        await group.balanced(topic, PARTITIONS)


async def test_a_member_of_kiel_that_joins_later_raises_an_alarm(cluster_39: Cluster, unique: Unique) -> None:
    """The leader counts the member, which kiel registers below its own znode, and ``describe`` shows it."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await group.balanced(topic, PARTITIONS)
        with zookeeper(cluster_39) as kiel:
            kiel.create(f"/kiel/groups/{name}/members/worker-1:140213", b"", ephemeral=True, makepath=True)
            await await_alarms(group, 1)
            outcome = await asyncio.to_thread(kiel_groups_here, "describe", name, "--zookeeper", cluster_39.zk_hosts)
            assert f"worker-1:140213 (under /kiel/groups/{name}/members)" in " ".join(outcome.stdout.split())


async def test_offsets_that_java_keeps_in_kafka_are_found_beside_old_ones(cluster_39: Cluster, unique: Unique) -> None:
    """
    A consumer with ``offsets.storage=kafka`` leaves the old offset in ZooKeeper as it is. While neither has moved, both
    are shown, and ``--check`` takes the larger lag; then only the offset in Kafka counts.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 100)
    with zookeeper(cluster_39) as client:
        client.create(f"{GroupLayout(name).topic_offsets(topic)}/0", b"10", makepath=True)
    in_kafka = OffsetsInKafka(cluster_39, name, topic, 2)
    settings = ["offsets.storage=kafka", "dual.commit.enabled=false", "auto.commit.interval.ms=200"]
    settings.append("auto.offset.reset=smallest")
    loads = ZooKeeperGroups(cluster_39.zk_hosts).follow(name)

    def loaded() -> GroupView:
        found = next(loads)
        assert isinstance(found, LoadedGroups), found
        return found.groups[0]

    async def has_committed(count: int) -> bool:
        return sum((await in_kafka.offsets()).values()) == count

    with console_consumer("0.8.2.2", cluster_39.zk_hosts, name, topic, *settings):
        await eventually(lambda: has_committed(100), "all is committed", 60)
        view = await asyncio.to_thread(loaded)
        ends = {each.topic_partition.partition: each.log_end for each in view.partitions}
        stores = [dict(each.stores) for each in view.partitions]
        assert stores == [{"zookeeper": 10, "kafka": ends[0]}, {"kafka": ends[1]}]
        outcome = await asyncio.to_thread(
            kiel_groups_here, "lag", name, "--zookeeper", cluster_39.zk_hosts, "--check", "9"
        )
        assert outcome.returncode == 1
        assert f"ZooKeeper 10, Kafka {ends[0]}" in " ".join(outcome.stdout.split())
        await produce(cluster_39, topic, 100, 100)
        await eventually(lambda: has_committed(200), "all is committed", 60)
        view = await asyncio.to_thread(loaded)
        assert ([set(each.stores) for each in view.partitions], view.lag) == ([{"kafka"}] * 2, 0)
    loads.close()
    outlined = await asyncio.to_thread(kiel_groups_here, "groups", "--zookeeper", cluster_39.zk_hosts, "--lag")
    (row,) = [line.split() for line in outlined.stdout.splitlines() if line.split()[:1] == [name]]
    assert row[-3:] == ["0", "to", str(view.partitions[0].log_end - 10)]  # type: ignore[operator]


@pytest.mark.parametrize("broker", ["0.8.0", "0.8.1.1", "0.8.2.2"])
async def test_brokers_that_have_no_coordinator_are_asked_for_none(
    start_cluster: Callable[..., Cluster], unique: Unique, broker: str
) -> None:
    """
    Brokers of 0.8.0 and 0.8.1 close the connection, even where a later release has left the topic of the offsets. One
    of 0.8.2 would create it.
    """
    cluster, topic, name = start_cluster(kafka=broker), unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    if broker != "0.8.2.2":
        await cluster.create_topic(OFFSETS_TOPIC, 1)
    await produce(cluster, topic, 10)
    with zookeeper(cluster) as client:
        client.create(f"{GroupLayout(name).topic_offsets(topic)}/0", b"7", makepath=True)
        before = client.get_children("/brokers/topics")
        loaded = await asyncio.to_thread(ZooKeeperGroups(cluster.zk_hosts).load, name)
        assert client.get_children("/brokers/topics") == before
    (partition,) = loaded.groups[0].partitions
    assert (dict(partition.stores), partition.lag, loaded.lag_problem) == ({"zookeeper": 7}, 3, "")
