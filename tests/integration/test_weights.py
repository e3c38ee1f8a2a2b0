"""Weights of partitions: commands and programs set them, and the leader's allocator uses them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kiel_groups.clients import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.group_settings import HistoryEntry, Weights
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.weights import plan_weights, read_weights
from tests.helpers.cluster_data import zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def group_state(client: KazooClient, layout: GroupLayout) -> GroupState:
    return GroupState.parse(client.get(layout.group_state)[0], layout.group_state)


def entries(client: KazooClient, layout: GroupLayout) -> list[HistoryEntry]:
    paths = [f"{layout.history}/{name}" for name in sorted(client.get_children(layout.history))]
    return [HistoryEntry.parse(client.get(path)[0], path) for path in paths]


def last_entry(client: KazooClient, layout: GroupLayout) -> HistoryEntry:
    return entries(client, layout)[-1]


def topic_weights(topic: str, *loads: float) -> dict[TopicPartition, float]:
    return {TopicPartition(topic, number): load for number, load in enumerate(loads)}


def put_weights(client: KazooClient, group: str, weights: Weights) -> None:
    assert plan_weights(client, group, lambda _: weights, replaces=True).apply(client)


def shares(topic: str, *members: Member) -> list[list[int]]:
    return sorted(member.partitions(topic) for member in members)


async def test_members_share_by_weight_and_follow_changes(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    When weights change, as few partitions as possible move, and the cause is logged. Unreadable weights are reported
    once and not used.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 6)
    layout = GroupLayout(name)
    caplog.set_level(logging.INFO, "kiel_groups")
    async with group_of(cluster_39, name, [topic], partition_allocator="weighted") as group:
        first = await group.join()
        with zookeeper(cluster_39) as client:
            put_weights(client, name, topic_weights(topic, 50, 10, 10, 10, 10, 10))
            second = await group.join()
            await eventually(lambda: shares(topic, first, second) == [[0], [1, 2, 3, 4, 5]], "shares of equal load")
            assert group_state(client, layout).allocator == "weighted"

            put_weights(client, name, topic_weights(topic, 10, 10, 10, 10, 10, 10))
            await eventually(lambda: [len(share) for share in shares(topic, first, second)] == [3, 3], "equal again")
            assert group_state(client, layout).cause == "weights"
            assert (last_entry(client, layout).cause, last_entry(client, layout).moved) == ("weights", 2)
            assert "partitions move: weights" in caplog.text

            put_weights(client, name, topic_weights(topic, 60, 10, 10, 10, 10, 10))
            await eventually(lambda: shares(topic, first, second) == [[0], [1, 2, 3, 4, 5]], "by weight")
            client.set(layout.weights, b"\xff garbage")
            message = (
                f"{layout.weights}: weights packed by zlib were expected, found b'\\xff garbage'; keeping the"
                " previous weights"
            )
            await eventually(lambda: message in caplog.text, "an error in the leader's log")
            leader = first if first.consumer.metrics.total("znodes_unreadable") else second
            assert leader.consumer.metrics.total("znodes_unreadable") == 1
            third = await group.join()

            def sizes() -> list[int]:
                return sorted(len(share) for share in shares(topic, first, second, third))

            await eventually(lambda: sizes() == [1, 2, 3] and [0] in shares(topic, first, second, third), "by weight")
            assert caplog.text.count(message) == 1
            client.delete(layout.weights)
            await eventually(lambda: sizes() == [2, 2, 2], "by number")


async def test_weights_change_nothing_if_the_allocator_does_not_use_them(cluster_39: Cluster, unique: Unique) -> None:
    """If the allocator does not use weights, a change of the weights causes no plan."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    layout = GroupLayout(name)
    async with group_of(cluster_39, name, [topic]) as group:
        first, second = await group.join(), await group.join()
        await group.balanced(topic, 4)
        with zookeeper(cluster_39) as client:
            before = group_state(client, layout)
            plans = [member.consumer.metrics.latency("allocator").count for member in (first, second)]
            put_weights(client, name, topic_weights(topic, 9, 1, 1, 1))
            await eventually(
                lambda: [member.consumer.metrics.latency("allocator").count for member in (first, second)] > plans,
                "the leader has planned",
            )
            await group.join()
            await group.balanced(topic, 4)
            # One plan, or two: one may come between the registration of the member and its subscription.
            later = [each for each in entries(client, layout) if each.generation > before.generation]
            causes = {cause for each in later for cause in each.cause.split(", ")}
            assert {cause.partition(" of ")[0] for cause in causes} <= {"join", "subscription"}


async def test_concurrent_changes_of_weights_lose_nothing(cluster_39: Cluster, unique: Unique) -> None:
    """A change is not made if another writer was faster, whether it created, changed or removed the weights."""
    name = unique("group")
    with zookeeper(cluster_39) as client:
        client.ensure_path(GroupLayout(name).root)
        for other in (topic_weights("t", 0), topic_weights("t", 0, 1), {}):
            planned = plan_weights(client, name, lambda before: before | {TopicPartition("t", 9): 9})
            put_weights(client, name, other)
            assert not planned.apply(client)
            assert read_weights(client, name) == other
        client.delete(GroupLayout(name).root, recursive=True)


async def test_the_commands_set_show_and_remove_weights(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    Weights come from arguments or from a file. A warning is printed if the group's allocator does not use weights.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 3)
    at = ("--zookeeper", cluster_39.zk_hosts)

    async def run(*arguments: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(kiel_groups_here, "weights", *arguments, *at)
        return done.returncode, done.stdout, done.stderr

    async with group_of(cluster_39, name, [topic], partition_allocator="weighted") as group:
        await group.join()
        await group.balanced(topic, 3)
        by = f"'kiel-groups weights set --zookeeper {cluster_39.zk_hosts}'"
        none = f"info: group {name} has no weights; {by} sets them\n"
        assert await run("show", name) == (0, "", none)
        both = (name, f"{topic}:0=12.5", f"{topic}:2=3")
        assert (await run("set", *both))[2].startswith("error: there is no terminal to confirm at; give --yes.")
        status, document, errors = await run("set", *both, "--dry-run", "--json")
        assert (status, errors) == (0, "")
        rows = [{"partition": f"{topic}:{n}", "before": None, "after": load} for n, load in ((0, 12.5), (2, 3))]
        assert json.loads(document) == {"group": name, "dry_run": True, "weights": rows}
        assert await run("show", name) == (0, "", none)
        status, table, errors = await run("set", *both, "--yes")
        assert (status, errors) == (0, f"info: group {name} has weights for 2 partitions now\n")
        assert [line.split() for line in table.splitlines()[-2:]] == [
            [f"{topic}:0", "-", "12.5"],
            [f"{topic}:2", "-", "3"],
        ]
        assert (await run("set", *both, "--yes"))[2] == f"info: group {name} has these weights already\n"
        assert (await run("set", name, f"{topic}:1=0", "--yes"))[2].endswith("for 3 partitions now\n")
        status, shown, _ = await run("show", name, "--json")
        assert (status, json.loads(shown)) == (0, {f"{topic}:0": 12.5, f"{topic}:1": 0, f"{topic}:2": 3})
        status, table, errors = await run("show", name)
        assert (status, errors) == (0, "")
        assert table.startswith(f"group {name}: 3 partitions have weights\n")
        assert [line.split()[:2] for line in table.splitlines()[-3:]] == [["0", "12.5"], ["1", "0"], ["2", "3"]]
        assert re.search(r" 3 +15\.5 +100\.0 %", table)
        (tmp_path / "w.json").write_text(json.dumps({f"{topic}:1": 8}))
        assert (await run("set", name, "--file", str(tmp_path / "w.json"), "--yes"))[0] == 0
        _, table, _ = await run("show", name)
        assert "1 partition has a weight\n  2 partitions without one count 8, the median of the others" in table
        (tmp_path / "w.json").write_text(json.dumps({f"{topic}:0": 1, f"{topic}:1": 2}))
        assert (await run("set", name, "--file", str(tmp_path / "w.json"), "--yes"))[0] == 0
        assert (await run("remove", name, f"{topic}:1", "--yes"))[
            2
        ] == f"info: group {name} has weights for 1 partition now\n"
        assert (await run("remove", name, "--yes"))[2] == f"info: group {name} has weights for 0 partitions now\n"
        assert await run("remove", name) == (0, "", f"info: group {name} has these weights already\n")
    async with group_of(cluster_39, unique("other"), [topic]) as group:
        await group.join()
        await group.balanced(topic, 3)
        _, _, errors = await run("set", group.name, f"{topic}:0=1", "--yes")
        assert errors.splitlines()[1].startswith(
            f"warning: group {group.name} is allocated by round_robin, which does not use weights; to make weights"
        )


async def test_mistakes_give_one_line(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """Each mistake gives one line, and nothing is written."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 3)
    layout, at = GroupLayout(name), ("--zookeeper", cluster_39.zk_hosts)
    broken, list_file, missing = tmp_path / "broken", tmp_path / "list", tmp_path / "missing"
    broken.write_text("{")
    list_file.write_text("[]")
    with zookeeper(cluster_39) as client:
        client.ensure_path(layout.root)
        for arguments, words in (
            (("set", name), "give either partitions with their loads, or --file. See 'kiel-groups weights set --help'"),
            (("set", name, f"{topic}:3=1"), f"{topic}:3 given; topic '{topic}' has 3 partitions, 0 to 2"),
            (("set", name, f"{topic[:-1]}:0=1"), f"topic '{topic[:-1]}' does not exist in ZooKeeper"),
            (
                ("set", name, topic),
                f"weights: '{topic}' given; expected TOPIC:PARTITION=LOAD, such as page-views:3=12.5",
            ),
            (("set", name, f"{topic}:0=x"), "expected TOPIC:PARTITION=LOAD, such as page-views:3=12.5"),
            (("set", name, f"{topic}=1"), f"weights: '{topic}' given; expected a partition such as page-views:3"),
            (("set", name, f"{topic}:0=-1"), f"weights: -1.0 given for {topic}:0; expected a load, a number from 0 to"),
            (("set", name, f"{topic}:0=nan"), f"weights: nan given for {topic}:0; expected a load, a number from 0 to"),
            (("set", name, "--file", str(broken)), "broken: not JSON ("),
            (
                ("set", name, "--file", str(list_file)),
                'a JSON object was expected, found list; expected {"page-views:0"',
            ),
            (("set", name, "--file", str(missing)), "missing': No such file or directory"),
            (
                ("remove", name, f"{topic}:0"),
                f"{topic}:0 has no weight in group {name}; 'kiel-groups weights show --zoo",
            ),
            (("show", name[:-1]), f"group '{name[:-1]}' does not exist in ZooKeeper at {cluster_39.zk_hosts}"),
            (("set", name[:-1], f"{topic}:0=1", "--yes"), f"; did you mean '{name}'?"),
        ):
            done = await asyncio.to_thread(kiel_groups_here, "weights", *arguments, *at)
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), (arguments, done)
            assert done.stderr.startswith("error: ")
            assert words in done.stderr
            assert client.exists(layout.weights) is None
        client.create(layout.weights, b"{}")
        done = kiel_groups_here("weights", "show", name, *at)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"found b'{{}}'; 'kiel-groups weights set {name} --file FILE --zookeeper" in done.stderr
        client.set(layout.weights, zlib.compress(b'{"version":1,"weights":{"\\ud800:0":1}}'))
        for words in (("show", name), ("show", name, "--json"), ("set", name, f"{topic}:0=1")):
            done = kiel_groups_here("weights", *words, *at)
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), (words, done)
            assert "weights: '\\ud800:0' given; expected a partition such as page-views:3; 'kiel-" in done.stderr
        client.ensure_path(GroupLayout(f"{name}-java").ids)
        done = kiel_groups_here("weights", "set", f"{name}-java", f"{topic}:0=1", "--yes", *at)
        assert "no member of kiel-groups was ever in it" in done.stderr
        # What cannot be read can be replaced, and removed.
        assert kiel_groups_here("weights", "remove", name, "--yes", *at).returncode == 0
        assert client.exists(layout.weights) is None
        client.delete(layout.root, recursive=True)


async def test_weights_above_the_size_limit_are_not_written(cluster_39: Cluster, unique: Unique) -> None:
    """
    Weights above the size limit are not written, and the previous weights remain. Weights just below the limit are
    written and read.
    """
    name = unique("group")
    many = topic_weights("t", *(number * 7919 % 99991 / 7 for number in range(150_000)))
    with zookeeper(cluster_39) as client:
        client.ensure_path(GroupLayout(name).root)
        put_weights(client, name, many)
        stored = client.get(GroupLayout(name).weights)
        assert len(stored[0]) > 700 << 10
        assert read_weights(client, name).keys() == many.keys()
        with pytest.raises(ConfigError, match=r"weights: 300,000 partitions take 1,\d+ KiB packed, expected at"):
            put_weights(
                client, name, many | topic_weights("u", *(number * 7919 % 99991 / 7 for number in range(150_000)))
            )
        assert client.get(GroupLayout(name).weights) == stored
        client.delete(GroupLayout(name).root, recursive=True)


async def test_members_share_by_capacity(cluster: Cluster, unique: Unique) -> None:
    """A member of three times the capacity gets three times the partitions."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 8)
    async with group_of(cluster, name, [topic], partition_allocator="sticky") as group:
        large = await group.join(capacity=3)
        small = await group.join()
        await eventually(lambda: [len(each.partitions(topic)) for each in (large, small)] == [6, 2], "by capacity")


async def test_the_backlog_of_one_partition_is_its_owners_only_work(cluster: Cluster, unique: Unique) -> None:
    """The leader that allocates by lags asks for them: a partition with a backlog has an owner of its own."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    async with Producer(cluster.brokers, batch_size=1000, linger_ms=5, partitioner=lambda *_: 2) as producer:
        await asyncio.gather(*(producer.produce(topic, b"x") for _ in range(30_000)))
    settings = {"partition_allocator": "lag_aware", "auto_commit_interval_ms": 3_600_000}
    async with group_of(cluster, name, [topic], **settings) as group:
        first = await group.join()
        await eventually(lambda: len(first.partitions(topic)) == 4, "the first member has all")
        second = await group.join()
        await eventually(lambda: shares(topic, first, second) == [[0, 1, 3], [2]], "the backlog is alone")
