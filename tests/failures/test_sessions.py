"""Sessions that end or seem to end, and answers and watches that are lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import NoZooKeeperError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.zookeeper.session import Session
from tests.helpers.answer_losers import AnswerLoser, WatchLoser
from tests.helpers.checked_group import RECOVERY_S, SESSION_TIMEOUT_MS, CheckedGroup, checked_group
from tests.helpers.closed_sessions import close_session
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.members import Member, end_session, group_of
from tests.helpers.running_time import running_s
from tests.helpers.waiting import eventually
from tests.proxies.fault_proxy import FaultProxy

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


async def test_a_session_expires_during_processing(cluster: Cluster, unique: Unique) -> None:
    """
    The record in flight is delivered again, to the next owner. When the former owner finishes the record, no offset
    changes.
    """
    chosen: list[Member] = []

    def to_chosen(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        ids = {str(member.consumer.member_id) for member in chosen}
        return {next((member for member in members if member in ids), members[0]): {checked.topic: [0]}}

    async with checked_group(cluster, unique, partitions=1, partition_allocator=to_chosen) as checked:
        await checked.produce(20)
        first = await checked.join()
        chosen.append(first)
        await checked.group.delivered(checked.values)
        await eventually(lambda: checked.committed_offsets() == {0: 20}, "all is committed")
        second = await checked.join()
        first.go_on.clear()
        await checked.produce(1)
        await eventually(lambda: len(first.records) == 21, "a record is in flight")
        chosen[:] = [second]
        end_session(checked.cluster, first)
        await eventually(lambda: second.values == checked.values[20:], "the record is delivered again", RECOVERY_S)
        await eventually(lambda: checked.committed_offsets() == {0: 21}, "the second member has committed")
        # Its client is notified of the end of the session when it has connected again.
        await eventually(lambda: first.lost_partitions == [checked.partition(0)], "the first member knows its loss")
        offset = checked.layout.offset(checked.partition(0))
        version = checked.client.exists(offset).version
        await eventually(lambda: first.consumer.settled, "the first member has joined again", RECOVERY_S)
        first.go_on.set()
        assert await first.consumer.commit() == frozenset()
        await checked.group.leave(first)
        assert checked.client.exists(offset).version == version
        await checked.check_nothing_is_lost()


@pytest.mark.parametrize(
    ("request_part", "step"),
    [
        (b"/owners", "the group's settings and members"),
        (b"/config", "the group's settings and members"),
        (b'"pid"', "the registration"),
    ],
)
async def test_zookeeper_does_not_answer_while_a_member_joins(
    cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture, request_part: bytes, step: str
) -> None:
    """
    After ``zk_timeout_ms`` ``connect()`` raises NoZooKeeperError, which names the step that got no answer. When
    ZooKeeper answers again, the next ``connect()`` succeeds, and the first session is closed without a log line.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    values = await produce(cluster, topic, 20)
    hosts, slash, chroot = cluster.zk_hosts.partition("/")
    with AnswerLoser(hosts) as proxy, zookeeper(cluster) as client:
        async with group_of(cluster, name, [topic]) as group:
            member = Member(cluster, name, [topic], zk_hosts=proxy.address + slash + chroot, zk_timeout_ms=4_000)
            proxy.lose_answer_to(request_part)
            began_s, began_running_s = time.monotonic(), running_s()
            with pytest.raises(NoZooKeeperError, match=step) as raised:
                await member.consumer.connect()
            assert time.monotonic() - began_s >= 4.0
            assert running_s() - began_running_s < 7.9, "a second wait would end after 8 s"
            assert proxy.address in str(raised.value)
            proxy.reconnect()
            group.members.append(member)
            await member.start()
            await group.delivered(values)
            await eventually(lambda: len(client.get_children(GroupLayout(name).members)) == 1, "the first session ends")
            assert member.consumer.metrics.total("sessions_lost") == 0
    assert "session is over" not in caplog.text
    assert "session of" not in caplog.text


async def test_a_session_expires_while_a_member_joins(
    cluster_39: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    ``connect()`` opens another session and joins, if ``zk_timeout_ms`` is not over. The first session is not reported
    as lost.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    opened, really_open = list[Session](), Session.open

    async def noted(session: Session) -> None:
        opened.append(session)
        await really_open(session)

    monkeypatch.setattr(Session, "open", noted)
    with AnswerLoser(hosts) as proxy:
        async with group_of(cluster_39, name, [topic], zk_hosts=proxy.address + slash + chroot) as group:
            proxy.lose_answer_to(b"/config", request_too=True)
            joining = asyncio.ensure_future(group.join())
            assert await asyncio.to_thread(proxy.caught.wait, RECOVERY_S)
            close_session(cluster_39.zk_hosts, opened[0].client.client_id)
            proxy.reconnect()
            member = await joining
            await group.balanced(topic, 2)
            assert member.consumer.metrics.total("joins_failed") == 1
            assert member.consumer.metrics.total("sessions_lost") == 0


@pytest.mark.parametrize(
    ("zookeeper_version", "how"),
    [("3.9.5", "paused"), ("3.4.6", "paused"), ("3.9.5", "unreachable")],
    indirect=["zookeeper_version"],
)
async def test_zookeeper_is_down_for_longer_than_the_lease(
    start_cluster: Callable[..., Cluster], zookeeper_version: str, unique: Unique, how: str
) -> None:
    """
    Members give up their sessions when their leases end, and close the sessions as soon as a server can be reached.

    All partitions have owners again within 5 s after a server can be reached. Without the close, the servers would
    keep the old claims for the rest of the session timeout. Nothing is lost.
    """
    cluster = start_cluster(zookeeper=zookeeper_version)
    hosts, slash, chroot = cluster.zk_hosts.partition("/")
    with FaultProxy(hosts) as proxy:
        place = {"zk_hosts": proxy.address + slash + chroot, "session_timeout_ms": 12_000}
        async with checked_group(cluster, unique, **place) as checked:
            for _ in range(2):
                await checked.join()
            await checked.balanced()
            await checked.produce()
            await checked.group.delivered(checked.values)
            before = {owner for owner, _ in checked.owners().values()}
            if how == "paused":
                cluster.zookeeper.pause()
            else:
                proxy.refuse()
                proxy.cut()
            try:
                lost = [member.lost_partitions for member in checked.group.members]
                await eventually(lambda: all(len(partitions) == 2 for partitions in lost), "the leases end", RECOVERY_S)
            finally:
                if how == "paused":
                    cluster.zookeeper.resume()
                proxy.heal()
            began_s = running_s()
            await eventually(
                lambda: len(checked.owners()) == 4 and owners_are_new(checked, before),
                "all partitions have new owners",
                RECOVERY_S,
            )
            unowned_s = running_s() - began_s
            await checked.check_nothing_is_lost()
    assert unowned_s < 5.0


def owners_are_new(checked: CheckedGroup, before: set[str]) -> bool:
    """Return whether no current owner is among the owners in ``before``."""
    return before.isdisjoint(owner for owner, _ in checked.owners().values())


async def test_a_process_is_stopped_for_longer_than_the_session_timeout(cluster: Cluster, unique: Unique) -> None:
    """
    Other members own the partitions of the stopped process when its session has expired. When the process is resumed,
    it delivers nothing under its old claims, and joins again. Nothing is lost.
    """
    async with checked_group(cluster, unique) as checked:
        stopped = checked.program("member")
        stopped.wait_for_lines(1)
        await checked.produce(40)
        await eventually(lambda: set(stopped.values) == set(checked.values), "it is given every value")
        member = await checked.join()
        await checked.wait_for_partitions(member, 2)
        stopped.process.send_signal(signal.SIGSTOP)
        await stopped.has_stopped()
        await checked.balanced()
        later = await checked.produce(40)
        assert await checked.group.delivered(later) == Counter(later)
        stopped.process.send_signal(signal.SIGCONT)
        await checked.wait_for_partitions(member, 2)
        await checked.produce(40)
        everything = set(checked.values)
        await eventually(
            lambda: everything <= {*stopped.values, *member.values}, "both members are given values", RECOVERY_S
        )
        assert not set(later) & set(stopped.values), "it delivers nothing that others have delivered"
        stopped.close()
        await checked.check_nothing_is_lost()


async def test_one_member_cannot_reach_zookeeper_for_longer_than_the_session_timeout(
    cluster: Cluster, unique: Unique
) -> None:
    """
    The member stops delivering when its lease ends, half of a session timeout after the last answered heartbeat, and
    loses its partitions. Other members own the partitions when the session has expired, which is later.
    """
    async with FaultProxy(cluster.zk_hosts) as proxy, checked_group(cluster, unique) as checked:
        cut_off = await checked.join(zk_hosts=proxy.address, session_timeout_ms=SESSION_TIMEOUT_MS)
        other = await checked.join()
        await checked.balanced()
        await checked.produce()
        await checked.group.delivered(checked.values)
        held = cut_off.partitions(checked.topic)
        proxy.stall()
        started_s = running_s()
        await checked.wait_for_partitions(other, 4)
        lost_s = max(until_s for *_, until_s in cut_off.intervals)
        claimed_s = min(other._since[checked.partition(number)] for number in held)
        assert started_s < lost_s < started_s + SESSION_TIMEOUT_MS / 1000
        assert claimed_s > lost_s, "a partition is lost before another member owns it"
        later = await checked.produce()
        await checked.group.delivered(later, RECOVERY_S)
        assert not set(later) & set(cut_off.values)
        proxy.heal()
        await checked.check_nothing_is_lost()


async def test_a_lease_ends_and_the_session_does_not(cluster: Cluster, unique: Unique) -> None:
    """
    The member loses all partitions and does not use its session again, although ZooKeeper still has the session. The
    member joins again with another session. Nothing is lost.
    """
    timeout_ms = 8_000
    async with (
        FaultProxy(cluster.zk_hosts) as proxy,
        checked_group(cluster, unique, session_timeout_ms=timeout_ms) as checked,
    ):
        member = await checked.join(zk_hosts=proxy.address)
        await checked.balanced()
        await checked.produce()
        await checked.group.delivered(checked.values)
        before, old_id = checked.owners(), member.consumer.member_id
        proxy.stall()
        await eventually(lambda: len(member.lost_partitions) == 4, "the lease is over", RECOVERY_S)
        assert checked.owners() == before, "its session and its claims still exist"
        proxy.heal()
        await checked.check_nothing_is_lost()
        assert member.consumer.member_id != old_id
        assert not {owner for owner, _ in checked.owners().values()} & {owner for owner, _ in before.values()}


async def test_the_leader_connects_again_with_the_same_session(cluster: Cluster, unique: Unique) -> None:
    """The leader keeps its role and its claims, and plans for the changes that it missed. Nothing is lost."""
    async with (
        FaultProxy(cluster.zk_hosts) as proxy,
        checked_group(cluster, unique) as checked,
    ):
        leader = await checked.join(zk_hosts=proxy.address)
        await checked.join()
        await checked.balanced()
        before, leader_id = checked.owners(), leader.consumer.member_id
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: leader.consumer.metrics.total("zookeeper_suspensions"), "the connection is suspended")
        await checked.grow_topic(6)
        proxy.heal()
        await checked.check_nothing_is_lost()
        assert (leader.consumer.member_id, leader.consumer.is_leader) == (leader_id, True)
        assert checked.group_state().leader == leader_id
        assert {number: owner for number, owner in checked.owners().items() if number in before} == before


@pytest.mark.parametrize("request_too", [False, True], ids=["done", "never-sent"])
@pytest.mark.parametrize("what", ["member", "candidate", "claim"])
async def test_the_answer_to_a_create_is_lost(
    cluster_39: Cluster, unique: Unique, what: str, request_too: bool
) -> None:
    """
    The member connects again with the same session and finds out whether the znode was created. The znode is neither
    created twice nor missing. No record is lost or repeated.
    """
    async with (
        AnswerLoser(cluster_39.zk_hosts) as proxy,
        checked_group(cluster_39, unique) as checked,
    ):
        await checked.produce()
        layout = checked.layout
        folder = {"member": layout.members, "candidate": layout.election, "claim": layout.topic_owners(checked.topic)}
        proxy.lose_answer_to(f"{folder[what]}/".encode(), request_too=request_too)
        joining = asyncio.ensure_future(checked.join(zk_hosts=proxy.address))
        assert await asyncio.to_thread(proxy.caught.wait, RECOVERY_S)
        if not request_too:
            await eventually(lambda: checked.client.get_children(folder[what]), "the znode is created")
        proxy.reconnect()
        member = await joining
        await checked.check_nothing_is_lost()
        assert member.consumer.metrics.total("sessions_lost") == 0
        assert len(checked.client.get_children(layout.election)) == 1
        assert checked.client.get_children(layout.members) == [member.consumer.member_id]
        assert Counter(member.values) == Counter(checked.values)


async def test_all_watches_are_lost(cluster_39: Cluster, unique: Unique) -> None:
    """Members and the leader notice every change within ``reconcile_interval_ms``. Only time is lost."""
    async with (
        WatchLoser(cluster_39.zk_hosts) as proxy,
        checked_group(cluster_39, unique, reconcile_interval_ms=300) as checked,
    ):
        members: list[Member] = [await checked.join(zk_hosts=proxy.address) for _ in range(2)]
        await checked.balanced()
        await checked.grow_topic(6)
        await checked.balanced()
        await checked.group.leave(members[0])
        await checked.check_nothing_is_lost()
        assert proxy.lost > 0
        assert members[1].consumer.metrics.total("sessions_lost") == 0
