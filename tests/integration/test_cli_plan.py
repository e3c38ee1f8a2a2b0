"""``kiel-groups plan`` on real servers: what it says, what then happens, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.coordinated_members import member_of
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PARTITIONS = 6


async def plan(*words: str) -> tuple[int, str, str]:
    """Run the command in a thread, because members run on the event loop of this process."""
    done = await asyncio.to_thread(kiel_groups_here, "plan", *words)
    return done.returncode, done.stdout, done.stderr


async def planned(*words: str) -> dict[str, Any]:
    status, out, err = await plan(*words, "--json")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def given(document: dict[str, Any], member: str) -> list[int]:
    """Return the numbers of the partitions that a member gets."""
    (found,) = (each for each in document["members"] if each["id"] == member)
    return [int(name.rpartition(":")[2]) for name in found["after"]]


def new_member(document: dict[str, Any]) -> str:
    (found,) = (each["id"] for each in document["members"] if each["id"].endswith("-new-1"))
    return str(found)


def written(cluster: Cluster, group: str) -> dict[str, int]:
    """Return the last change of each assignment and of the group's own znodes."""
    layout = GroupLayout(group)
    with zookeeper(cluster) as client:
        paths = [layout.root, layout.config, layout.group_state]
        paths += [f"{layout.group_state}/{slot}" for slot in client.get_children(layout.group_state)]
        return {path: client.exists(path).last_modified_transaction_id for path in paths}


async def test_a_group_in_zookeeper(cluster_39: Cluster, unique: Unique) -> None:
    """A join, a leave and a growth have the allocation of their plan, which has written nothing."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    await produce(cluster_39, topic, 30)
    at = f"--zookeeper={cluster_39.zk_hosts}"
    async with group_of(cluster_39, name, [topic], partition_allocator="sticky") as group:
        first, second = await group.join(), await group.join()
        await group.balanced(topic, PARTITIONS)
        before = written(cluster_39, name)
        document = await planned(name, "--add-member", "1", at)
        status, out, err = await plan(name, "--allocator", "lag_aware", "--partitions", f"{topic}=9", "--diff", at)
        assert (status, err) == (0, "")
        assert out.startswith(f"group {name}, allocated by lag_aware: 0 partitions move, 3 had no owner\n")
        assert "without the lags" not in out
        assert written(cluster_39, name) == before
        third = await group.join()
        await group.balanced(topic, PARTITIONS)
        ids = [str(each.consumer.member_id) for each in (first, second)]
        assert [first.partitions(topic), second.partitions(topic), third.partitions(topic)] == [
            given(document, each) for each in (*ids, new_member(document))
        ]
        document = await planned(name, "--remove-member", ids[1].rpartition("-")[2], at)
        await group.leave(second)
        await group.balanced(topic, PARTITIONS)
        left = [str(each.consumer.member_id) for each in (first, third)]
        assert [first.partitions(topic), third.partitions(topic)] == [given(document, each) for each in left]
        for words, text in (
            (["--remove-member", "zzzz"], "has no member 'zzzz'; its members are"),
            (["--topics", "none.such"], "--topics: none.such does not exist; a plan with it"),
            (["--partitions", f"{topic}=x"], "given; expected TOPIC=N, such as page-views=12"),
        ):
            status, out, err = await plan(name, *words, at)
            assert (status, out, text in err) == (2, "", True)
    done = kiel_groups_here("plan", name, at)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"error: group {name} has no members, so nothing is planned; for a plan, give the number of"
    )
    document = await planned(name, "--add-member", "1", "--topics", topic, at)
    assert given(document, new_member(document)) == list(range(PARTITIONS))


# The command computes this from answers that all releases give.
@pytest.mark.parametrize("coordinating_version", ["0.9.0.1"], indirect=True)
async def test_a_group_of_brokers(coordinating_cluster: Cluster, unique: Unique) -> None:
    """A join has the allocation of its plan; weights, and a group without an assignor, are refused."""
    topic, name = unique("topic"), unique("group")
    await coordinating_cluster.create_topic(topic, PARTITIONS)
    at = ["--coordination=brokers", f"--brokers={coordinating_cluster.brokers[0]}"]
    settings = {"partition_allocator": "sticky", "session_timeout_ms": 6_000}
    async with (
        member_of(coordinating_cluster, name, [topic], **settings) as first,
        member_of(coordinating_cluster, name, [topic], **settings) as second,
    ):
        share = PARTITIONS // 2
        await eventually(lambda: [len(first.assignment()), len(second.assignment())] == [share, share], "two share")
        document = await planned(name, "--add-member", "1", *at)
        assert document["allocator"] == "kiel-sticky"
        async with member_of(coordinating_cluster, name, [topic], **settings) as third:
            await eventually(lambda: len(third.assignment()) == PARTITIONS // 3, "the third has its share")
            assert sorted(each.partition for each in third.assignment()) == given(document, new_member(document))
        status, out, err = await plan(name, "--weights", "-", *at)
        assert (status, out) == (2, "")
        assert err.startswith(
            "error: '--weights' does not go with '--coordination brokers': such groups have no weights."
        )
    unassigned = ["--add-member", "1", "--topics", topic]
    for words, text in ((unassigned, "--allocator sticky"), ([], "does not exist at brokers")):
        status, out, err = await plan(unique("none"), *words, *at)
        assert (status, out, text in err) == (2, "", True)
