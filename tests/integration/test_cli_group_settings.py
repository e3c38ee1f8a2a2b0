"""``kiel-groups drain``, ``undrain``, ``rebalance``, ``config`` and ``history`` on a real group."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import GroupConfigError
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import Running, kiel_groups, kiel_groups_here
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def run(
    cluster: Cluster,
    *arguments: str,
    status: int = 0,
    runner: Callable[..., subprocess.CompletedProcess[str]] = kiel_groups_here,
) -> tuple[str, str]:
    """Run a command beside the members on this event loop, and return its output and errors."""
    done = await asyncio.to_thread(runner, *arguments, "--zookeeper", cluster.zk_hosts)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr


async def test_an_operator_drains_members_and_changes_settings(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    A member is drained and gets its share back, by its instance id. Settings are shown with their sources, and changed.
    The history has the causes of it all. An unreadable config is replaced. Nothing is lost or delivered twice.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    values = await produce(cluster_39, topic, 40)
    async with group_of(cluster_39, name, [topic]) as group:
        first = await group.join(instance_id="shelf")
        second = await group.join(max_poll_interval_ms=77_000, debounce_quiet_ms=50)
        await group.balanced(topic, 4)

        shown, _ = await run(cluster_39, "drain", name, "shelf", "--json", "--dry-run")
        change = {"setting": "drained", "before": None, "after": ["shelf"]}
        members = [{"slot": "shelf", "owned": 2}]
        assert json.loads(shown) == {"group": name, "dry_run": True, "members": members, "changes": [change]}
        assert len(first.partitions(topic)) == 2
        _, said = await run(cluster_39, "drain", name, "shelf", "--yes")
        assert "2 partitions have moved; shelf owns 0 partitions" in said
        # The command reads claims in ZooKeeper, whose answers may not have reached the members yet.
        await eventually(lambda: second.partitions(topic) == [0, 1, 2, 3], "the other member knows its claims")
        assert first.partitions(topic) == []
        _, said = await run(cluster_39, "drain", name, "shelf", "--yes")
        assert "nothing to change: shelf is drained already" in said
        _, said = await run(cluster_39, "drain", name, str(second.consumer.member_id), "--yes", status=2)
        assert f"every member of group {name} that subscribes to {topic} would be drained" in said

        _, said = await run(cluster_39, "undrain", name, "shelf", "--yes", runner=kiel_groups)
        assert "shelf owns 2 partitions" in said
        await group.balanced(topic, 4)
        _, said = await run(cluster_39, "rebalance", name, "--reason", "disk swap", "--yes", runner=kiel_groups)
        assert "no partition has moved: by round_robin, the allocation is right as it is" in said

        await run(cluster_39, "config", "set", name, "allocator=sticky", "static_grace_ms=70000", "--yes")
        _, said = await run(cluster_39, "config", "set", name, "allocator=stiky", "--yes", status=2)
        assert "did you mean 'sticky'?" in said
        shown, _ = await run(cluster_39, "config", "show", name, "--json")
        settings = {
            (each["setting"], each["value"]): (each["from"], len(each["members"] or ()))
            for each in json.loads(shown)["settings"]
        }
        assert settings["allocator", "sticky"] == ("config", 0)
        assert settings["store", "zookeeper"] == ("the first member", 0)
        assert settings["debounce.quiet_ms", 100] == ("default", 0)
        assert settings["max_poll_interval_ms", 77_000] == ("the member", 1)
        assert settings["max_poll_interval_ms", 300_000] == ("default", 1)

        # The leader answers changes that follow each other quickly by one plan.
        cause = "operator: config allocator=sticky, static_grace_ms=70000"
        with zookeeper(cluster_39) as client:
            path = GroupLayout(name).group_state
            await eventually(lambda: GroupState.parse(client.get(path)[0], path).cause == cause, "the leader's answer")
            await run(cluster_39, "config", "unset", name, "allocator", "--yes")
            cause = "operator: config unset allocator"
            await eventually(lambda: GroupState.parse(client.get(path)[0], path).cause == cause, "the leader's answer")
        shown, _ = await run(cluster_39, "history", name, "--limit", "5", "--json", runner=kiel_groups)
        assert [each["cause"] for each in json.loads(shown)["history"]] == [
            cause,
            "operator: config allocator=sticky, static_grace_ms=70000",
            "operator: disk swap",
            "operator: undrain of shelf",
            "operator: drain of shelf",
        ]
        # No member can join a group with an unreadable config; members that are alive continue.
        with zookeeper(cluster_39) as client:
            client.set(GroupLayout(name).config, b"\x00garbage")
        agreed = ("store=zookeeper", "mode=cooperative", "auto_offset_reset=earliest")
        with pytest.raises(GroupConfigError, match=f"'kiel-groups config set {name} --replace' replaces them"):
            await group.join()
        shown, _ = await run(cluster_39, "config", "show", name, runner=kiel_groups)
        assert "store                       -             unreadable config" in shown
        file = tmp_path / "garbage.json"
        replace = ("config", "set", name, "--replace", *agreed, "--yes", "--restore-file")
        _, said = await run(cluster_39, *replace, f"{tmp_path}/absent/file", status=2)
        assert "--restore-file: " in said
        _, said = await run(cluster_39, *replace, str(file))
        assert f"the unreadable config is in {file}" in said
        assert json.loads(await asyncio.to_thread(file.read_text))["znodes"] == {"config": "\0garbage"}
        third = await group.join()
        await eventually(lambda: third.partitions(topic), "a member can join again")
        assert await group.delivered(values) == Counter(values)


async def test_a_drain_that_takes_long_can_be_left_and_taken_back(cluster_39: Cluster, unique: Unique) -> None:
    """
    While a record is in flight, the drain waits and says for which member. Ctrl-C and the timeout leave the drain set,
    and say how to take it back. It ends when the record is finished.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    at = ("--zookeeper", cluster_39.zk_hosts)
    async with group_of(cluster_39, name, [topic]) as group:
        busy, other = await group.join(), await group.join()
        await group.balanced(topic, 2)
        busy.go_on.clear()
        await produce(cluster_39, topic, 20)
        await eventually(lambda: busy.records, "a record is in flight")
        session = str(busy.consumer.member_id).rpartition("-")[2]
        with Running(["-m", "kiel_groups", "drain", name, session, "--yes", *at]) as drain:
            text = f"info: waiting: 1 partition has not moved yet, still owned by {session}"
            await asyncio.to_thread(drain.wait_for_error, text)
            assert await asyncio.to_thread(drain.end, signal.SIGINT) == 130
        undrain = (
            f"the drain stays: 'kiel-groups undrain {name} {session} --zookeeper {cluster_39.zk_hosts}' takes it back"
        )
        assert drain.errors[-1] == f"info: {undrain}"
        _, said = await run(cluster_39, "drain", name, session, "--yes", "--timeout", "0", status=1)
        assert f"did not settle within 0 s: 1 partition has not moved yet, still owned by {session}; {undrain}" in said
        waiting = asyncio.create_task(run(cluster_39, "drain", name, session, "--yes"))
        busy.go_on.set()
        assert f"{busy.consumer.member_id} owns 0 partitions" in (await waiting)[1]
        await eventually(lambda: other.partitions(topic) == [0, 1], "the other member knows its claims")
        _, said = await run(cluster_39, "undrain", name, "--host", "nowhere", status=2)
        assert "has no member at host 'nowhere'; there are members at " in said
