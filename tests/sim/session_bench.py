"""A test bench for one session with a member znode and a fenced writer, on simulated time and without a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.transactions import Create, Done
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import OffsetZnodes
from kiel_groups.members.zookeeper.owner_znodes import OwnerZnodes
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session, SessionEvent
from kiel_groups.zookeeper.tasks import TaskSet
from tests.fakes import FakeEnsemble, SimulatedProcess, Timeline
from tests.fakes.fake_ensemble import Entry
from tests.helpers.contexts import member_context

__all__ = ["SessionBench", "owner_znodes_of", "Work"]

#: A test's coroutine function, which uses the open session.
Work: TypeAlias = Callable[[Session, FencedWriter], Awaitable[object]]


class SessionBench:
    """A process with one session and the znode ``/member``, and an ensemble of ``servers`` servers."""

    def __init__(self, servers: int = 1) -> None:
        self.timeline = Timeline(1)
        self.ensemble = FakeEnsemble(self.timeline, servers)
        self.process = SimulatedProcess(self.ensemble)

    def run(self, work: Work, limit_s: float = 60.0) -> object:
        """Run ``work`` on an open session, and return its result."""
        task = self.process.start(self._run(work))
        self.timeline.run_until(task.done, limit_s)
        return task.result()

    async def _run(self, work: Work) -> object:
        session = Session(ZooKeeperConfig(hosts="fake1:2181"), Metrics(), self._ignore, self.process.runtime)
        await session.open()
        assert isinstance(await session.transact([Create("/member", ephemeral=True)]), Done)
        topics = TopicIncarnations(session, TaskSet(print), OffsetTracker())
        return await work(session, FencedWriter(session, "/member", topics.catch_up))

    @property
    def proofs(self) -> list[Entry]:
        """The quorum writes of the session that changed no znode, such as heartbeats."""
        return [entry for entry in self.ensemble.log if entry.pending is not None and not entry.changes]

    def _ignore(self, event: SessionEvent) -> None:
        """Drop the event."""


def owner_znodes_of(session: Session, writer: FencedWriter, tracker: OffsetTracker) -> OwnerZnodes:
    """Return the owner znodes of the member "m" of group "g" on this session."""
    context = member_context(session, tracker)
    topics = TopicIncarnations(context.session, context.tasks, tracker)
    return OwnerZnodes(context, writer, OffsetZnodes(context, writer, topics))
