"""The number of reads that a leader or a member has in flight."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.group.planner import Inputs
from kiel_groups.group.znodes.contents import MemberInfo
from kiel_groups.group.znodes.layout import TOPICS, GroupLayout, topic_path
from kiel_groups.members.zookeeper.planner import PlanReader
from kiel_groups.zookeeper import session as zk_session
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import MOST_READS, Session
from tests.helpers.contexts import session_context
from tests.sim.session_bench import SessionBench
from tests.sim.world import at_rest

pytestmark = pytest.mark.sim

MANY = 2 * MOST_READS


def test_heartbeats_do_not_wait_behind_all_members_and_topics(bench: SessionBench) -> None:
    """While a leader reads a large group, a heartbeat waits behind at most ``MOST_READS`` reads."""
    layout = GroupLayout("g")
    names = [f"m{number}" for number in range(MANY)]
    topics = [f"t{number}" for number in range(MANY)]

    async def work(session: Session, writer: FencedWriter) -> tuple[Inputs, int]:
        await session.ensure([*layout.parents, TOPICS])
        create = session.client.create_async
        for name, topic in zip(names, topics, strict=True):
            create(
                layout.member(name), MemberInfo(member_id=name, session_timeout_ms=1, subscription=(topic,)).encode()
            )
            create(topic_path(topic), b'{"version":1,"partitions":{"0":[0]}}')
        await session.get("/member")
        reader = PlanReader(session_context(session, runtime=bench.process.runtime), lambda what: None)
        reading = asyncio.ensure_future(reader.read())
        most = 0
        while not reading.done():
            most = max(most, len(session.client._queue) + len(session.client._pending))
            await asyncio.sleep(0.0001)
        return reading.result(), most

    inputs, most = bench.run(work)  # type: ignore[misc]
    assert len(inputs.members) == len(inputs.topics) == MANY
    assert MOST_READS <= most < 1.1 * MOST_READS


def test_the_reads_of_several_calls_share_the_limit(bench: SessionBench) -> None:
    """A member opens the claims of each topic with a call of its own; a cancelled call frees its share of the limit."""

    async def work(session: Session, writer: FencedWriter) -> int:
        calls = [asyncio.ensure_future(session.exists_many(["/member"] * 30)) for _ in range(10)]
        await asyncio.sleep(0)
        calls.pop(1).cancel()
        most = 0
        while not all(call.done() for call in calls):
            most = max(most, len(session.client._queue) + len(session.client._pending))
            await asyncio.sleep(0.0001)
        assert all(len(call.result()) == 30 for call in calls)
        return most

    most = bench.run(work)
    assert isinstance(most, int)
    assert 30 <= most <= MOST_READS


def test_heartbeats_do_not_wait_behind_all_awaited_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    After a reconnection, a member reads again all owner znodes that a busy member has yet to release. A heartbeat waits
    behind a limited number of these reads.
    """
    few = 20
    monkeypatch.setattr(zk_session, "MOST_READS", few)
    with at_rest(members=1, topics=(10 * few,), reset="earliest") as world:
        (busy,) = world.consumers
        for _ in world.partitions():
            busy.work(0.0, 1, 60.0)
        waiting = world.join(world.topics)
        world.run_for(10.0)
        client = waiting.process.connections[-1]._client
        waiting.process.reset()
        most = 0
        for _ in range(5_000):
            world.timeline.step(world.timeline.now_s + 5.0)
            most = max(most, len(client._queue) + len(client._pending))
        assert waiting.metrics.total("zookeeper_suspensions") == 1
        assert few <= most < 2 * few
        world.settle(120.0)
