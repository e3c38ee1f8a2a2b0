"""Commands about groups that brokers coordinate, on real brokers: ``groups``, ``describe``, ``lag`` and ``consume``."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from kiel_groups.config import HostPort, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import (
    FindCoordinatorRequest,
    FoundCoordinator,
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
)
from tests.helpers.cluster_data import produce
from tests.helpers.commands import Running, at_a_terminal, kiel_groups_here
from tests.helpers.coordinated_members import member_of, members_of
from tests.helpers.raw_requests import ask, ask_at, connection_to
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PARTITIONS = 6
#: How long a frozen broker counts as alive: much longer than a command takes.
SESSION_MS = 60_000


def words_of(cluster: Cluster) -> list[str]:
    """Return the options that name the brokers of a cluster."""
    return ["--coordination=brokers", f"--brokers={cluster.brokers[0]}"]


async def run_beside_members(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a thread, because members run on the event loop of this process."""
    return await asyncio.to_thread(kiel_groups_here, *arguments, *words_of(cluster))


async def described(cluster: Cluster, group: str) -> dict[str, Any]:
    """Return the document of a group, or {} while it cannot be described."""
    outcome = await run_beside_members(cluster, "describe", group, "--json")
    return dict(json.loads(outcome.stdout)) if outcome.returncode == 0 else {}


async def coordinator_of(cluster: Cluster, group: str) -> HostPort:
    """Return the address of a group's coordinator, once there is one."""

    async def found() -> FoundCoordinator | None:
        answer = await ask_at(cluster.brokers[0], FindCoordinatorRequest(group))
        return answer if answer.error == NO_ERROR else None

    found_coordinator = await eventually(found, "there is a coordinator")
    assert found_coordinator is not None
    return HostPort(found_coordinator.broker.host, found_coordinator.broker.port)


async def test_describe_shows_members_partitions_offsets_and_lag(coordinating_cluster: Cluster, unique: Unique) -> None:
    """A healthy group has no problem; its members, partitions and lag are shown, as JSON and within 80 columns."""
    cluster, topic, name = coordinating_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    async with members_of(cluster, name, topic, 2, autocommit=False):
        await produce(cluster, topic, 60)
        await eventually(lambda: _has_lag(cluster, name, 60), "each partition has an offset")
        document = await described(cluster, name)
        assert (document["state"], document["type"], document["strategy"]) == ("stable", "consumer", "range")
        assert [finding for finding in document["wrong"] if not finding["passing"]] == []
        assert [len(each["owned"]) for each in document["members"]] == [3, 3]
        assert {each["host"] for each in document["members"]} == {"127.0.0.1"}
        assert [each["subscription"] for each in document["members"]] == [[topic], [topic]]
        assert sum(each["lag"] for each in document["partitions"]) == document["lag"] == 60
        assert {each["owner"] for each in document["partitions"]} == {each["id"] for each in document["members"]}
        table = await run_beside_members(cluster, "describe", name)
        assert (table.returncode, table.stderr) == (0, "")
        assert "state        stable: 6 of 6 partitions are assigned" in table.stdout
        listed = await run_beside_members(cluster, "groups", "--lag", "--json")
        assert {
            "group": name,
            "type": "consumer",
            "members": 2,
            "state": "stable",
            "coordinator": document["coordinator"],
            "lag": 60,
        } in json.loads(listed.stdout)
        lag = await run_beside_members(cluster, "lag", name, "--check", "59", "--json")
        assert (lag.returncode, json.loads(lag.stdout)["lag"]) == (1, 60)
        lag = await run_beside_members(cluster, "lag", name, "--check", "60")
        assert (lag.returncode, lag.stdout.splitlines()[-1]) == (0, f"lag of group {name}: 60, in 6 partitions")
        for command in (["describe", name], ["groups", "--lag"], ["lag", name]):
            words = [sys.executable, "-m", "kiel_groups", *command, *words_of(cluster)]
            shown = await asyncio.to_thread(at_a_terminal, words, COLUMNS="80", NO_COLOR="1")
            assert max(len(Text.from_ansi(line)) for line in shown.decode().splitlines()) <= 80


async def test_a_group_is_deleted_from_release_1_1_on(
    coordinating_cluster: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    ``members`` shows what the coordinator knows. A live group is refused. Older brokers cannot delete groups, and the
    error says what they do instead.
    """
    cluster, topic, name, file = coordinating_cluster, unique("topic"), unique("group"), str(tmp_path / "restore.json")
    await cluster.create_topic(topic, PARTITIONS)
    words = ["groups", "delete", name, "--restore-file", file]
    async with members_of(cluster, name, topic, 2, autocommit=False):
        await produce(cluster, topic, 60)
        await eventually(lambda: _has_lag(cluster, name, 60), "each partition has an offset")
        document = json.loads((await run_beside_members(cluster, "members", name, "--json")).stdout)
        assert (document["state"], document["allocator"]) == ("stable", "range")
        ours = document["members"]
        assert [(each["partitions"], each["assigned"], each["protocol_version"]) for each in ours] == [(3, 3, 0)] * 2
        table = (await run_beside_members(cluster, "members", name)).stdout.splitlines()
        assert table[0].endswith(": 2 members, stable, allocator range")
        assert [line.split()[-1] for line in table[4:6]] == ["3", "3"]
        refused = await run_beside_members(cluster, *words, "--yes")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"group {name} is alive, and is not deleted: member {ours[0]['id']} at 127.0.0.1," in refused.stderr
    done = await run_beside_members(cluster, *words, "--yes")
    if cluster.kafka[0].version < "1.1":
        assert (done.returncode, done.stdout) == (2, "")
        assert "from Kafka 1.1 on, and these are older" in done.stderr
        assert "offsets.retention.minutes" in done.stderr
        return
    assert (done.returncode, "restores it" in done.stderr) == (0, True), done.stderr
    assert f"the offsets of 6 partitions of {topic}" in done.stdout
    gone = await run_beside_members(cluster, "describe", name)
    assert (gone.returncode, f"group {name!r} does not exist" in gone.stderr) == (2, True)
    restored = await run_beside_members(cluster, "offsets", "import", name, file, "--yes")
    assert restored.returncode == 0
    assert (await described(cluster, name))["lag"] == 60


async def _has_lag(cluster: Cluster, group: str, lag: int) -> bool:
    document = await described(cluster, group)
    return document.get("lag") == lag and document["partitions_of_unknown_lag"] == 0


async def test_a_stopped_member_holds_up_a_rebalance_and_is_removed(
    coordinating_cluster: Cluster, unique: Unique, tmp_path: Any
) -> None:
    """
    While a stopped member does not rejoin, the group is shown as rebalancing. When its session is over, the others have
    its partitions.
    """
    cluster, topic, name = coordinating_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    words = ["-m", "kiel_groups", "consume", topic, "--group", name, "--session-timeout-ms=10000", *words_of(cluster)]
    with Running(words) as stopped:
        await eventually(lambda: _owned(cluster, name, PARTITIONS), "it owns all partitions")
        stopped.process.send_signal(signal.SIGSTOP)
        async with AsyncExitStack() as stack:
            # A member of this process joins at once, long before the session of the other one is over.
            live = member_of(cluster, name, [topic], session_timeout_ms=10_000)
            joining = asyncio.ensure_future(stack.enter_async_context(live))
            document = await eventually(lambda: _rebalancing(cluster, name), "the group waits for the stopped member")
            finding = document["wrong"][0]
            assert (finding["kind"], finding["passing"]) == ("rebalancing", True)
            assert {each["owned"] is None for each in document["members"]} == {True}
            await eventually(lambda: _owned(cluster, name, PARTITIONS, members=1), "the other has all partitions")
            await joining
            stopped.process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(stopped.end, signal.SIGINT) == 130


async def _owned(cluster: Cluster, group: str, count: int, members: int = 1) -> bool:
    document = await described(cluster, group)
    known = document.get("members", [])
    return len(known) == members and sum(len(each["owned"] or ()) for each in known) == count


async def _rebalancing(cluster: Cluster, group: str) -> dict[str, Any]:
    document = await described(cluster, group)
    return document if document.get("state") == "rebalancing" else {}


async def test_a_group_without_members_and_with_lag_fails_its_check(
    coordinating_cluster: Cluster, unique: Unique
) -> None:
    """The check succeeds while there is no lag. Brokers from 0.10 on list the group, those of 0.9 only describe it."""
    cluster, topic, name = coordinating_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    async with members_of(cluster, name, topic, 1):
        await eventually(lambda: _has_lag(cluster, name, 0), "each partition has an offset")
    assert (await run_beside_members(cluster, "describe", name, "--check")).returncode == 0
    await produce(cluster, topic, 12)
    outcome = await run_beside_members(cluster, "describe", name, "--check")
    assert (outcome.returncode, outcome.stderr) == (1, "")
    assert outcome.stdout.splitlines()[2].startswith("wrong  the group has no members; its lag is 12")
    assert "state        empty: 0 of 6 partitions are assigned" in outcome.stdout
    listed = {
        each["group"]: each for each in json.loads((await run_beside_members(cluster, "groups", "--json")).stdout)
    }
    if cluster.kafka[0].version == "0.9.0.1":
        assert name not in listed
    else:
        assert (listed[name]["state"], listed[name]["members"], listed[name]["lag"]) == ("empty", 0, None)


async def test_a_group_of_another_type_is_shown_with_its_type(coordinating_cluster: Cluster, unique: Unique) -> None:
    """A group of Kafka Connect's workers is listed; its members are shown, but no partitions."""
    cluster, name = coordinating_cluster, unique("group")
    async with connection_to(await coordinator_of(cluster, name)) as connection:
        join = JoinGroupRequest(name, 10_000, "", "connect", (GroupProtocol("default", b"\0\1workers"),))

        async def accepted() -> JoinGroupResponse | None:
            answer = await ask(connection, join)
            return answer if answer.error == NO_ERROR else None

        # A new coordinator reads its groups before it takes members.
        joined = await eventually(accepted, "the worker has joined")
        assert joined is not None
        try:
            listed = json.loads((await run_beside_members(cluster, "groups", "--json")).stdout)
            assert [each["type"] for each in listed if each["group"] == name] == ["connect"]
            document = await described(cluster, name)
            assert (document["type"], document["partitions"], document["lag"]) == ("connect", [], 0)
            assert [each["id"] for each in document["members"]] == [joined.member_id]
            table = (await run_beside_members(cluster, "describe", name)).stdout
            assert "type         connect: not a group of consumers; its members own no partitions" in table
        finally:
            await ask(connection, LeaveGroupRequest(name, joined.member_id))


# The command computes this from answers that all releases give.
@pytest.mark.parametrize("coordinating_version", ["0.9.0.1"], indirect=True)
async def test_watch_repeats_until_ctrl_c(coordinating_cluster: Cluster, unique: Unique) -> None:
    """The watch prints one JSON document a line, and shows a member that joins. Ctrl-C ends it with status 130."""
    cluster, topic, name = coordinating_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    async with members_of(cluster, name, topic, 1):
        command = ["-m", "kiel_groups", "describe", name, *words_of(cluster), "--json", "--watch", "0.1"]
        with Running(command) as process:
            await asyncio.to_thread(process.wait_for_lines, 1)
            async with member_of(cluster, name, [topic]):
                await eventually(lambda: len(json.loads(process.lines[-1])["members"]) == 2, "the second is seen")
            assert await asyncio.to_thread(process.end, signal.SIGINT) == 130
            assert process.errors == []


# The command computes this from answers that all releases give.
@pytest.mark.parametrize("coordinating_version", ["0.9.0.1"], indirect=True)
async def test_a_similar_group_is_suggested(coordinating_cluster: Cluster, unique: Unique) -> None:
    """The error about a missing group suggests one with a similar name; a member of a new group logs it, too."""
    cluster, topic, name = coordinating_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    async with members_of(cluster, name, topic, 1):
        outcome = await run_beside_members(cluster, "describe", name[:-1])
        assert (outcome.returncode, outcome.stdout) == (2, "")
        assert outcome.stderr == (
            f"error: group {name[:-1]!r} does not exist at brokers {cluster.brokers[0]}; did you mean {name!r}?\n"
        )
        joined = await run_beside_members(cluster, "consume", topic, "--group", name[:-1], "--timeout", "1")
        assert f"info: group {name[:-1]!r} is new; did you mean {name!r}?" in joined.stderr.splitlines()


@pytest.mark.parametrize("more", ["", ": all / (1)"], ids=["a name", "another name"])
async def test_consume_shares_and_resumes_a_group(coordinating_cluster: Cluster, unique: Unique, more: str) -> None:
    """
    A member commits what it has printed to the coordinator; the next one continues there. Brokers know groups of any
    name.
    """
    cluster, topic, name = coordinating_cluster, unique("topic"), unique("group") + more
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 10)
    arguments = ["consume", topic, "--group", name, "--max", "5", "--allocator", "sticky,roundrobin"]
    first = await run_beside_members(cluster, *arguments)
    second = await run_beside_members(cluster, *arguments)
    assert (first.returncode, second.returncode) == (0, 0), (first.stderr, second.stderr)
    assert (first.stdout + second.stdout).split() == [str(number) for number in range(10)]
    assert f"info: group {name!r} is new" in first.stderr
    assert "is new" not in second.stderr
    assert (await described(cluster, name))["lag"] == 0


async def test_a_broker_that_does_not_answer_is_named(start_cluster: Callable[..., Cluster]) -> None:
    """The groups of the other broker are listed. The warning names the silent broker, and the exit status is 1."""
    settings = {"offsets.topic.replication.factor": 1, "zookeeper.session.timeout.ms": SESSION_MS}
    cluster = start_cluster(2, kafka="0.9.0.1", broker_overrides=settings, max_session_timeout_ms=SESSION_MS)
    await cluster.create_topic("t", PARTITIONS)
    homes: dict[HostPort, str] = {}
    for number in range(20):
        group = f"g{number}"
        homes.setdefault(await coordinator_of(cluster, group), group)
        if len(homes) == 2:
            break
    first, second = (parse_hosts(address, 0, "broker")[0] for address in cluster.brokers)
    async with members_of(cluster, homes[first], "t", 1), members_of(cluster, homes[second], "t", 1):
        listed = await run_beside_members(cluster, "groups", "--json")
        assert (listed.returncode, listed.stderr) == (0, "")
        assert {each["group"] for each in json.loads(listed.stdout)} == set(homes.values())
        cluster.kafka[1].pause()
        try:
            outcome = await run_beside_members(cluster, "groups", "--json")
        finally:
            cluster.kafka[1].resume()
        assert outcome.returncode == 1
        assert [each["group"] for each in json.loads(outcome.stdout)] == [homes[first]]
        assert outcome.stderr.startswith(f"warning: the groups of broker 1 at {second} are not known: ")
        assert len(outcome.stderr.splitlines()) == 1


async def test_brokers_of_0_8_coordinate_no_groups(cluster_39: Cluster, unique: Unique) -> None:
    """The error says from which release on brokers coordinate groups."""
    await cluster_39.create_topic(unique("topic"), 1)
    for command in (["groups"], ["describe", "g"], ["lag", "g"], ["topics", "list"]):
        outcome = await run_beside_members(cluster_39, *command)
        assert (outcome.returncode, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1)
        assert "brokers coordinate groups from Kafka 0.9 on" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["groups", "--brokers", "b"], 2, "'--brokers' needs '--coordination brokers'"),
        (["groups", "--coordination", "kafka"], 2, "'kafka' is not one of 'zookeeper', 'brokers'"),
        (["groups", "--coordination", "brokers"], 2, "Missing option '--brokers' (env var: 'KIEL_GROUPS_BROKERS')"),
        (["groups", "--coordination=brokers", "--brokers=b", "--zookeeper=z"], 2, "'--zookeeper' does not go with"),
        (["groups", "--coordination=brokers", "--brokers=127.0.0.1:1"], 1, "no broker answered: 127.0.0.1:1: cannot"),
        (["groups", "--coordination=brokers", "--brokers=b:port"], 2, "brokers: 'b:port' is not an address"),
        (["describe", "--coordination=brokers", "--brokers=b"], 2, "Missing argument 'GROUP'"),
        (["describe", "", "--coordination=brokers", "--brokers=b"], 2, "'' is not the name of a group"),
        (["describe", "g", "--coordination=brokers", "--brokers=b", "--history"], 2, "brokers keep no plans"),
        (["lag", "--check", "g", "--coordination=brokers", "--brokers=b"], 2, "GROUP goes before this option"),
        (["lag", "g", "--check=few", "--coordination=brokers", "--brokers=b"], 2, "'few' is not a number of records"),
        (["lag", "g"], 2, "If brokers coordinate the groups, give '--coordination brokers' and '--brokers'"),
        (["release", "g", "m", "--coordination=brokers"], 2, "'release' is for groups that ZooKeeper coordinates"),
        (
            ["serve", "--group=g", "--coordination=brokers", "--brokers=b:9092"],
            2,
            "in a group of brokers, a member allocates",
        ),
        (["weights", "show", "g", "--coordination=brokers"], 2, "the groups of brokers have none"),
        (["drain", "g", "m", "--coordination=brokers"], 2, "stop the member, and its partitions go to the others"),
        (["undrain", "g", "m", "--coordination=brokers"], 2, "stop the member, and its partitions go to the others"),
        (["rebalance", "g", "--coordination=brokers"], 2, "when a member joins or leaves; restart one member"),
        (["config", "show", "g", "--coordination=brokers"], 2, "give each member its own, and restart it"),
        (["config", "set", "g", "a=b", "--coordination=brokers"], 2, "give each member its own, and restart it"),
        (["history", "g", "--coordination=brokers"], 2, "the logs of the coordinator and of the members have the"),
        (["drain", "g", "--zookeeper=z"], 2, "give either MEMBER or --host"),
        (["undrain", "g", "m", "--host=h", "--zookeeper=z"], 2, "give either MEMBER or --host"),
        (["config", "set", "g", "allocator", "--zookeeper=z"], 2, "expected SETTING=VALUE, such as allocator=sticky"),
        (
            ["consume", "t", "--group=g", "--coordination=brokers", "--brokers=b", "--store=broker-v0"],
            2,
            "'--store' does not go with '--coordination brokers': brokers store the offsets",
        ),
        (
            ["consume", "t", "--group=g", "--coordination=brokers", "--brokers=b", "--instance-id=i"],
            2,
            "groups of brokers have no static members yet",
        ),
        (
            ["consume", "t", "--group=g", "--coordination=brokers", "--brokers=b", "--zookeeper=z"],
            2,
            "'--zookeeper' does not go with '--coordination brokers': no ZooKeeper is asked",
        ),
        (
            ["consume", "t", "--group=g", "--coordination=brokers", "--brokers=b", "--allocator=stiky"],
            2,
            "there is no assignor 'stiky'; expected one of",
        ),
        (
            ["consume", "t", "--group=g", "--brokers=b"],
            2,
            "If brokers coordinate the group, give '--coordination brokers'",
        ),
        (["topics", "list", "--brokers=b"], 2, "'--brokers' needs '--coordination brokers'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_give_one_line(arguments: list[str], status: int, message: str) -> None:
    """The line says what is wrong, and may suggest a remedy."""
    outcome = kiel_groups_here(*arguments)
    assert (outcome.returncode, outcome.stdout) == (status, "")
    assert message in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_a_list_without_groups_says_what_is_not_listed(start_cluster: Callable[..., Cluster]) -> None:
    """Brokers of 0.9 do not list groups without members, so an empty list does not mean that there are no groups."""
    cluster = start_cluster(kafka="0.9.0.1")
    outcome = kiel_groups_here("groups", *words_of(cluster))
    assert (outcome.returncode, outcome.stdout) == (0, "")
    assert outcome.stderr == (
        f"info: there are no groups at brokers {cluster.brokers[0]}; brokers of Kafka 0.9 list only those that have"
        " members\n"
    )
