"""ZooKeeper servers that die, freeze, or lose their connections to each other."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.protocol.serialization import Connect

from kiel_groups.embedded import Cluster, ZooKeeperServer
from tests.helpers.answer_losers import AnswerLoser
from tests.helpers.checked_group import RECOVERY_S, SESSION_TIMEOUT_MS, checked_group
from tests.helpers.cluster_data import owners, produce, zookeeper
from tests.helpers.members import Member, group_of
from tests.helpers.running_time import running_s
from tests.helpers.servers import LASTING_MS
from tests.helpers.waiting import eventually
from tests.helpers.zookeeper_roles import followers_of, leader_of, mode_of
from tests.proxies.cuttable_servers import ClusterOnCuttableEnsemble

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

#: How long servers wait for each other before they close the connection, in ticks of half a second.
PATIENT, FAIRLY_PATIENT = {"syncLimit": 40}, {"syncLimit": 6}
#: A server of this version that has lost its quorum can serve clients that only read.
READ_ONLY_ALONE = "3.9.5"


@pytest.fixture(scope="module")
def ensembles() -> Iterator[Callable[..., Cluster]]:
    """
    Provide a function that starts a cluster with three ZooKeeper servers, whose connections to each other can be cut.
    Calls with equal settings return the same cluster.
    """
    running: dict[str, Cluster] = {}
    with ExitStack() as stack:

        def cluster_on(**settings: Any) -> Cluster:
            key = repr(settings)
            if key not in running:
                # The broker's session must survive these failures: without a registered broker no leader plans.
                lasting = {"broker_overrides": {"zookeeper.session.timeout.ms": 60_000}}
                cluster = ClusterOnCuttableEnsemble(zookeepers=3, max_session_timeout_ms=60_000, **lasting, **settings)
                with pytest.MonkeyPatch.context() as environment:
                    if settings["zookeeper"] == READ_ONLY_ALONE:
                        environment.setenv("JAVA_TOOL_OPTIONS", "-Dreadonlymode.enabled=true")
                    running[key] = stack.enter_context(cluster)
            return running[key]

        yield cluster_on


def server_of(cluster: Cluster, member: Member) -> ZooKeeperServer:
    """Return the server to which a member's session is connected."""
    session = member.consumer._lifecycle.connected.member._member_session.session  # type: ignore[union-attr]
    port = session.client._connection._socket.getpeername()[1]
    return next(server for server in cluster.ensemble.servers if server.port == port)


async def test_one_server_freezes_and_another_one_is_killed(
    start_cluster: Callable[..., Cluster], zookeeper_version: str
) -> None:
    """
    One server freezes. After it was resumed, another server is killed. Members connect to another server and keep their
    sessions and claims. No record is lost or repeated.
    """
    # A lease of 15 s: if ZooKeeper's leader failed, the other servers notice it after 2 s and then elect a leader,
    # which takes longer on a busy machine.
    session_timeout_ms = 30_000
    cluster = start_cluster(zookeeper=zookeeper_version, zookeepers=3, max_session_timeout_ms=session_timeout_ms)
    await cluster.create_topic("t", 4)
    async with group_of(cluster, "g", ["t"], session_timeout_ms=session_timeout_ms) as group:
        first, second = await group.join(), await group.join()
        await group.balanced("t", 4)
        ids = [first.consumer.member_id, second.consumer.member_id]
        with zookeeper(cluster) as client:
            before = owners(client, "g", "t")
        values: list[bytes] = []
        for lose in (ZooKeeperServer.pause, kill):
            server = server_of(cluster, first)
            suspensions = first.consumer.metrics.total("zookeeper_suspensions")
            lose(server)
            await eventually(
                lambda seen=suspensions: first.consumer.metrics.total("zookeeper_suspensions") > seen,
                "the connection is suspended",
            )
            await eventually(
                lambda lost=server: server_is_another(cluster, first, lost), "it is connected to another server"
            )
            values += await produce(cluster, "t", 100, first=len(values))
            assert await group.delivered(values) == Counter(values)
            assert [first.consumer.member_id, second.consumer.member_id] == ids
            assert first.consumer.metrics.total("sessions_lost") == 0
            if server.is_running:
                server.resume()
                await back_in_the_quorum(server)
        with zookeeper(cluster) as client:
            assert owners(client, "g", "t") == before


def kill(server: ZooKeeperServer) -> None:
    os.kill(server.pid, signal.SIGKILL)


async def back_in_the_quorum(server: ZooKeeperServer) -> None:
    await eventually(lambda: mode_of(server), "the server is in the quorum", 60)


def server_is_another(cluster: Cluster, member: Member, server: ZooKeeperServer) -> bool:
    session = member.consumer._lifecycle.connected.member._member_session.session  # type: ignore[union-attr]
    return bool(session.connected) and server_of(cluster, member) is not server


async def test_a_follower_is_cut_off_from_its_leader(ensembles: Callable[..., Cluster], unique: Unique) -> None:
    """
    The follower still answers reads and pings, which do not renew a lease. A member connected to it stops delivering
    when its lease ends, half of a session timeout after the last answered heartbeat. It loses its partitions before
    other members own them and lead the group.
    """
    cluster = ensembles(zookeeper="3.9.5", zookeeper_overrides=PATIENT)
    leading, (follower, _) = await leader_of(cluster.ensemble), await followers_of(cluster.ensemble)
    async with checked_group(cluster, unique) as checked:
        cut_off = await checked.join(zk_hosts=follower.hosts, session_timeout_ms=SESSION_TIMEOUT_MS)
        other = await checked.join(zk_hosts=leading.hosts)
        await checked.balanced()
        await checked.produce()
        await checked.group.delivered(checked.values)
        held = cut_off.partitions(checked.topic)
        cluster.ensemble.cut(follower, leading)
        try:
            cut_s = running_s()
            await checked.wait_for_partitions(other, 4)
            assert await mode_of(follower) == "follower", "the server still serves clients"
            assert other.consumer.is_leader
            lost_s = max(until_s for *_, until_s in cut_off.intervals)
            claimed_s = min(other._since[checked.partition(number)] for number in held)
            assert cut_s < lost_s < cut_s + SESSION_TIMEOUT_MS / 1000
            assert claimed_s > lost_s
            later = await checked.produce()
            await checked.group.delivered(later, RECOVERY_S)
            assert not set(later) & set(cut_off.values)
        finally:
            cluster.ensemble.heal()
        await checked.check_nothing_is_lost()


async def test_a_zookeeper_leader_is_cut_off_from_its_quorum(ensembles: Callable[..., Cluster], unique: Unique) -> None:
    """
    For some seconds the server still acts as leader and answers reads and pings. A member connected to it gives up its
    session within the session timeout. Members on the other servers own its partitions when those servers have elected
    a leader, which took servers of 3.4.6 up to 20 s. Nothing is lost.
    """
    # Only on 3.4.6 does a cut between two servers end all communication between them.
    cluster = ensembles(zookeeper="3.4.6", zookeeper_overrides=FAIRLY_PATIENT)
    cut, majority = await leader_of(cluster.ensemble), await followers_of(cluster.ensemble)
    async with checked_group(cluster, unique) as checked:
        cut_off = await checked.join(zk_hosts=cut.hosts, session_timeout_ms=SESSION_TIMEOUT_MS)
        other = await checked.join(zk_hosts=",".join(server.hosts for server in majority))
        await checked.balanced()
        await checked.produce()
        await checked.group.delivered(checked.values)
        held = cut_off.partitions(checked.topic)
        cluster.ensemble.cut(cut, *majority)
        try:
            cut_s = running_s()
            await eventually(
                lambda: set(cut_off.lost_partitions) == set(map(checked.partition, held)), "the session is given up"
            )
            assert running_s() - cut_s < SESSION_TIMEOUT_MS / 1000
            assert await mode_of(cut) == "leader", "the server still acts as leader"
            # Two servers of 3.4.6 took up to 20 s to elect a leader; a join that starts then waits for up to 15 s.
            await checked.wait_for_partitions(other, 4, 3 * RECOVERY_S)
            later = await checked.produce()
            await checked.group.delivered(later, RECOVERY_S)
            assert not set(later) & set(cut_off.values)
        finally:
            cluster.ensemble.heal()
        await checked.check_nothing_is_lost()


@pytest.mark.parametrize("zookeeper", ["3.4.6", "3.9.5"])
async def test_the_zookeeper_leader_believes_that_a_session_has_moved(
    ensembles: Callable[..., Cluster], unique: Unique, zookeeper: str
) -> None:
    """
    ZooKeeper's leader processes a connection late that the client has abandoned, and therefore refuses the member's
    writes. The member connects again within half of the session timeout, and keeps its session, claims and lease.
    """
    overrides = FAIRLY_PATIENT if zookeeper == "3.4.6" else PATIENT
    cluster = ensembles(zookeeper=zookeeper, zookeeper_overrides=overrides)
    followers = ",".join(server.hosts for server in await followers_of(cluster.ensemble))
    async with checked_group(cluster, unique, auto_commit_interval_ms=60_000) as checked:
        # Do not connect to the leader: it closes its own connections of a moved session at the first request of any
        # kind.
        member = await checked.join(zk_hosts=followers)
        await checked.wait_for_partitions(member, 4)
        await eventually(lambda: len(checked.owners()) == 4, "the server that is read has the claims, too")
        session = member.consumer._lifecycle.connected.member._member_session.session  # type: ignore[union-attr]
        connected, before = server_of(cluster, member), (session.client.client_id, checked.owners())
        await asyncio.to_thread(
            connect_elsewhere,
            next(server for server in cluster.ensemble.servers if server is not connected),
            *before[0],
        )
        gate, moved_s = session.gate, running_s()
        await eventually(lambda: member.consumer.metrics.total("zookeeper_suspensions"), "it connects again")
        assert running_s() - moved_s < LASTING_MS / 2_000
        await checked.produce()
        await checked.group.delivered(checked.values)
        await member.consumer.commit()
        assert gate.shut_reason is None
        assert (session.client.client_id, checked.owners()) == before
        assert member.lost_partitions == []
        # Servers of 3.4 answer with an error; later ones close the connection themselves.
        assert member.consumer.metrics.total("zookeeper_connections_dropped") == (zookeeper == "3.4.6")


def connect_elsewhere(server: ZooKeeperServer, session_id: int, password: bytes) -> None:
    """Move a session to a server, by connecting to it with the id and password of the session, and disconnect."""
    request = Connect(0, 0, LASTING_MS, session_id, password, False).serialize()
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
        connection.makefile("rb") as got,
    ):
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", got.read(4))
        answer, _ = Connect.deserialize(got.read(length), 0)
    assert answer.session_id == session_id


async def test_a_server_lags_behind_after_a_release_of_unknown_outcome(
    ensembles: Callable[..., Cluster], unique: Unique
) -> None:
    """
    A release succeeds, its answer is lost, and the server that the member connects to next lags behind. The member
    reads only after an answered transaction, so it does not change the next owner's claim or offset. Nothing is
    repeated.
    """
    cluster = ensembles(zookeeper="3.9.5", zookeeper_overrides=PATIENT)
    leading, (behind, _) = await leader_of(cluster.ensemble), await followers_of(cluster.ensemble)
    connected = [leading]
    async with (
        AnswerLoser(lambda: connected[0].hosts) as proxy,
        checked_group(cluster, unique, session_timeout_ms=30_000) as checked,
    ):
        first = await checked.join(zk_hosts=proxy.address)
        await checked.balanced()
        await checked.produce()
        await checked.group.delivered(checked.values)
        await eventually(lambda: sum(checked.committed_offsets().values()) == 40, "all is committed")
        proxy.lose_answer_to(f"{checked.layout.topic_owners(checked.topic)}/".encode())
        second = await checked.join(zk_hosts=leading.hosts)
        assert await asyncio.to_thread(proxy.caught.wait, RECOVERY_S)
        await checked.wait_for_partitions(second, 2)
        assert len(first.partitions(checked.topic)) == 4, "its release is not answered yet"
        cluster.ensemble.delay(0.3, leading, behind)
        connected[0] = behind
        proxy.reconnect()
        try:
            await checked.balanced()
        finally:
            cluster.ensemble.heal()
        assert first.consumer.metrics.total("zookeeper_transactions_unknown") >= 1
        assert first.consumer.metrics.total("sessions_lost") == 0
        await checked.check_nothing_is_lost()
        assert Counter(checked.group.values) == Counter(checked.values), "an orderly release repeats nothing"


@pytest.mark.slow
async def test_a_server_without_a_quorum_is_read_only(ensembles: Callable[..., Cluster], unique: Unique) -> None:
    """
    The server accepts only clients that ask for read-only access, which members do not. A member connected to the
    server gives up its session when its lease ends, retries, and joins when the quorum is back. Nothing is lost.
    """
    cluster = ensembles(zookeeper=READ_ONLY_ALONE, zookeeper_overrides=PATIENT)
    alone, others = await leader_of(cluster.ensemble), await followers_of(cluster.ensemble)
    settings = {"session_timeout_ms": SESSION_TIMEOUT_MS, "connect_timeout_ms": 1_000}
    async with checked_group(cluster, unique, **settings) as checked:
        member = await checked.join(zk_hosts=alone.hosts)
        await checked.balanced()
        await checked.produce()
        await checked.group.delivered(checked.values)
        for server in others:
            await server.kill()

        async def is_read_only() -> bool:
            return await mode_of(alone) == "read-only"

        await eventually(is_read_only, "the server serves reads alone", 60)
        await eventually(
            lambda: set(member.lost_partitions) == set(map(checked.partition, range(4))), "the session is given up"
        )
        attempts = member.consumer.metrics.total("joins_failed")
        await eventually(lambda: member.consumer.metrics.total("joins_failed") > attempts, "an attempt to join fails")
        assert await mode_of(alone) == "read-only"
        later = await checked.produce()
        await asyncio.gather(*(server.restart() for server in others))
        await checked.wait_for_partitions(member, 4, 3 * RECOVERY_S)
        await checked.check_nothing_is_lost()
        assert set(later) <= set(member.values)
