"""The lease on real servers: a silence shorter than the lease ends the connection, a longer one the session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually
from tests.proxies import FaultProxy

pytestmark = [pytest.mark.integration, pytest.mark.failures]

Unique = Callable[[str], str]


def behind(cluster: Cluster, proxy: FaultProxy) -> Cluster:
    """Return the cluster with the proxy in front of its ZooKeeper."""
    chroot = "".join(cluster.zk_hosts.partition("/")[1:])
    return cast(Cluster, SimpleNamespace(brokers=cluster.brokers, zk_hosts=proxy.address + chroot))


def proxy_of(cluster: Cluster) -> FaultProxy:
    """Return a proxy for the cluster's ZooKeeper."""
    return FaultProxy(cluster.zk_hosts.partition("/")[0])


def gate_of(member: Member) -> DeliveryGate:
    assert member.consumer._lifecycle.connected is not None
    return cast(DeliveryGate, member.consumer._lifecycle.connected.reader.owned.gate)


async def test_a_silence_within_the_lease(cluster: Cluster, unique: Unique) -> None:
    """
    An unanswered heartbeat ends the connection, but not the session: no partition moves, and no record is repeated.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    values = await produce(cluster, topic, 20)
    async with proxy_of(cluster) as proxy, group_of(cluster, name, [topic]) as group:
        member = Member(behind(cluster, proxy), name, [topic], session_timeout_ms=12_000)
        group.members.append(member)
        await member.start()
        await group.delivered(values)
        member_id, metrics = member.consumer.member_id, member.consumer.metrics
        proxy.stall()
        await eventually(lambda: metrics.total("zookeeper_connections_dropped"), "the connection is given up")
        assert gate_of(member).shut_reason is None
        proxy.heal()
        beats = metrics.latency("heartbeat").count
        await eventually(lambda: metrics.latency("heartbeat").count > beats, "a heartbeat on another connection")
        values += await produce(cluster, topic, 20, first=20)
        assert await group.delivered(values) == Counter(values)
        assert member.consumer.member_id == member_id
        assert member.lost_partitions == []


async def test_a_lease_ends_before_its_session(cluster: Cluster, unique: Unique) -> None:
    """The member gives up its session although ZooKeeper still has it, because recent writes may be unconfirmed."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    values = await produce(cluster, topic, 20)
    async with proxy_of(cluster) as proxy, group_of(cluster, name, [topic]) as group:
        # The checks must end before the session does: within half of this time.
        member = Member(behind(cluster, proxy), name, [topic], session_timeout_ms=10_000)
        group.members.append(member)
        await member.start()
        await group.delivered(values)
        old_id, old_gate = str(member.consumer.member_id), gate_of(member)
        other = await group.join()
        await group.balanced(topic, 2)
        proxy.stall()
        await eventually(lambda: old_gate.shut_reason, "the lease ends")
        assert old_gate.shut_reason == "lease over"
        with zookeeper(cluster) as client:
            assert client.exists(GroupLayout(name).member(old_id)), "ZooKeeper still has the session"
            assert len(other.partitions(topic)) == 1, "no other member claims what it still owns"
        proxy.heal()
        await eventually(lambda: len(member.lost_partitions) == 1, "the loss is notified")
        await group.balanced(topic, 2)
        assert member.consumer.member_id != old_id
        values += await produce(cluster, topic, 20, first=20)
        await group.delivered(values)
        assert group.overlaps() == []
        assert not old_gate.is_open(old_gate.deadline_s - 1)


async def test_a_blocked_event_loop_does_not_cost_the_lease(cluster_39: Cluster, unique: Unique) -> None:
    """
    The event loop is blocked for longer than the lease. The member keeps its session, because heartbeats run on a
    thread.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 1)
    settings: dict[str, Any] = {"session_timeout_ms": 10_000, "loop_stall_ms": 20_000}
    async with group_of(cluster_39, name, [topic], **settings) as group:
        member = await group.join()
        member_id = member.consumer.member_id
        member.block_s = 6.0
        assert await group.delivered(values) == Counter(values)
        assert member.consumer.member_id == member_id
        assert member.consumer.metrics.total("sessions_lost") == 0
