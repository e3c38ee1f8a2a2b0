"""Sessions that end, seem to end, or go on although nobody believes it; answers and watches that are lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.embedded.faults.fault_proxy import FaultProxy
from kiel_groups.errors import NoZooKeeperError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.answer_losers import AnswerLoser, WatchLoser
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.members import Member, end_session, group_of
from tests.helpers.trial import RECOVERY_S, SESSION_TIMEOUT_MS, Trial, trial
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


async def test_expiry_while_processing(cluster: Cluster, unique: Unique) -> None:
    """The record in hand goes to the next owner as well; that it gets finished here, too, moves no offset any more."""
    favourites: list[Member] = []

    def to_favourite(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        wanted = {str(member.consumer.member_id) for member in favourites}
        chosen = next((member for member in members if member in wanted), members[0])
        return {chosen: {tried.topic: [0]}}

    async with trial(cluster, unique, partitions=1, partition_allocator=to_favourite) as tried:
        await tried.produce(20)
        first = await tried.join()
        favourites.append(first)
        await tried.group.delivered(tried.values)
        await eventually(lambda: tried.stored() == {0: 20}, "all is committed")
        second = await tried.join()
        first.go_on.clear()
        await tried.produce(1)
        await eventually(lambda: len(first.records) == 21, "a record is in hand")
        favourites[:] = [second]
        end_session(tried.cluster, first)
        await eventually(lambda: second.values == tried.values[20:], "it comes again", RECOVERY_S)
        await eventually(lambda: tried.stored() == {0: 21}, "the second has finished it")
        assert first.lost_partitions == [tried.partition(0)]
        offset = tried.layout.offset(tried.partition(0))
        version = tried.client.exists(offset).version
        await eventually(lambda: first.consumer.settled, "it has joined anew", RECOVERY_S)
        first.go_on.set()
        assert await first.consumer.commit() == frozenset()
        await tried.group.leave(first)
        assert tried.client.exists(offset).version == version
        await tried.nothing_is_lost()


@pytest.mark.parametrize(
    ("request_part", "step"),
    [
        (b"/kiel-groups", "the group's folders"),
        (b"/config", "the group's settings and members"),
        (b'"pid"', "the registration"),
    ],
)
async def test_zookeeper_silent_while_a_member_joins(
    cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture, request_part: bytes, step: str
) -> None:
    """
    ``connect()`` gives up after ``zk_timeout_ms``, and says what it waited for; once healed, the next call works.

    The session that was opened in vain is closed as soon as ZooKeeper answers again, and nothing is said of it.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    values = await produce(cluster, topic, 20)
    hosts, slash, chroot = cluster.zk_hosts.partition("/")
    with AnswerLoser(hosts) as proxy, zookeeper(cluster) as client:
        async with group_of(cluster, name, [topic]) as group:
            member = Member(cluster, name, [topic], zk_hosts=proxy.address + slash + chroot, zk_timeout_ms=2_000)
            proxy.lose_answer_to(request_part)
            began_s = time.monotonic()
            with pytest.raises(NoZooKeeperError, match=step) as raised:
                await member.consumer.connect()
            assert 2.0 <= time.monotonic() - began_s < 2.5
            assert proxy.address in str(raised.value)
            proxy.reconnect()
            group.members.append(member)
            await member.start()
            await group.delivered(values)
            await eventually(lambda: len(client.get_children(GroupLayout(name).members)) == 1, "the first session ends")
            assert member.consumer.metrics.total("sessions_lost") == 0
    assert "session is over" not in caplog.text
    assert "session of" not in caplog.text


async def test_a_session_expires_while_a_member_joins(cluster_39: Cluster, unique: Unique) -> None:
    """``connect()`` goes on with another session for as long as ``zk_timeout_ms`` allows; no lost one is raised."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    with AnswerLoser(hosts) as proxy:
        place = {"zk_hosts": proxy.address + slash + chroot, "session_timeout_ms": SESSION_TIMEOUT_MS}
        async with group_of(cluster_39, name, [topic], **place) as group:
            proxy.lose_answer_to(b"/config", request_too=True)
            joining = asyncio.ensure_future(group.join())
            assert await asyncio.to_thread(proxy.caught.wait, 10.0)
            # So long that the server has given the session up.
            await asyncio.sleep(1.5 * SESSION_TIMEOUT_MS / 1000)
            proxy.reconnect()
            member = await joining
            await group.balanced(topic, 2)
            assert member.consumer.metrics.total("joins_failed") == 1
            assert member.consumer.metrics.total("sessions_lost") == 0


@pytest.mark.parametrize("how", ["paused", "unreachable"])
async def test_zookeeper_is_away_for_longer_than_the_lease(
    start_cluster: Callable[..., Cluster], zookeeper_version: str, unique: Unique, how: str
) -> None:
    """
    Members give their sessions up while no server can be reached, and close them as soon as one can.

    So their partitions have owners again at once. The servers would have kept the old claims for the rest of the
    session timeout.
    """
    cluster = start_cluster(zookeeper=zookeeper_version)
    hosts, slash, chroot = cluster.zk_hosts.partition("/")
    with FaultProxy(hosts) as proxy:
        place = {"zk_hosts": proxy.address + slash + chroot, "session_timeout_ms": 12_000}
        async with trial(cluster, unique, **place) as tried:
            for _ in range(2):
                await tried.join()
            await tried.balanced()
            await tried.produce()
            await tried.group.delivered(tried.values)
            before = {owner for owner, _ in tried.owners().values()}
            if how == "paused":
                cluster.zookeeper.pause()
            else:
                proxy.refuse()
                proxy.cut()
            try:
                lost = [member.lost_partitions for member in tried.group.members]
                await eventually(lambda: all(len(partitions) == 2 for partitions in lost), "the leases end", 10.0)
            finally:
                if how == "paused":
                    cluster.zookeeper.resume()
                proxy.heal()
            began_s = time.monotonic()
            await eventually(lambda: len(tried.owners()) == 4 and is_new(tried, before), "others own all", RECOVERY_S)
            unowned_s = time.monotonic() - began_s
            await tried.nothing_is_lost()
    assert unowned_s < 3.5


def is_new(tried: Trial, before: set[str]) -> bool:
    """Whether none of these owns anything any more."""
    return before.isdisjoint(owner for owner, _ in tried.owners().values())


async def test_sigstop_past_the_session(cluster: Cluster, unique: Unique) -> None:
    """Others take over what it held; when it goes on, it hands out nothing of that, and joins anew."""
    async with trial(cluster, unique) as tried:
        stopped = tried.program("member")
        stopped.wait_for_lines(1)
        await tried.produce(40)
        await eventually(lambda: len(stopped.values) == 40, "it reads everything")
        member = await tried.join()
        await tried.has(member, 2)
        stopped.process.send_signal(signal.SIGSTOP)
        await stopped.has_stopped()
        await tried.balanced()
        later = await tried.produce(40)
        assert await tried.group.delivered(later) == Counter(later)
        stopped.process.send_signal(signal.SIGCONT)
        await tried.has(member, 2)
        await tried.produce(40)
        everything = set(tried.values)
        await eventually(lambda: everything <= {*stopped.values, *member.values}, "both go on", RECOVERY_S)
        assert not set(later) & set(stopped.values), "what others have delivered is not its own to hand out"
        stopped.close()
        await tried.nothing_is_lost()


async def test_server_unreachable_past_the_session(cluster: Cluster, unique: Unique) -> None:
    """Half of the session's time after the last word the gate is shut, at its end others own what it held."""
    async with FaultProxy(cluster.zk_hosts) as proxy, trial(cluster, unique) as tried:
        cut_off = await tried.join(zk_hosts=proxy.address)
        other = await tried.join()
        await tried.balanced()
        await tried.produce()
        await tried.group.delivered(tried.values)
        held = cut_off.partitions(tried.topic)
        proxy.stall()
        started_s = time.monotonic()
        await tried.has(other, 4)
        lost_s = max(until_s for *_, until_s in cut_off.intervals)
        claimed_s = min(other._since[tried.partition(number)] for number in held)
        assert started_s < lost_s < started_s + SESSION_TIMEOUT_MS / 1000
        assert claimed_s > lost_s, "before anybody else has it"
        later = await tried.produce()
        await tried.group.delivered(later, RECOVERY_S)
        assert not set(later) & set(cut_off.values)
        proxy.heal()
        await tried.nothing_is_lost()


async def test_lease_lost_but_session_alive(cluster: Cluster, unique: Unique) -> None:
    """A session whose lease ran out is not taken up again, although the server would let it."""
    timeout_ms = 8_000
    async with (
        FaultProxy(cluster.zk_hosts) as proxy,
        trial(cluster, unique, session_timeout_ms=timeout_ms) as tried,
    ):
        member = await tried.join(zk_hosts=proxy.address)
        await tried.balanced()
        await tried.produce()
        await tried.group.delivered(tried.values)
        before, old_id = tried.owners(), member.consumer.member_id
        proxy.stall()
        await eventually(lambda: len(member.lost_partitions) == 4, "the lease is over", RECOVERY_S)
        assert tried.owners() == before, "its session lives, and so do its claims"
        proxy.heal()
        await tried.nothing_is_lost()
        assert member.consumer.member_id != old_id
        assert not {owner for owner, _ in tried.owners().values()} & {owner for owner, _ in before.values()}


async def test_leader_suspended_same_session_comes_back(cluster: Cluster, unique: Unique) -> None:
    """It leads on, keeps its claims, and sees what happened meanwhile."""
    async with (
        FaultProxy(cluster.zk_hosts) as proxy,
        trial(cluster, unique, session_timeout_ms=10_000) as tried,
    ):
        leader = await tried.join(zk_hosts=proxy.address)
        await tried.join()
        await tried.balanced()
        before, leader_id = tried.owners(), leader.consumer.member_id
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: leader.consumer.metrics.total("zookeeper_suspensions"), "it is suspended")
        await tried.grow(6)
        proxy.heal()
        await tried.nothing_is_lost()
        assert (leader.consumer.member_id, leader.consumer.is_leader) == (leader_id, True)
        assert tried.group_state().leader == leader_id
        assert {number: owner for number, owner in tried.owners().items() if number in before} == before


@pytest.mark.parametrize("request_too", [False, True], ids=["done", "never-sent"])
@pytest.mark.parametrize("what", ["member", "candidate", "claim"])
async def test_lost_reply_of_a_create(cluster_39: Cluster, unique: Unique, what: str, request_too: bool) -> None:
    """Whether the znode was created or not is found out on the same session: no second one, and none is missed."""
    async with (
        AnswerLoser(cluster_39.zk_hosts) as proxy,
        trial(cluster_39, unique, session_timeout_ms=10_000) as tried,
    ):
        await tried.produce()
        layout = tried.layout
        folder = {"member": layout.members, "candidate": layout.election, "claim": layout.topic_owners(tried.topic)}
        proxy.lose_answer_to(f"{folder[what]}/".encode(), request_too=request_too)
        joining = asyncio.ensure_future(tried.join(zk_hosts=proxy.address))
        assert await asyncio.to_thread(proxy.caught.wait, RECOVERY_S)
        if not request_too:
            await eventually(lambda: tried.client.get_children(folder[what]), "it is created")
        proxy.reconnect()
        member = await joining
        await tried.nothing_is_lost()
        assert member.consumer.metrics.total("sessions_lost") == 0
        assert len(tried.client.get_children(layout.election)) == 1
        assert tried.client.get_children(layout.members) == [member.consumer.member_id]
        assert Counter(member.values) == Counter(tried.values)


async def test_watch_lost(cluster_39: Cluster, unique: Unique) -> None:
    """No watch ever tells anybody anything: the regular look finds it all, and costs only time."""
    async with (
        WatchLoser(cluster_39.zk_hosts) as proxy,
        trial(cluster_39, unique, reconcile_interval_ms=300) as tried,
    ):
        members: list[Member] = [await tried.join(zk_hosts=proxy.address) for _ in range(2)]
        await tried.balanced()
        await tried.grow(6)
        await tried.balanced()
        await tried.group.leave(members[0])
        await tried.nothing_is_lost()
        assert proxy.lost > 0
        assert members[1].consumer.metrics.total("sessions_lost") == 0


async def test_one_contended_partition_in_a_claim_batch(cluster: Cluster, unique: Unique) -> None:
    """The others are claimed at once; it is waited for, and claimed when whoever has it lets go."""
    async with trial(cluster, unique, partitions=8) as tried:
        claim = tried.layout.owner(tried.partition(5))
        tried.client.create(claim, b"somebody-0", ephemeral=True, makepath=True)
        member = await tried.join()
        await eventually(
            lambda: member.partitions(tried.topic) == [0, 1, 2, 3, 4, 6, 7], "all others are claimed", RECOVERY_S
        )
        assert tried.client.get(claim)[0] == b"somebody-0"
        tried.client.delete(claim)
        await tried.nothing_is_lost()
