"""``kiel-groups offsets`` on real servers: what operators do with offsets, and what a live group does not permit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.embedded.releases import kafka_release
from kiel_groups.errors import ConfigError, ConflictError
from kiel_groups.group.znodes.contents import FirstOffsets, GroupSettings
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.offset_sources import BrokerOffsets, OffsetSource, ZooKeeperOffsets
from kiel_groups.ops.actions.offsets import plan_copy, plan_delete, plan_import, plan_reset
from kiel_groups.ops.actions.offsets_file import OffsetsFile
from kiel_groups.ops.views.offset_changes import Target
from tests.helpers.closed_sessions import close_sessions_below
from tests.helpers.cluster_data import produce, stored_offsets, zookeeper
from tests.helpers.commands import Running, kiel_groups_here
from tests.helpers.coordinated_members import members_of
from tests.helpers.members import group_of
from tests.helpers.offsets_in_kafka import OffsetsInKafka
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
#: Runs ``kiel-groups offsets`` with these words, and returns its JSON and its error output.
Run = Callable[..., tuple[Any, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command in this process, in an empty folder; its exit status must be ``status``."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, status: int = 0) -> tuple[Any, str]:
        done = kiel_groups_here("offsets", *words)
        assert done.returncode == status, done
        return json.loads(done.stdout) if done.stdout else None, done.stderr

    return run


def in_zookeeper(cluster: Cluster) -> list[str]:
    return ["--zookeeper", cluster.zk_hosts, "--json"]


def at_brokers(cluster: Cluster) -> list[str]:
    return ["--coordination", "brokers", "--brokers", ",".join(cluster.brokers)]


def after(document: dict[str, Any]) -> list[int | None]:
    return [each["after"] for each in document["changes"]]


async def topic_with_records(cluster: Cluster, topic: str, count: int) -> None:
    await cluster.create_topic(topic, 2)
    await produce(cluster, topic, count)


def test_offsets_of_a_stopped_group_are_shown_reset_restored_and_deleted(
    cluster_39: Cluster, unique: Unique, run: Run
) -> None:
    """
    A dry run changes nothing; what is overwritten or deleted is in a restore file, which ``import`` takes. An offset of
    a topic that is gone is shown and deleted, and is no target.
    """
    topic, gone, name, at = unique("topic"), unique("gone"), unique("group"), in_zookeeper(cluster_39)
    asyncio.run(topic_with_records(cluster_39, topic, 40))
    layout = GroupLayout(name)
    with zookeeper(cluster_39) as client:
        for path, data in ((f"{topic}/0", b"5"), (f"{topic}/1", b"many"), (f"{gone}/0", b"3")):
            client.create(f"{layout.offsets}/{path}", data, makepath=True)
        shown, _ = run("show", name, *at)
        ends = [each["log_end"] for each in shown["partitions"] if each["topic"] == topic]
        assert [each["status"] for each in shown["partitions"]] == ["the topic is gone", None, "unreadable"]
        assert sum(ends) == 40

        document, _ = run("reset", name, "--all-topics", "--to-latest", "--dry-run", *at)
        assert (document["left_out"], after(document), document["restore_file"]) == ([f"{gone}:0"], ends, None)
        assert client.get(f"{layout.offsets}/{topic}/0")[0] == b"5"
        _, error = run("reset", name, "--topic", topic, "--to-latest", *at, status=2)
        assert "there is no terminal to confirm at; give --yes" in error

        document, _ = run("reset", name, "--topic", f"{topic}:0", "--shift-by", "-9", "--yes", *at)
        assert (after(document), document["changes"][0]["note"]) == ([0], "-4 is gone: the log's start")
        run("reset", name, "--topic", topic, "--to-offset", "2", "--yes", *at)
        assert stored_offsets(client, name, topic) == {0: 2, 1: 2}
        restored, _ = run("import", name, document["restore_file"], "--yes", *at)
        assert after(restored) == [5]
        assert stored_offsets(client, name, topic) == {0: 5, 1: 2}

        document, remark = run("reset", name, "--topic", f"{topic}:0", "--by-duration", "1h", "--dry-run", *at)
        assert document["changes"][0]["note"] == f"segment's start, up to {ends[0]} records early"
        assert "by the segment's last modification" in remark
        run("delete", name, "--topic", gone, "--yes", *at)
        assert client.get_children(layout.offsets) == [topic]
        _, error = run("delete", name, "--topic", f"{topic}:7", "--yes", *at, status=2)
        assert f"has no offset of {topic}:7" in error
        run("export", name, "file", "--zookeeper", cluster_39.zk_hosts)
        _, error = run("export", name, "file", "--zookeeper", cluster_39.zk_hosts, status=2)
        assert "is not overwritten" in error


def test_a_group_begins_at_the_offsets_of_another_one(cluster_39: Cluster, unique: Unique) -> None:
    """Whether they are in ZooKeeper or in Kafka; a group with offsets keeps them unless they may be overwritten."""
    topic, source = unique("topic"), ZooKeeperOffsets(cluster_39.zk_hosts)
    asyncio.run(topic_with_records(cluster_39, topic, 20))
    first = TopicPartition(topic, 0)
    for store in ("zookeeper", "broker-v1"):
        old, new = unique("old"), unique("new")
        plan = plan_reset(source, old, {topic: None}, Target("earliest"), store=store, is_new=True)
        assert not plan.found.exists
        plan.apply(source)
        with zookeeper(cluster_39) as client:
            settings = GroupSettings(store=store, mode="strict", auto_offset_reset="earliest")
            client.ensure_path(GroupLayout(old).root)
            client.create(GroupLayout(old).config, settings.encode())
        plan_copy(source, old, new).apply(source)
        found = source.read(new)
        assert (found.store, set(found.offsets.values()), found.exists) == (store, {0}, True)
        with pytest.raises(ConfigError, match="has offsets of 2 partitions, which would be replaced"):
            plan_copy(source, old, new)
        file = OffsetsFile(new, {first: 1}, znodes={"config": settings.encode().decode()})
        plan_import(source, new, file).apply(source)
        assert source.read(new).has_settings
        assert plan_copy(source, old, new, overwrite=True).lost == {first: 1}
        with zookeeper(cluster_39) as client:
            for folder in (GroupLayout(old).topic_owners(topic), GroupLayout(old).topic_offsets(topic)):
                client.ensure_path(folder)
        if store == "broker-v1":
            with pytest.raises(ConfigError, match=f"these are older; name all partitions of {topic}, so that"):
                plan_delete(source, old, {topic: frozenset({0})})
        remark = plan_delete(source, old, {topic: None}).apply(source)
        assert ("Kafka keeps the offsets" in remark) == (store == "broker-v1")
        with zookeeper(cluster_39) as client:
            assert not client.exists(GroupLayout(old).topic_starts(topic))
            assert not client.exists(GroupLayout(old).topic_owners(topic))
            assert source.read(old).topics == {}, "the topic is still listed"
            # Kafka hides the offsets of a topic that is gone; what the group notes of it is deleted all the same.
            gone, starts = unique("gone"), FirstOffsets(1, 0, {0: 0, 1: 5}).encode()
            client.create(GroupLayout(new).topic_starts(gone), starts, makepath=True)
            if store == "broker-v1":
                assert len(plan_delete(source, new, {gone: None}).changes) == 2
                plan_delete(source, new, {gone: None}).apply(source)
                assert not client.exists(GroupLayout(new).topic_starts(gone))
    stored = asyncio.run(OffsetsInKafka(cluster_39, new, topic, 2).offsets())
    assert stored == {0: 1, 1: 0}


def test_an_offset_that_has_changed_meanwhile_is_not_overwritten(cluster_39: Cluster, unique: Unique) -> None:
    """Neither if it changes before the plan is applied, nor between the check and the write."""
    topic, name, source = unique("topic"), unique("group"), ZooKeeperOffsets(cluster_39.zk_hosts)
    asyncio.run(topic_with_records(cluster_39, topic, 20))
    plan_reset(source, name, {topic: None}, Target("earliest"), is_new=True).apply(source)
    plan = plan_reset(source, name, None, Target("latest"))
    with zookeeper(cluster_39) as client:
        client.set(GroupLayout(name).offset(TopicPartition(topic, 1)), b"3")
        with pytest.raises(ConflictError, match=f"another client has changed the offset of {topic}:1 meanwhile"):
            plan.apply(source)
        with pytest.raises(ConflictError, match="meanwhile; 0 of 2 offsets are written"):
            source.write(plan.found, plan.changing)
        assert stored_offsets(client, name, topic) == {0: 0, 1: 3}
        client.create(f"{GroupLayout(name).ids}/{name}_java-1-abcdef01", b"{}", ephemeral=True, makepath=True)
        with pytest.raises(ConfigError, match=r"has live members of another protocol.*_java-1-abcdef01 .under"):
            plan_delete(source, name, None).check()


async def test_live_members_set_the_offsets_of_their_topics(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    A reset waits until they have, and names those that have not when its time is over, or at a Ctrl-C. Offsets of a
    topic that no member subscribes to are deleted, and not reset.
    """
    topic, other, name = unique("topic"), unique("other"), unique("group")
    await topic_with_records(cluster_39, topic, 20)
    await topic_with_records(cluster_39, other, 20)
    source, at = ZooKeeperOffsets(cluster_39.zk_hosts), in_zookeeper(cluster_39)
    reset = ("offsets", "reset", name, "--to-earliest", "--yes")

    async def run(*words: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(kiel_groups_here, *reset, *words, *at, folder=tmp_path)

    def act() -> None:
        plan_reset(source, name, {other: None}, Target("earliest"), is_new=True).apply(source)

    await asyncio.to_thread(act)
    async with group_of(cluster_39, name, [topic], auto_offset_reset="earliest") as group:
        member = await group.join()
        await eventually(lambda: len(member.records) == 20, "all is delivered")
        await member.consumer.commit()
        refused = await run("--all-topics")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"no live member of group {name} subscribes to {other}" in refused.stderr
        done = await run("--topic", topic)
        assert done.returncode == 0, done.stderr
        assert f"group {name}: 2 offsets set, and delivery continues there" in done.stderr
        document = json.loads(done.stdout)
        assert (document["by_members"], after(document)) == (True, [0, 0])
        await eventually(lambda: len(member.records) == 40, "all is delivered again")

        # Without its tasks, the member performs nothing.
        session = member.consumer._lifecycle.connected.member._member_session  # type: ignore[union-attr]
        await session._tasks.cancel()
        late = await run("--topic", f"{topic}:0", "--timeout", "1")
        assert late.returncode == 1
        assert f"0 offsets set, 1 taken back: {topic}:0 ({member.consumer.member_id})" in late.stderr
        folder = GroupLayout(name).orders
        with zookeeper(cluster_39) as client:
            assert client.get_children(folder) == []
            words = ["-m", "kiel_groups", *reset, "--topic", topic, *at]
            with Running(words, folder=tmp_path) as running:
                await asyncio.to_thread(running.wait_for_error, f"info: waiting for {topic}:0 (")
                assert len(client.get_children(folder)) == 2
                running.process.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(running.process.wait, 20) == 130
                await asyncio.to_thread(running.wait_for_error, f"info: group {name}: 0 offsets set, 2 taken back: ")
            assert client.get_children(folder) == []
        with pytest.raises(ConfigError, match=f"subscribe to {topic}"):
            (await asyncio.to_thread(plan_delete, source, name, {topic: None})).check()
        plan = await asyncio.to_thread(plan_delete, source, name, {other: None})
        await asyncio.to_thread(plan.apply, source)
        assert {each.topic for each in (await asyncio.to_thread(source.read, name)).offsets} == {topic}
        session.session.abandon("killed by the test")


async def test_a_reset_that_is_killed_leaves_each_offset_old_or_ordered(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    One owner has performed its order, the other one is slow, when the command gets kill -9. The rest of the order ends
    with the command's session. ``offsets show`` has the offsets that count, and both partitions are consumed on.
    """
    topic, name = unique("topic"), unique("group")
    await topic_with_records(cluster_39, topic, 20)
    at, folder = in_zookeeper(cluster_39), GroupLayout(name).orders
    words = ["-m", "kiel_groups", "offsets", "reset", name, "--topic", topic, "--to-earliest", "--yes", *at]
    async with group_of(cluster_39, name, [topic], auto_offset_reset="earliest") as group:
        await group.join()
        await group.join()
        await group.balanced(topic, 2)
        await eventually(lambda: len(group.values) == 20, "all is delivered")
        for member in group.members:
            await member.consumer.commit()
            member.go_on.clear()  # What is delivered from now on stays in flight, so that no commit follows.
        prompt, slow = group.members
        ends = {
            number: await member.consumer.position(TopicPartition(topic, number))
            for member in group.members
            for number in member.partitions(topic)
        }
        writing = slow.consumer._lifecycle.connected.member._member_session.role.offsets.owned.writing  # type: ignore[union-attr]
        try:
            with zookeeper(cluster_39) as client:
                async with writing:
                    with Running(words, folder=tmp_path) as running:
                        await asyncio.to_thread(running.wait_for_error, "info: waiting for ")
                        await eventually(lambda: len(client.get_children(folder)) == 1, "one order is performed")
                        running.process.kill()
                    close_sessions_below(client, folder)
                    assert client.get_children(folder) == []
                ((first,), (second,)) = prompt.partitions(topic), slow.partitions(topic)
                shown = await asyncio.to_thread(kiel_groups_here, "offsets", "show", name, "--json", *at)
                committed = {each["partition"]: each["committed"] for each in json.loads(shown.stdout)["partitions"]}
                assert committed == {first: 0, second: ends[second]} == stored_offsets(client, name, topic)
        finally:
            for member in group.members:
                member.go_on.set()
        await produce(cluster_39, topic, 20)
        await eventually(lambda: len(group.values) == 40 + ends[first], "both partitions are consumed on")
        again = await asyncio.to_thread(kiel_groups_here, *words[2:], folder=tmp_path)
        assert again.returncode == 0, again.stderr


async def test_offsets_of_a_group_that_brokers_coordinate(
    coordinating_cluster: Cluster, coordinating_version: str, unique: Unique, tmp_path: Path
) -> None:
    """
    They are written while the group has no members, and copied at any time. Brokers from 2.4 on delete single ones,
    others say from which release on.
    """
    cluster, topic, other, name = coordinating_cluster, unique("topic"), unique("other"), unique("group")
    source: OffsetSource = BrokerOffsets(",".join(cluster.brokers))
    await topic_with_records(cluster, topic, 20)
    await topic_with_records(cluster, other, 20)

    async def offsets(*words: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(kiel_groups_here, "offsets", *words, *at_brokers(cluster), folder=tmp_path)
        return done.returncode, done.stdout, done.stderr

    async def stored() -> dict[TopicPartition, int]:
        return dict((await asyncio.to_thread(source.read, name)).offsets)

    both = ["--topic", topic, "--topic", other]
    assert (await offsets("reset", name, *both, "--to-latest", "--yes", "--new"))[0] == 0
    ends = await stored()
    assert sum(ends.values()) == 40
    status, printed, errors = await offsets("reset", name, *both, "--to-earliest", "--yes", "--json")
    assert (status, after(json.loads(printed))) == (0, [0] * 4), errors
    file = json.loads(printed)["restore_file"]
    assert set((await stored()).values()) == {0}
    assert (await offsets("import", name, file, "--yes"))[0] == 0
    assert await stored() == ends
    async with members_of(cluster, name, topic, 1, partitions=2):
        status, printed, errors = await offsets("reset", name, "--topic", topic, "--to-earliest", "--yes")
        assert (status, printed) == (2, "")
        assert "has 1 live member: kiel-groups-" in errors
        assert (await offsets("copy", name, f"{name}-2", "--yes"))[0] == 0
    files = os.listdir(tmp_path)
    status, _, errors = await offsets("delete", name, "--topic", other, "--yes")
    if kafka_release(coordinating_version).version >= "2.4":
        assert status == 0, errors
        assert {each.topic for each in await stored()} == {topic}
    else:
        assert status == 2
        assert "brokers delete single offsets on request from Kafka 2.4 on" in errors
        assert os.listdir(tmp_path) == files, "a restore file of offsets that are still there"
        assert await stored() == ends
