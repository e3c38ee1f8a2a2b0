"""``kiel-groups doctor`` on real servers: silent on healthy groups, and each planted fault is found."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_acl

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import encode_owner
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.doctor import examine
from kiel_groups.ops.views.checks import Finding
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.fake_broker import FakeBroker
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
NOWHERE = "127.0.0.1:1"
PARTITION = TopicPartition("t", 0)


def found(hosts: str | None, brokers: str | None = None, groups: Sequence[str] = ()) -> dict[str, Finding]:
    """Return the findings by their kinds."""
    return {finding.kind: finding for check in examine(hosts, brokers, groups) for finding in check.findings}


async def test_a_healthy_group_that_rebalances_has_no_finding(cluster: Cluster, unique: Unique) -> None:
    """Members join and leave while the group is examined, again and again."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 8)
    await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
        first = await group.join()
        for _ in range(3):
            examined = asyncio.create_task(asyncio.to_thread(found, cluster.zk_hosts, None, [name]))
            further = await group.join()
            await group.leave(first)
            first = further
            assert await examined == {}
        outcome = await asyncio.to_thread(kiel_groups_here, "doctor", name, "--zookeeper", cluster.zk_hosts)
        assert (outcome.returncode, outcome.stderr) == (0, "info: nothing is wrong: 6 checks\n")
        assert {line[:2] for line in outcome.stdout.splitlines()} <= {"ok", "  "}
        assert f"broker 0 at {cluster.brokers[0]}: Kafka 0.8\n" in outcome.stdout


async def test_each_remedy_for_garbage_repairs_it(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    ``describe`` and ``doctor`` print the same remedy for each znode, and no command ends with a traceback.

    Remedies are carried out in a live group and in one without members, which works afterwards.
    """
    topic, name = unique("topic"), unique("group")
    layout = GroupLayout(name)
    owners, where = layout.topic_owners(topic), ("--zookeeper", cluster_39.zk_hosts)
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 3)
    async with group_of(cluster_39, name, [topic], reconcile_interval_ms=1_000) as group:
        with zookeeper(cluster_39) as client:
            # An audit of the leader would replace the plan, too.
            first = await group.join(reconcile_interval_ms=600_000)
            await group.balanced(topic, 1)
            plan = _tree(client, layout.group_state)
            await _repair(cluster_39, client, tmp_path, await _planted(cluster_39, client, name, plan))
            await group.leave(first)

            for path in (layout.member("m"), f"{layout.election}/n_0000000009", layout.consumer_id("m"), f"{owners}/0"):
                client.create(path, b"", ephemeral=True)
            for path in (layout.weights, layout.topic_starts(topic), layout.orders, layout.order("1", PARTITION)):
                client.create(path, b"", makepath=True)
            folders = {*layout.parents, layout.history, layout.starts, layout.topic_offsets(topic), owners}
            everything = {*_tree(client, layout.root), *_tree(client, f"/consumers/{name}")} - folders
            wrong = await _planted(cluster_39, client, name, everything)
            checks = await asyncio.to_thread(lambda: list(examine(cluster_39.zk_hosts, None, [name])))
            findings = [each for check in checks for each in check.findings if each.kind == "unreadable"]
            assert {each.text.removeprefix(f"group {name}: "): each.remedy for each in findings} == wrong
            for words in (["verify", name, "--timeout=0"], ["lag", name], ["members", name], ["groups"]):
                assert "Traceback" not in (await asyncio.to_thread(kiel_groups_here, *words, *where)).stderr
            await _repair(cluster_39, client, tmp_path, wrong)
            await group.join()
            await group.balanced(topic, 1)

            places = {*_tree(client, layout.root), *_tree(client, f"/consumers/{name}")} - folders - set(plan)
            ours = {path for path in places if not path.startswith(f"{layout.group_state}/")} - {layout.group_state}
            await _repair(cluster_39, client, tmp_path, await _planted(cluster_39, client, name, ours))
            await eventually(lambda: asyncio.to_thread(_is_sound, cluster_39, name), "the group is well again")


def _is_sound(cluster: Cluster, name: str) -> bool:
    outcome = kiel_groups_here("verify", name, "--zookeeper", cluster.zk_hosts)
    return outcome.returncode == 0 and not found(cluster.zk_hosts, None, [name])


async def _planted(cluster: Cluster, client: KazooClient, name: str, places: Collection[str]) -> dict[str, str]:
    """Write garbage to znodes of a group. Return the text and remedy of each finding, in the order of ``describe``."""
    for path in places:
        client.set(path, b"\xff garbage")
    outcome = await asyncio.to_thread(kiel_groups_here, "describe", name, "--json", "--zookeeper", cluster.zk_hosts)
    findings = [each for each in json.loads(outcome.stdout)["wrong"] if each["kind"] == "unreadable"]
    assert {each["text"].partition(": ")[0] for each in findings} == set(places)
    return {each["text"]: each["remedy"] for each in findings}


async def _is_done(cluster: Cluster, folder: Path, words: str) -> bool:
    """Run a remedy's command. Return False if it must be tried again: a member has registered itself meanwhile."""
    has_file = words.startswith(("offsets", "config"))
    further = ["--restore-file", str(folder / f"{time.monotonic_ns()}")] if has_file else []
    command = [*words.removesuffix(" --yes").split(), "--yes", *further, "--zookeeper", cluster.zk_hosts]
    outcome = await asyncio.to_thread(kiel_groups_here, *command)
    assert outcome.returncode == 0 or outcome.stderr.endswith("; try again\n"), (words, outcome.stderr)
    return outcome.returncode == 0


async def _repair(cluster: Cluster, client: KazooClient, folder: Path, wrong: dict[str, str]) -> None:
    """Do what remedies say, in their order."""
    for remedy in wrong.values():
        if remedy.startswith("start a member, which replaces it"):
            continue
        if words := re.search(r"'kiel-groups ([^']+)'", remedy):
            await eventually(partial(_is_done, cluster, folder, words[1]), remedy)
            continue
        in_zkcli = re.search(r"\(zkCli: (delete|set) (\S+)( \S+)?\)", remedy)
        assert in_zkcli is not None, remedy
        action, path, data = in_zkcli.groups()
        with suppress(NoNodeError):  # A member that has joined again has deleted its former znodes.
            if action == "delete":
                client.delete(path)
            else:
                client.set(path, data.strip().encode())


def _tree(client: KazooClient, path: str) -> list[str]:
    """Return the paths of a znode and of all below it."""
    return [path, *(each for name in client.get_children(path) for each in _tree(client, f"{path}/{name}"))]


async def test_planted_faults_are_found(cluster_39: Cluster, unique: Unique) -> None:
    """A foreign member, an owner that is none, offsets in topics that are gone, ACLs, and a znode that is full."""
    topic, name, dead = unique("topic"), unique("group"), unique("dead")
    layout = GroupLayout(name)
    await cluster_39.create_topic(topic, 2)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster_39) as client:
            client.create(f"{layout.ids}/{name}_java-1", b"{}", ephemeral=True)
            client.create(f"{layout.owners}/old/0", encode_owner("gone-1795871623215-1a"), makepath=True)
            client.create(f"{layout.offsets}/old/0", b"5", makepath=True)
            client.set_acls(layout.history, [make_acl("world", "anyone", read=True, admin=True)])
            config, _ = client.get(layout.config)
            client.set(layout.config, config + b" " * 900_000)
            client.create(f"/consumers/{dead}/offsets/old/0", b"5", makepath=True)
            problems = await asyncio.to_thread(found, cluster_39.zk_hosts, None, [name, dead])
            assert set(problems) == {
                *("foreign", "orphans", "not-ephemeral", "gone-offsets", "dead-group", "acl", "nearly-full")
            }
            assert f"'kiel-groups offsets delete {name} --topic old'" in problems["gone-offsets"].remedy
            assert f"'kiel-groups groups delete {dead}'" in problems["dead-group"].remedy
            assert f"{layout.history} (anyone: r)" in problems["acl"].text
            assert f"{layout.config} (86%)" in problems["nearly-full"].text
            client.set(layout.config, config)
            client.set_acls(layout.history, [make_acl("world", "anyone", all=True)])
            client.delete(f"/consumers/{dead}", recursive=True)


@pytest.mark.xdist_group("3.4.6")
async def test_brokers_of_another_cluster_are_recognised(
    cluster_39: Cluster, shared_clusters: Callable[..., Cluster], unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    ``doctor`` finds it, and a consumer that starts refuses before it writes anything. A cluster without topics cannot
    be told from ZooKeeper's, which both say.
    """
    other, name = shared_clusters("3.4.6"), unique("group")
    for cluster in (cluster_39, other):
        topic = unique("topic")
        await cluster.create_topic(topic, 1)
        await produce(cluster, topic, 1)
    with pytest.raises(ConfigError, match=r"the brokers are of another cluster than ZooKeeper's: they name .* topics"):
        await GroupedConsumer(other.brokers, name, cluster_39.zk_hosts).connect()
    with zookeeper(cluster_39) as client:
        assert client.exists(GroupLayout(name).root) is None
    async with FakeBroker() as silent:
        silent.peers = []  # As a broker of 0.8 whose cluster has no topic.
        assert "unknown-cluster" in await asyncio.to_thread(found, cluster_39.zk_hosts, str(silent.address))
        consumer = GroupedConsumer([str(silent.address)], unique("silent"), cluster_39.zk_hosts)
        await consumer.connect()
        await consumer.close()
    (doubt,) = [each for each in caplog.messages if each.startswith("not known whether brokers and ZooKeeper are")]
    assert doubt.endswith("and the brokers name no broker and 0 topics")
    where = ("--zookeeper", cluster_39.zk_hosts, "--brokers", other.brokers[0])
    outcome = await asyncio.to_thread(kiel_groups_here, "doctor", "--json", *where)
    document = json.loads(outcome.stdout)
    assert outcome.returncode == 1
    wrong = [each for each in document["wrong"] if each["kind"] == "other-cluster"]
    assert [each["text"].split(":")[0] for each in wrong] == [f"broker at {other.brokers[0].split(':')[0]}"]
    outcome = await asyncio.to_thread(
        kiel_groups_here, "doctor", "--zookeeper", f"{NOWHERE},{cluster_39.zk_hosts},{other.zk_hosts}/nowhere"
    )
    assert outcome.returncode == 1
    assert f"ZooKeeper's server {NOWHERE} does not serve: Connection refused" in outcome.stdout
    assert f"{other.zk_hosts}: of another ensemble than {cluster_39.zk_hosts}, whose sessions" in outcome.stdout
    assert "the chroot /nowhere does not exist; elsewhere: 1 broker below /" in outcome.stdout
    of_brokers = ("--coordination=brokers", "--zookeeper", cluster_39.zk_hosts)
    for words in (("--zookeeper", cluster_39.zk_hosts, unique("no")), (), of_brokers):
        mistake = await asyncio.to_thread(kiel_groups_here, "doctor", *words)
        assert mistake.returncode == 2
        assert "Traceback" not in mistake.stderr


async def test_one_name_of_two_groups_is_found(shared_clusters: Callable[..., Cluster], unique: Unique) -> None:
    """Members in ZooKeeper share a group's name with members that brokers of 0.9 coordinate."""
    cluster, topic, name = shared_clusters("3.9.5", "0.9.0.1"), unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    async with (
        group_of(cluster, name, [topic]) as ours,
        group_of(cluster, name, [topic], coordination="brokers", zk_hosts=None) as theirs,
    ):
        await ours.join()
        await ours.balanced(topic, 1)
        assert await asyncio.to_thread(found, cluster.zk_hosts, None, [name]) == {}
        await theirs.join()
        await theirs.balanced(topic, 1)
        problems = await asyncio.to_thread(found, cluster.zk_hosts, None, [name])
        assert set(problems) == {"mixed"}


@pytest.mark.xdist_group("3.9.1")
async def test_brokers_without_zookeeper(
    shared_clusters: Callable[..., Cluster], cluster_39: Cluster, unique: Unique
) -> None:
    """Brokers and their groups are examined; a broker of another cluster is found."""
    cluster, topic, name = shared_clusters(None, "3.9.1"), unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    await cluster_39.create_topic(other := unique("other"), 1)
    await produce(cluster_39, other, 1)
    async with group_of(cluster, name, [topic], coordination="brokers", zk_hosts=None) as group:
        await group.join()
        await group.balanced(topic, 2)
        outcome = await asyncio.to_thread(kiel_groups_here, "doctor", name, "--brokers", cluster.brokers[0])
        assert (outcome.returncode, outcome.stderr) == (0, "info: nothing is wrong: 2 checks\n")
        assert outcome.stdout == (
            f"ok     broker at {cluster.brokers[0]}: Kafka 3.8 or later\n"
            "ok     1 group, 1 member: what their coordinators know\n"
        )
        both = f"{cluster.brokers[0]},{cluster_39.brokers[0]}"
        problems = await asyncio.to_thread(found, None, both)
        assert set(problems) == {"other-cluster"}
        assert f"broker at {cluster_39.brokers[0]} is of another cluster: the first broker has the topics" in (
            problems["other-cluster"].text
        )
