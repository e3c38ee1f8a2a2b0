"""The tools of Kafka 0.8's days see our groups, and ours see theirs: real tools on real servers."""

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
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.commands import kiel_groups
from tests.helpers.members import Group, group_of
from tests.helpers.old_tools import console_consumer, offset_checker, offset_table, zk_cli, zk_offsets_tool
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
Clusters = Callable[..., Cluster]

PARTITIONS = 4

#: ConsumerOffsetChecker of 0.8.2.2 asks for a coordinator, which a broker of 0.8.1.1 never answers.
CHECKERS = [("0.8.1.1", "0.8.1.1"), ("0.8.1.1", "0.8.2.2"), ("0.8.2.2", "0.8.2.2")]


async def committed(cluster: Cluster, group: str, topic: str, records: int) -> None:
    """Wait until the group has committed so many records."""
    with zookeeper(cluster) as client:
        await eventually(
            lambda: sum(stored_offsets(client, group, topic).values()) == records, f"{records} records are committed"
        )


@pytest.mark.parametrize(("tool", "broker"), CHECKERS, ids=lambda version: f"v{version}")
async def test_the_offset_checker_shows_offsets_lag_and_owners(
    shared_clusters: Clusters, unique: Unique, tool: str, broker: str
) -> None:
    """A row a partition from the first assignment on, lag by lag and owner by owner; no owner when all have left."""
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


@pytest.mark.parametrize("tool", ["0.8.1.1", "0.8.2.2"])
async def test_exported_offsets_are_moved_and_imported(
    cluster_39: Cluster, unique: Unique, tmp_path: Path, tool: str
) -> None:
    """Export names every partition; an import is where a stopped group starts, and where a running one goes on."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 40)
    exported, moved = tmp_path / "exported", tmp_path / "moved"

    async def tool_run(main: str, file: Path, *arguments: str) -> None:
        outcome = await asyncio.to_thread(zk_offsets_tool, main, tool, cluster_39.zk_hosts, file, *arguments)
        assert outcome.returncode == 0, outcome

    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await eventually(lambda: len(group.values) == 40, "all is consumed")
    await committed(cluster_39, name, topic, 40)
    await tool_run("ExportZkOffsets", exported, "--group", name)
    offsets = dict(line.rsplit(":", 1) for line in exported.read_text().split())
    with zookeeper(cluster_39) as client:
        assert offsets == {
            f"/consumers/{name}/offsets/{topic}/{partition}": str(offset)
            for partition, offset in stored_offsets(client, name, topic).items()
        }

    def three_less() -> None:
        moved.write_text("".join(f"{path}:{int(offset) - 3}\n" for path, offset in offsets.items()))

    three_less()
    await tool_run("ImportZkOffsets", moved)
    async with group_of(cluster_39, name, [topic], reconcile_interval_ms=300, auto_commit_interval_ms=200) as group:
        await group.join()
        await eventually(lambda: len(group.values) == 6, "the stopped group goes on three records earlier")
        await committed(cluster_39, name, topic, 40)
        await tool_run("ImportZkOffsets", moved)
        await eventually(lambda: len(group.values) == 12, "the running group goes back three records")
        await committed(cluster_39, name, topic, 40)


async def test_zkcli_reads_every_znode_and_resets_an_offset(cluster: Cluster, unique: Unique) -> None:
    """``get`` shows JSON, and owners as text; ``set`` moves a running group. By zkCli of the server's version."""
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
        said = await asyncio.to_thread(
            zk_cli, version, cluster.zk_hosts, *commands, f"get {layout.topic_owners(topic)}/0"
        )
        # zkCli tells of its connection when that comes about, in the middle of a line if need be.
        documents = [json.loads(found) for found in re.findall(r"\{\".*\}", said)]
        assert [document for document in documents if document.get("subscription") == [topic]], said
        assert [document for document in documents if document.get("leader") == member_id], said
        assert [document for document in documents if document.get("for") == member_id], said
        assert [document for document in documents if document.get("store") == "zookeeper"], said
        assert [document for document in documents if document.get("pattern") == "static"], said
        assert f"{member_id}-0" in said
        await committed(cluster, name, topic, 10)
        await asyncio.to_thread(zk_cli, version, cluster.zk_hosts, f"set {layout.topic_offsets(topic)}/0 4")
        await eventually(lambda: len(group.values) == 16, "six records are delivered again")


async def alarmed(group: Group, alarms: int) -> None:
    """Wait until the leader has raised so many alarms."""
    metrics = group.members[0].consumer.metrics
    await eventually(lambda: metrics.counter("foreign_members_alarms") == alarms, "the leader raises an alarm", 60)


async def test_a_java_consumer_that_comes_later_is_an_alarm(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader's log, its metric and ``describe`` name it; claims stay where they are; when it goes, that is seen."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await group.join()
        await group.balanced(topic, PARTITIONS)
        with zookeeper(cluster_39) as client, caplog.at_level(logging.INFO, "kiel_groups"):
            before = owners(client, name, topic)
            with console_consumer("0.8.2.2", cluster_39.zk_hosts, name, topic) as process:
                await alarmed(group, 1)
                java = [each for each in client.get_children(f"/consumers/{name}/ids") if each not in str(before)]
                assert any(java[0] in record.message and record.levelname == "ERROR" for record in caplog.records)
                outcome = await asyncio.to_thread(
                    kiel_groups, "describe", name, "--check", "--zookeeper", cluster_39.zk_hosts
                )
                assert outcome.returncode == 1
                assert f"live consumer does not take part in the group's protocol: {java[0]}" in outcome.stdout
                # It would not heed SIGTERM before it has given up claiming what ours own.
                await asyncio.to_thread(process.end, signal.SIGKILL)
            await eventually(
                lambda: any("the foreign members are gone" in record.message for record in caplog.records),
                "its session is over",
            )
            assert owners(client, name, topic) == before
        values = await produce(cluster_39, topic, 20)
        await group.delivered(values)


@pytest.mark.parametrize("version", ["0.8.1.1", "0.8.2.2"])
async def test_a_java_consumer_that_is_there_first_is_a_refusal(
    shared_clusters: Clusters, unique: Unique, version: str
) -> None:
    """The error names it and where it stands; nothing of ours is left, and once it has gone the same program joins."""
    cluster, topic, name = shared_clusters("3.9.5", version), unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    consumer = GroupedConsumer(cluster.brokers, name, cluster.zk_hosts)
    folder = f"/consumers/{name}/owners/{topic}"
    with zookeeper(cluster) as client:
        with console_consumer(version, cluster.zk_hosts, name, topic) as process:
            await eventually(
                lambda: client.exists(folder) and len(client.get_children(folder)) == PARTITIONS, "Java owns them all"
            )
            (java,) = client.get_children(f"/consumers/{name}/ids")
            with pytest.raises(ForeignMemberError, match=java):
                await consumer.connect()
            assert client.get_children(GroupLayout(name).members) == []
            await asyncio.to_thread(process.end, signal.SIGTERM)
        await eventually(lambda: client.get_children(f"/consumers/{name}/ids") == [], "its session is over")
    async with group_of(cluster, name, [topic]) as group:
        await group.join()
        await group.balanced(topic, PARTITIONS)


async def test_a_member_of_kiel_that_comes_later_is_an_alarm(cluster_39: Cluster, unique: Unique) -> None:
    """kiel registers under a folder of its own; the leader watches that as well, although it was not there before."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await group.balanced(topic, PARTITIONS)
        with zookeeper(cluster_39) as kiel:
            kiel.create(f"/kiel/groups/{name}/members/worker-1:140213", b"", ephemeral=True, makepath=True)
            await alarmed(group, 1)
            outcome = await asyncio.to_thread(kiel_groups, "describe", name, "--zookeeper", cluster_39.zk_hosts)
            assert f"worker-1:140213 (under /kiel/groups/{name}/members)" in outcome.stdout
