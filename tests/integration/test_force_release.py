"""
A forced release takes partitions from a live member and from a name without a member znode, and refuses other names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import MemberInfo, encode_owner
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.release import LONGEST_SESSION_MS, find_member_id, plan_release
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@pytest.mark.parametrize("options", [(), ("--wait", "0")], ids=["as_it_is", "no_wait"])
async def test_a_live_member_stops_before_its_claims_could_be_deleted(
    cluster_39: Cluster, unique: Unique, options: tuple[str, ...]
) -> None:
    """
    The member's next heartbeat finds the member znode deleted. The member gives up its session and joins again; no two
    members deliver at once.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    values = await produce(cluster_39, topic, 40)
    async with group_of(cluster_39, name, [topic], session_timeout_ms=10_000) as group:
        first, second = await group.join(), await group.join()
        await group.balanced(topic, 4)
        old = first.consumer.member_id
        assert old is not None
        short = old.rpartition("-")[2]
        asked = await _command(cluster_39, name, short, *options)
        assert asked == (2, "error: there is no terminal to confirm at; give --yes. See 'kiel-groups release --help'.")
        _, shown = await _command(cluster_39, name, short, "--dry-run", *options)
        assert shown.startswith(f"info: {old} is alive, and owns {topic}:")
        assert shown.endswith("; what it has not released after 10 s would be taken")
        assert first.consumer.member_id == old
        run = await _command(cluster_39, name, short, "--yes", *options)
        assert run == (
            0,
            f"info: {old} owned 2 partitions: released by itself or with its session: 2, taken: 0",
        )
        await eventually(lambda: first.consumer.member_id not in (None, old), "it has joined again")
        await group.balanced(topic, 4)
        await group.delivered(values)
        assert group.overlaps() == []
        assert second.lost_partitions == []


async def _command(cluster: Cluster, group: str, member: str, *options: str) -> tuple[int, str]:
    """
    Run the command in a thread, because members run on this event loop. Return its status and the last line of its
    errors.
    """
    done = await asyncio.to_thread(
        kiel_groups_here, "release", group, member, "--zookeeper", cluster.zk_hosts, *options
    )
    return done.returncode, done.stderr.splitlines()[-1]


def test_claims_that_are_not_released_are_deleted_after_the_wait(cluster_39: Cluster, unique: Unique) -> None:
    """
    Without a member znode the session timeout is unknown, so the wait is the longest one. A claim that another member
    makes meanwhile is kept.
    """
    name = unique("group")
    layout, member = GroupLayout(name), f"{name}_host-1-ff"
    with zookeeper(cluster_39) as holder, zookeeper(cluster_39) as client:
        partitions = [TopicPartition("t", number) for number in range(3)]
        for partition in partitions:
            holder.create(layout.owner(partition), encode_owner(member), ephemeral=True, makepath=True)
        waited = []

        def wait(seconds: float) -> None:
            if not waited:
                holder.delete(layout.owner(partitions[1]))
                holder.delete(layout.owner(partitions[2]))
                holder.create(layout.owner(partitions[2]), encode_owner("another"), ephemeral=True)
            waited.append(seconds)

        released = plan_release(client, name, member).apply(client, sleep=wait)
        assert sum(waited) == LONGEST_SESSION_MS / 1000
        assert (released.owned, released.taken) == (tuple(partitions), (partitions[0],))
        assert client.get_children(layout.topic_owners("t")) == ["2"]


@pytest.mark.parametrize(("is_member", "waited_ms"), [(True, 6_000), (False, 1_000)])
def test_the_given_wait_applies_if_the_member_znode_is_gone(
    cluster_39: Cluster, unique: Unique, is_member: bool, waited_ms: int
) -> None:
    """
    ``wait_ms`` applies as given only if the member znode does not exist. Otherwise the wait is at least the session
    timeout in that znode.
    """
    name = unique("group")
    layout, member = GroupLayout(name), f"{name}_host-1-ff"
    info = MemberInfo(member_id=member, session_timeout_ms=6_000, subscription=())
    waited: list[float] = []
    with zookeeper(cluster_39) as holder, zookeeper(cluster_39) as client:
        if is_member:
            holder.create(layout.member(member), info.encode(), ephemeral=True, makepath=True)
        holder.create(layout.owner(TopicPartition("t", 0)), encode_owner(member), ephemeral=True, makepath=True)
        released = plan_release(client, name, member, wait_ms=1_000).apply(client, sleep=waited.append)
        assert (sum(waited), released.waited_ms) == (waited_ms / 1000, waited_ms)
        assert released.taken == (TopicPartition("t", 0),)


def test_a_member_has_several_names(cluster_39: Cluster, unique: Unique) -> None:
    """
    The member's id, the session id at the end of it, and the instance id are accepted. An ambiguous name is refused.
    """
    name = unique("group")
    layout = GroupLayout(name)
    ids = {f"{name}_host-1-aaaa": "shelf-1", f"{name}_host-2-bbbb": "shelf-2", f"{name}_host-3-bbbb": "shelf-2"}
    with zookeeper(cluster_39) as client:
        for member, instance in ids.items():
            info = MemberInfo(member_id=member, session_timeout_ms=6_000, subscription=(), instance_id=instance)
            client.create(layout.member(member), info.encode(), makepath=True)
        first, second, third = ids
        assert [find_member_id(client, name, given) for given in (first, "aaaa", "shelf-1")] == [first] * 3
        assert find_member_id(client, name, "gone") == "gone"
        for given in ("bbbb", "shelf-2"):
            with pytest.raises(ConfigError, match=f"may be {second} or {third}; give the whole id"):
                find_member_id(client, name, given)
        client.delete(layout.root, recursive=True)


def test_a_group_that_does_not_exist_is_an_error(cluster_39: Cluster, unique: Unique) -> None:
    """The error is the same as that of ``describe``."""
    name = unique("group")
    done = kiel_groups_here("release", name, "nobody", f"--zookeeper={cluster_39.zk_hosts}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"group '{name}' does not exist in ZooKeeper" in done.stderr


@pytest.mark.parametrize("member", [".", "..", "", "a b"])
def test_an_invalid_member_name_is_refused(cluster_39: Cluster, unique: Unique, member: str) -> None:
    """The error is one line, and no znode with such a path is read."""
    name = unique("group")
    with zookeeper(cluster_39) as client:
        client.ensure_path(f"/kiel-groups/{name}/members/m-1-1")
    done = kiel_groups_here("release", f"--zookeeper={cluster_39.zk_hosts}", name, "--", member)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: member: {member!r} is not a legal name")


def test_a_member_that_does_not_exist_gives_one_line(cluster_39: Cluster, unique: Unique) -> None:
    """The line names the command that lists the members, or says that there are none."""
    name = unique("group")
    with zookeeper(cluster_39) as client:
        for remedy in ("it has no members at the moment", f"'kiel-groups describe {name}' lists its members"):
            with pytest.raises(ConfigError) as caught:
                plan_release(client, name, "other").apply(client)
            assert str(caught.value) == f"group {name} has no member 'other', and no owner znode names one; {remedy}"
            client.ensure_path(f"/kiel-groups/{name}/members/m-1-1")
