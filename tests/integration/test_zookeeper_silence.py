"""If ZooKeeper does not answer while hundreds of requests are in flight, the event loop is not blocked."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.errors import SessionLostError
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.heartbeat import Heartbeat
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session, SessionEvent
from tests.proxies import FaultProxy

pytestmark = pytest.mark.integration

#: More requests than the 278 wake-ups that fit into kazoo's pair of sockets.
MANY = 450
LIMIT_S = 60.0


async def test_a_silence_with_hundreds_of_requests_in_flight(cluster_39: Cluster) -> None:
    """
    During a silence with hundreds of requests in flight, the event loop keeps running, the lease ends in time, each
    read fails, and the session can be closed.
    """
    events: asyncio.Queue[SessionEvent] = asyncio.Queue()
    metrics = Metrics()
    async with FaultProxy(cluster_39.zk_hosts.partition("/")[0]) as proxy, asyncio.timeout(2 * LIMIT_S):
        session = Session(
            ZooKeeperConfig.parse(proxy.address, session_timeout_ms=6_000),
            metrics,
            lambda event: events.put_nowait(event),
            Runtime(),
        )
        await session.open()
        Heartbeat(session, "/", None, metrics, Runtime()).start()
        await session.wait_trusted()
        proxy.stall()
        proxy.cut()
        assert await events.get() is SessionEvent.SUSPENDED
        reads = asyncio.ensure_future(session.get_many([f"/{number}" for number in range(MANY)]))
        assert await events.get() is SessionEvent.ENDED
        with pytest.raises(SessionLostError):
            await reads
        assert "lease" in str(session.ended)
        await session.close()
