"""``kiel-groups groups`` and ``describe`` on real servers: the output for an operator."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl

from kiel_groups.embedded import Cluster, ZooKeeperServer
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.ops import zookeeper_client
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import Running, kiel_groups_here
from tests.helpers.members import Group, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PARTITIONS = 6


async def run_beside_members(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a thread, because members run on the event loop of this process."""
    return await asyncio.to_thread(kiel_groups_here, *arguments, "--zookeeper", cluster.zk_hosts)


async def await_stored_offsets(group: Group, topic: str) -> None:
    await group.balanced(topic, PARTITIONS)
    layout = GroupLayout(group.name)
    with zookeeper(group.cluster) as client:
        folder = layout.topic_offsets(topic)
        await eventually(lambda: len(client.get_children(folder)) == PARTITIONS, "offsets are there")


async def test_describe_shows_members_leader_offsets_lag_and_owners(cluster: Cluster, unique: Unique) -> None:
    """
    For a healthy group the output has the leader and each partition's offset, log end, lag and owner, also as JSON.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    await produce(cluster, topic, 60)
    async with group_of(cluster, name, [topic], autocommit=False) as group:
        first, second = await group.join(), await group.join()
        await await_stored_offsets(group, topic)
        outcome = await run_beside_members(cluster, "describe", name, "--json", "--check")
        assert (outcome.returncode, outcome.stderr) == (0, "")
        document = json.loads(outcome.stdout)
        assert document["wrong"] == []
        assert document["state"] == "settled"
        assert document["leader"] == first.consumer.member_id
        assert [each["id"] for each in document["members"]] == [first.consumer.member_id, second.consumer.member_id]
        assert sum(each["lag"] for each in document["partitions"]) == document["lag"] == 60
        assert {each["owner"] for each in document["partitions"]} == {
            first.consumer.member_id,
            second.consumer.member_id,
        }
        table = await run_beside_members(cluster, "describe", name)
        assert (table.returncode, table.stderr) == (0, "")
        assert f"topic {topic}" in table.stdout
        assert "state       settled: 6 of 6 partitions are owned" in table.stdout
        assert "lag         60" in table.stdout
        listed = await run_beside_members(cluster, "groups", "--lag", "--json")
        assert {
            "group": name,
            "type": "consumer",
            "members": 2,
            "foreign_members": 0,
            "leader": first.consumer.member_id,
            "generation": document["allocation"]["generation"],
            "state": "done",
            "lag": 60,
            "closed": [],
        } in json.loads(listed.stdout)


async def test_describe_shows_problems_first(cluster_39: Cluster, unique: Unique) -> None:
    """
    A foreign consumer, an orphan and garbage are shown as three problems with remedies at the top. With --check the
    status is 1.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    layout = GroupLayout(name)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await await_stored_offsets(group, topic)
        with zookeeper(cluster_39) as client:
            client.create(f"{layout.ids}/{name}_java-1-abcdef01", b"{}", ephemeral=True)
            client.delete(f"{layout.topic_owners(topic)}/3")
            client.create(f"{layout.topic_owners(topic)}/3", f"{name}_gone-1-99-0".encode(), ephemeral=True)
            client.set(f"{layout.topic_offsets(topic)}/4", b"many")
            outcome = await run_beside_members(cluster_39, "describe", name, "--check")
            assert (outcome.returncode, outcome.stderr) == (1, "")
            wrong = " ".join(outcome.stdout.split("\n\n")[1].split())
            assert f"{name}_java-1-abcdef01 (under {layout.ids})" in wrong
            assert f"owned by {name}_gone-1-99, which is no longer a member: {topic}:3" in wrong
            assert f"{layout.topic_offsets(topic)}/4: a decimal offset was expected, found 'many'" in wrong
            assert wrong.count("→") == 3
            listed = await run_beside_members(cluster_39, "groups")
            assert [line.split()[1:3] for line in listed.stdout.splitlines() if line.split()[:1] == [name]] == [
                ["1", "1"]
            ]


async def test_a_group_of_java_consumers_is_described(cluster_39: Cluster, unique: Unique) -> None:
    """``describe`` shows the lag and the foreign members of a group without the znodes of this protocol."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    with zookeeper(cluster_39) as client:
        client.create(f"/consumers/{name}/ids/{name}_java-1-abcdef01", b"{}", ephemeral=True, makepath=True)
        client.create(f"/consumers/{name}/offsets/{topic}/0", b"0", makepath=True)
        document = json.loads((await run_beside_members(cluster_39, "describe", name, "--json", "--check")).stdout)
        assert (document["state"], document["wrong"], document["lag"]) == ("foreign", [], 0)
        assert [each["name"] for each in document["foreign_members"]] == [f"{name}_java-1-abcdef01"]


async def test_a_group_is_deleted_when_its_members_have_left_and_brought_back(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    ``members`` shows each member, a foreign one, too. While any is alive, the deletion is refused; without a terminal,
    it needs --yes. Then nothing of the group is left, and its restore file brings it back.
    """
    cluster, topic, name, file = cluster_39, unique("topic"), unique("group"), str(tmp_path / "restored")
    java = f"{name}_host-1-{1_700_000_000_000}-abcdef01"
    await cluster.create_topic(topic, PARTITIONS)
    values = await produce(cluster, topic, 60)
    async with group_of(cluster, name, [topic]) as group:
        member = await group.join(instance_id="one", capacity=2.5, rack="east")
        await group.delivered(values)
        await group.balanced(topic, PARTITIONS)
        with zookeeper(cluster) as client:
            client.create(f"/consumers/{name}/ids/{java}", b"{}", ephemeral=True)
            document = json.loads((await run_beside_members(cluster, "members", name, "--json")).stdout)
            ours, theirs = document["members"]
            assert (ours["id"], ours["kind"], ours["instance_id"]) == (member.consumer.member_id, "kiel-groups", "one")
            assert (ours["partitions"], ours["assigned"], ours["capacity"], ours["rack"]) == (6, 6, 2.5, "east")
            assert (theirs["id"], theirs["kind"], theirs["host"]) == (java, "java", "host-1")
            table = await run_beside_members(cluster, "members", name)
            assert table.stdout.splitlines()[0].endswith(": 2 members, settled, allocator round_robin")
            described = await run_beside_members(cluster, "describe", name)
            assert "capacity   rack" in described.stdout
            refused = await run_beside_members(cluster, "groups", "delete", name, "--yes")
            assert (refused.returncode, refused.stdout) == (2, "")
            assert f"group {name} is alive, and is not deleted: member {member.consumer.member_id}," in refused.stderr
            assert f"consumer of another client {java}" in refused.stderr
        await member.stop()

    def deleted(*options: str) -> subprocess.CompletedProcess[str]:
        return kiel_groups_here(
            *["groups", "delete", name, "--restore-file", file, "--zookeeper", cluster.zk_hosts, *options]
        )

    shown = deleted("--dry-run", "--json")
    (plan,) = json.loads(shown.stdout)["groups"]
    assert (shown.returncode, sum(plan["offsets"].values()), plan["restore_file"]) == (0, 60, file)
    unconfirmed = deleted()
    assert (unconfirmed.returncode, "give --yes" in unconfirmed.stderr) == (2, True)
    assert f"loses         the offsets of 6 partitions of {topic}" in unconfirmed.stdout
    done = deleted("--yes")
    assert (done.returncode, f"'kiel-groups offsets import {name} {file} --zookeeper" in done.stderr) == (0, True)
    assert f"group {name!r} does not exist" in deleted("--yes").stderr
    with zookeeper(cluster) as client:
        assert [root for root in GroupLayout(name).roots if client.exists(root)] == []
    restored = kiel_groups_here("offsets", "import", name, file, "--yes", "--zookeeper", cluster.zk_hosts)
    assert restored.returncode == 0
    found = json.loads(kiel_groups_here("describe", name, "--json", "--zookeeper", cluster.zk_hosts).stdout)
    assert (found["lag"], found["state"], found["settings"]["store"]) == (0, "empty", "zookeeper")
    overwriting = deleted("--yes")
    assert (overwriting.returncode, "exists, and is not overwritten" in overwriting.stderr) == (2, True)


async def test_a_group_with_a_denying_acl_is_listed_as_unreadable(cluster_39: Cluster, unique: Unique) -> None:
    """
    A warning names the unreadable path. Other groups are listed as usual, and a suggestion for a misspelt name still
    works.
    """
    closed, other = unique("closed"), unique("open")
    acl = make_digest_acl("owner", "secret", all=True)
    with zookeeper(cluster_39) as client:
        client.add_auth("digest", "owner:secret")
        for folder in (f"/consumers/{other}/offsets", "/kiel-groups"):
            client.ensure_path(folder)
        client.create(f"/kiel-groups/{closed}/members", acl=[acl], makepath=True)
        try:
            outcome = await run_beside_members(cluster_39, "groups")
            assert outcome.returncode == 0
            assert f"parts of group {closed}: /kiel-groups/{closed}" in outcome.stderr
            rows = {line.split()[0]: line.split()[1:] for line in outcome.stdout.splitlines() if line.strip()}
            assert (rows[closed], rows[other]) == (["?", "?", "unreadable"], ["0", "memberless"])
            documents = json.loads((await run_beside_members(cluster_39, "groups", "--lag", "--json")).stdout)
            (document,) = [each for each in documents if each["group"] == closed]
            assert (document["state"], document["members"], document["lag"]) == ("unreadable", None, None)
            assert f"/kiel-groups/{closed}/members" in document["closed"]
            outcome = await run_beside_members(cluster_39, "describe", closed, "--check")
            assert (outcome.returncode, outcome.stderr) == (1, "")
            assert outcome.stdout.splitlines()[2].startswith("wrong  an ACL denies reading 1 znode")
            outcome = await run_beside_members(cluster_39, "describe", other[:-1])
            assert f"did you mean {other!r}?" in outcome.stderr
        finally:
            client.delete(f"/kiel-groups/{closed}", recursive=True)


async def test_watch_repeats_until_ctrl_c(cluster_39: Cluster, unique: Unique) -> None:
    """
    The watch prints one JSON document a line, and shows a member that joins. Ctrl-C ends the watch silently with status
    130.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        command = ["-m", "kiel_groups", "describe", name, "--zookeeper", cluster_39.zk_hosts]
        with Running([*command, "--json", "--watch", "0.1"]) as process:
            await asyncio.to_thread(process.wait_for_lines, 1)
            await group.join()
            await eventually(lambda: len(json.loads(process.lines[-1])["members"]) == 2, "the second member is seen")
            assert await asyncio.to_thread(process.end, signal.SIGINT) == 130
            assert process.errors == []


async def test_without_brokers_the_lag_is_shown_as_unknown(start_cluster: Callable[..., Cluster]) -> None:
    """
    Without brokers, offsets and owners are still shown. The messages for a dead broker and for no registered broker
    differ.
    """
    # The session of the dead broker must not end before the first command has run.
    cluster = start_cluster(broker_overrides={"zookeeper.session.timeout.ms": 120_000}, max_session_timeout_ms=120_000)
    await cluster.create_topic("t", PARTITIONS)
    async with group_of(cluster, "g", ["t"]) as group:
        await group.join()
        await await_stored_offsets(group, "t")
        await cluster.kafka[0].kill()
        outcome = await run_beside_members(cluster, "describe", "g")
        assert outcome.returncode == 0
        assert "lag         ? (not fully known: no broker answered:" in outcome.stdout
        assert "6 of 6 partitions are owned" in outcome.stdout
        with zookeeper(cluster) as client:
            client.delete("/brokers/ids/0")  # as at the end of the session
        outcome = await run_beside_members(cluster, "describe", "g", "--check")
        assert (outcome.returncode, outcome.stderr) == (1, "")
        assert outcome.stdout.splitlines()[2].startswith("wrong  no broker is registered")
        outcome = await run_beside_members(cluster, "groups", "--lag")
        assert "warning: the lag is not fully known: no broker is registered in ZooKeeper" in outcome.stderr
        assert [line.split()[-1] for line in outcome.stdout.splitlines() if line.split()[:1] == ["g"]] == ["?"]


async def test_a_group_without_members_and_with_lag_fails_its_check(cluster_39: Cluster, unique: Unique) -> None:
    """After the last member has left, the check succeeds without lag, and fails as soon as there is lag."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await await_stored_offsets(group, topic)
    assert (await run_beside_members(cluster_39, "describe", name, "--check")).returncode == 0
    await produce(cluster_39, topic, 12)
    outcome = await run_beside_members(cluster_39, "describe", name, "--check")
    assert outcome.returncode == 1
    assert "wrong  the group has no members; its lag is 12" in outcome.stdout


async def test_watch_reports_each_outage_and_recovers(
    start_zookeeper: Callable[..., ZooKeeperServer],
) -> None:
    """All reads of a watch share a session until it breaks. Each outage is reported, and reading continues after it."""
    server = start_zookeeper()
    with zookeeper_client.zookeeper(server.address) as client:
        client.create("/consumers/g/offsets", makepath=True)
    command = ["-m", "kiel_groups", "describe", "g", "--zookeeper", server.address, "--watch", "0.1", "--json"]
    with Running(command) as process:
        await asyncio.to_thread(process.wait_for_lines, 5)
        for outage in (1, 2):
            await server.kill()
            await eventually(lambda count=outage: len(process.errors) >= count, "the outage is reported")  # type: ignore[misc]
            await server.start()
            await asyncio.to_thread(process.wait_for_lines, len(process.lines) + 2)
        assert all(", trying again: " in line for line in process.errors)
        assert await asyncio.to_thread(process.end, signal.SIGINT) == 130


@contextmanager
def chroot(cluster: Cluster, path: str) -> Iterator[str]:
    """
    Create an empty znode, and yield an address with it as the chroot, so that the chroot exists but is the wrong one.
    """
    with zookeeper(cluster) as client:
        client.ensure_path(path)
        yield f"{cluster.zk_hosts}{path}"
        client.delete(path)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["describe", "--zookeeper", "{hosts}"], 2, "Missing argument 'GROUP'."),
        (["describe", "g"], 2, "Missing option '--zookeeper' (env var: 'KIEL_GROUPS_ZOOKEEPER')."),
        (["describe", "no-such-group", "--zookeeper", "{hosts}"], 2, "group 'no-such-group' does not exist"),
        (["describe", "page views", "--zookeeper", "{hosts}"], 2, "group: 'page views' is not a legal name"),
        (["describe", "g", "--zookeeper", "127.0.0.1:1"], 1, "is it running, and the port right?"),
        (["describe", "g", "--zookeeper", "{hosts}/nowhere"], 2, "the chroot /nowhere does not exist"),
        (["describe", "g", "--zookeeper", "{empty}"], 2, "nor does any other, and no broker: is the chroot right?"),
        (["describe", "--watch", "g", "--zookeeper", "{hosts}"], 2, "GROUP goes before this option"),
        (["describe", "g", "--watch", "--check", "--zookeeper", "{hosts}"], 2, "--check does not go with --watch"),
        (
            ["describe", "--history", "g", "--zookeeper", "{hosts}"],
            2,
            "'g' is not a number of plans ≥ 1; GROUP goes before",
        ),
        (["groups"], 2, "Missing option '--zookeeper'"),
        (["groups", "--zookeeper", "http://z"], 2, "Invalid value for '--zookeeper': 'http:' is not an address"),
        (["groups", "--zookeeper"], 2, "Option '--zookeeper' needs a value."),
        (["groups", "g", "--zookeeper", "{hosts}"], 2, "No such command 'g'"),
        (["groups", "--zookeeper", "127.0.0.1:1"], 1, "is it running, and the port right?"),
        (["groups", "--zookeeper", "{hosts}/nowhere"], 2, "the chroot /nowhere does not exist"),
        (["groups", "--zookeeper", "{empty}"], 0, "there are no groups"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_give_one_line(
    cluster_39: Cluster,
    unique: Unique,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    """The line says what is wrong, and may suggest a remedy."""
    with chroot(cluster_39, f"/{unique('chroot')}") as empty:
        words = [argument.format(hosts=cluster_39.zk_hosts, empty=empty) for argument in arguments]
        outcome = kiel_groups_here(*words)
    assert (outcome.returncode, outcome.stdout) == (status, "")
    assert message in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


async def test_a_similar_group_name_is_suggested(cluster_39: Cluster, unique: Unique) -> None:
    """The error suggests the existing group with a similar name."""
    name = unique("group")
    with zookeeper(cluster_39) as client:
        client.create(f"/consumers/{name}/offsets", makepath=True)
    outcome = await run_beside_members(cluster_39, "describe", name[:-1])
    assert outcome.returncode == 2
    assert f"did you mean {name!r}?" in outcome.stderr
