"""``kiel-groups verify`` and ``lag`` of several groups, with trends, on real servers."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import Running, kiel_groups_here
from tests.helpers.coordinated_members import members_of
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PARTITIONS = 6


async def test_verify_finds_planted_faults_and_is_silent_without(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    A healthy group is well, also while a member joins. Then an offset of a partition that does not exist is written by
    hand, and deleted. A second owner, a dead owner, a foreign id and offsets without a topic follow, and a member does
    not commit: each is a finding, and the exit status is 1.
    """
    cluster, topic, name = cluster_39, unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    layout = GroupLayout(name)

    async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(kiel_groups_here, *arguments, "--zookeeper", cluster.zk_hosts)

    # No member repairs what is planted while the test looks.
    async with group_of(cluster, name, [topic], autocommit=False, reconcile_interval_ms=600_000) as group:
        first = await group.join()
        await group.balanced(topic, PARTITIONS)
        joining = asyncio.create_task(group.join())
        outcome = await run("verify", name)
        assert (outcome.returncode, outcome.stdout.partition(":")[0]) == (0, f"group {name} is well"), outcome.stdout
        second = await joining
        await group.balanced(topic, PARTITIONS)
        outcome = await run("verify", name)
        assert outcome.stdout == (
            f"group {name} is well: settled, with 2 live members; 6 of 6 partitions are owned; no offset is stuck\n"
        )
        assert outcome.returncode == 0

        mine = sorted(first.consumer.assignment())
        with zookeeper(cluster) as client:
            client.create(f"{layout.offsets}/{topic}/9", b"5")
            outcome = await run("lag", name)
            assert (outcome.returncode, "LEADER_NOT_AVAILABLE" in outcome.stdout) == (0, False)
            outcome = await run("verify", name, "--window=0")
            assert (outcome.returncode, outcome.stdout.split()[0], outcome.stdout.count("→")) == (1, "gone-offsets", 1)
            # A partition that does not exist has no owner, so live members do not prevent this.
            restore = ("--restore-file", str(tmp_path / "offset"))
            outcome = await run("offsets", "delete", name, "--topic", f"{topic}:9", "--yes", *restore)
            assert outcome.returncode == 0, outcome.stderr
            assert (await run("verify", name, "--window=0")).returncode == 0

            owners = layout.topic_owners(topic)
            for partition, owner in zip(mine, (second.consumer.member_id, f"{name}_gone-1-99"), strict=False):
                client.delete(f"{owners}/{partition.partition}")
                client.create(f"{owners}/{partition.partition}", f"{owner}-0".encode(), ephemeral=True)
            client.create(f"{layout.offsets}/{topic}-gone/0", b"3", makepath=True)
            client.create(f"{layout.ids}/{name}_java-1-abcdef01", b"{}", ephemeral=True)
            await produce(cluster, topic, 60)
            outcome = await run("verify", name, "--window", "2s")
            assert outcome.returncode == 1
            found = {each.split()[0]: each for each in re.split(r"^(?=\S)", outcome.stdout, flags=re.MULTILINE)[1:]}
            assert {"forged", "orphans", "gone-offsets", "foreign", "stuck"} <= found.keys(), outcome.stdout
            assert [each for each in found.values() if "→" not in each] == [], outcome.stdout
            assert f"{topic}:{mine[0].partition}" in found["forged"]
            assert f"'kiel-groups release {name} {name}_gone-1-99 --zookeeper" in found["orphans"]
            document = json.loads((await run("verify", name, "--window=0", "--json")).stdout)
            assert (document["well"], document["owned"]) == (False, PARTITIONS)
            assert "forged" in {finding["kind"] for finding in document["wrong"]}

        documents = json.loads((await run("lag", "--json")).stdout)
        lags = [each["lag"] or 0 for each in documents["groups"]]
        assert lags == sorted(lags, reverse=True)
        assert (documents["lag"], name in {each["group"] for each in documents["groups"]}) == (sum(lags), True)
        outcome = await run("lag", name, "--window", "1.5s", "--check", "--json")
        document = json.loads(outcome.stdout)
        assert (outcome.returncode, document["trend"]) == (1, "stuck")
        assert {each["trend"] for each in document["partitions"] if each["topic"] == topic} == {"stuck"}


# The command computes this from answers that all releases give.
@pytest.mark.parametrize("coordinating_version", ["0.9.0.1"], indirect=True)
async def test_a_group_of_brokers_is_verified(coordinating_cluster: Cluster, unique: Unique) -> None:
    """A healthy group is well; one without commits is stuck. Lags of several groups are shown, and their trends."""
    cluster, topic, name = coordinating_cluster, unique("topic"), unique("group")
    words = ["--coordination=brokers", f"--brokers={cluster.brokers[0]}"]
    await cluster.create_topic(topic, PARTITIONS)

    async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(kiel_groups_here, *arguments, *words)

    async with members_of(cluster, name, topic, 2, autocommit=False), members_of(cluster, f"{name}-2", topic, 1):

        async def is_well() -> bool:
            return (await run("verify", name, "--window=1")).returncode == 0

        await eventually(is_well, "the group has its first offsets")
        await produce(cluster, topic, 60)
        outcome = await run("verify", name, "--window=2")
        assert outcome.returncode == 1
        assert outcome.stdout.startswith("stuck  6 partitions make no progress: lag 60")
        outcome = await run("lag", f"{name}-2", name, "--window=1.5", "--check=59")
        rows = [line.split() for line in outcome.stdout.splitlines() if line.strip().startswith(f"{name}")]
        assert (outcome.returncode, rows[0]) == (1, [name, "6", "60", "stuck"])
        with Running(["-m", "kiel_groups", "lag", name, *words, "--watch=0.1", "--json"]) as process:
            lines = await asyncio.to_thread(process.wait_for_lines, 10)
            assert json.loads(lines[0])["trend"] == "unknown"
            await eventually(lambda: json.loads(process.lines[-1])["trend"] == "stuck", "ten samples show the trend")
            assert await asyncio.to_thread(process.end, signal.SIGINT) == 130
            assert process.errors == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lag", "--watch", "--check"], "--check does not go with --watch"),
        (["lag", "g", "--watch", "--window"], "--window does not go with --watch"),
        (["lag", "g", "--window=0.5"], "'0.5' is not a number of seconds ≥ 1."),
        (["lag", "--window", "g"], "'g' is not a number of seconds ≥ 1; GROUP goes before this option."),
        (["lag", "g", "h h"], "group: 'h h' is not a legal name"),
        (["lag", "g", "no-such-group"], "does not exist in ZooKeeper at "),
        (["verify"], "Missing argument 'GROUP'."),
        (["verify", "g", "--window=-1"], "'-1' is not a number of seconds ≥ 0."),
        (["verify", "no-such-group"], "group 'no-such-group' does not exist in ZooKeeper at "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_give_one_line(cluster_39: Cluster, arguments: list[str], message: str) -> None:
    """The line says what was given, and what was expected."""
    outcome = kiel_groups_here(*arguments, "--zookeeper", cluster_39.zk_hosts)
    assert (outcome.returncode, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1)
    assert message in outcome.stderr
