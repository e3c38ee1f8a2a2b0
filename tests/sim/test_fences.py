"""The fences of one session, one at a time, against the fake ZooKeeper: what thousands of stories meet by chance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator

import pytest
from kazoo.protocol.states import KazooState

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.leader.election import Election
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.session.fenced_writes import FencedWriter, Outcome
from kiel_groups.coordination.session.heartbeat import Heartbeat
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Session, SessionEvent
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.errors import SessionLostError
from kiel_groups.group.leader.candidate import EnterElection
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Answer, Create, Delete, Done, Operation
from kiel_groups.metrics import Metrics
from kiel_groups.testing import FakeEnsemble, SimulatedProcess, SimulatedRuntime, Timeline
from kiel_groups.testing.fake_ensemble import Entry

pytestmark = pytest.mark.sim

Work = Callable[[Session, FencedWriter], Awaitable[object]]


class Bench:
    """One process with one session, and its member znode; on one server unless told."""

    def __init__(self, servers: int = 1) -> None:
        self.timeline = Timeline(1)
        self.ensemble = FakeEnsemble(self.timeline, servers)
        self.process = SimulatedProcess(self.ensemble)

    def run(self, work: Work, limit_s: float = 60.0) -> object:
        """Run a coroutine function on an open session; returns what it returns."""
        task = self.process.start(self._run(work))
        self.timeline.run_until(task.done, limit_s)
        return task.result()

    async def _run(self, work: Work) -> object:
        session = Session(ZooKeeperConfig(hosts="fake1:2181"), Metrics(), self._ignore)
        await session.open()
        assert isinstance(await session.transact([Create("/member", ephemeral=True)]), Done)
        return await work(
            session, FencedWriter(session, "/member", TopicIncarnations(session, TaskSet(print)).catch_up)
        )

    @property
    def proofs(self) -> list[Entry]:
        """What went through the quorum and changed nothing."""
        return [entry for entry in self.ensemble.log if entry.question is not None and not entry.changes]

    def _ignore(self, event: SessionEvent) -> None:
        """Nobody listens."""


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    with runtime.replaced(SimulatedRuntime(made.timeline)):
        yield made


def writing(path: str) -> dict[str, tuple[Create]]:
    return {path: (Create(path),)}


def test_a_write_without_the_member_znode_does_not_happen(bench: Bench) -> None:
    """The member znode is gone, the session is not: the write is refused, and the session is given up."""

    async def work(session: Session, writer: FencedWriter) -> str | None:
        session.client.delete_async("/member")
        with pytest.raises(SessionLostError):
            await writer.write(writing("/written"), lambda *_: None)
        return session.ended

    assert bench.run(work) == "the member znode is gone"
    assert "/written" not in bench.ensemble.truth.znodes


def test_a_write_of_an_unknown_outcome_is_told_as_such_after_a_proof(bench: Bench) -> None:
    """The answer is lost: what is read afterwards is no older than the write, for a quorum write was answered since."""

    async def work(session: Session, writer: FencedWriter) -> Outcome[str]:
        bench.process.lose("reply")
        outcome = await writer.write(writing("/written"), lambda *_: None)
        assert await session.exists("/written") is not None
        return outcome

    outcome = bench.run(work)
    assert isinstance(outcome, Outcome)
    assert outcome.unknown == {"/written"}
    assert len(bench.proofs) == 1


def test_a_proof_is_asked_for_until_it_is_answered(bench: Bench) -> None:
    """An answer that is lost proves nothing; another one is asked for."""

    async def work(session: Session, writer: FencedWriter) -> None:
        bench.process.lose("reply")
        await writer.prove()

    bench.run(work)
    assert len(bench.proofs) == 2


def test_folders_whose_ground_is_cleared_away_are_made_all_the_same(bench: Bench) -> None:
    """Who tidies up empty folders, between the look at them and the write, does not keep anybody from joining."""

    async def work(session: Session, writer: FencedWriter) -> None:
        await session.ensure(["/group"])
        transact, tidied = session.transact, []

        async def tidying(operations: Iterable[Operation]) -> Answer:
            if not tidied:
                tidied.append(session.client.delete_async("/group"))
            return await transact(operations)

        session.transact = tidying  # type: ignore[method-assign]
        await session.ensure(["/group/members"])

    bench.run(work)
    assert {"/group", "/group/members"} <= bench.ensemble.truth.znodes.keys()


def test_a_write_is_cut_before_it_is_too_large_for_a_server(bench: Bench) -> None:
    """Three thousand operations are one transaction, but not where their paths are as long as paths may be."""
    paths = [f"/{'x' * 600}-{number}" for number in range(3_000)]

    async def work(session: Session, writer: FencedWriter) -> Outcome[str]:
        return await writer.write({path: (Create(path),) for path in paths}, lambda *_: None, most=3_000)

    outcome = bench.run(work)
    assert isinstance(outcome, Outcome)
    assert list(outcome.done) == paths
    written = [len(entry.changes) for entry in bench.ensemble.log if len(entry.changes) > 1]
    assert sum(written) == 3_000
    assert 2 <= len(written) <= 5


def test_a_lost_request_is_not_done(bench: Bench) -> None:
    """The connection broke before the server had it: unknown as well, and nothing was written."""

    async def work(session: Session, writer: FencedWriter) -> Outcome[str]:
        bench.process.lose("request")
        return await writer.write(writing("/written"), lambda *_: None)

    outcome = bench.run(work)
    assert isinstance(outcome, Outcome)
    assert outcome.unknown == {"/written"}
    assert "/written" not in bench.ensemble.truth.znodes


def test_an_expired_session_is_over(bench: Bench) -> None:
    """As soon as a server says so, for kazoo would go on with the next one."""

    async def work(session: Session, writer: FencedWriter) -> str | None:
        bench.ensemble.expire(session.id)
        await asyncio.sleep(2.0)
        return session.ended

    assert bench.run(work) == "expired or closed by the server"


def test_what_is_unanswered_fails_with_the_session(bench: Bench) -> None:
    """Nobody waits for an answer that will not come."""

    async def work(session: Session, writer: FencedWriter) -> None:
        bench.process.stall()
        asyncio.get_running_loop().call_later(1.0, session.end, "enough")
        with pytest.raises(SessionLostError, match="enough"):
            await session.get("/member")

    bench.run(work, limit_s=5.0)


def test_nothing_is_written_on_the_session_that_kazoo_opens_by_itself(bench: Bench) -> None:
    """The session expires: what is asked of it afterwards fails, and kazoo's next one writes nothing."""

    async def work(session: Session, writer: FencedWriter) -> None:
        bench.ensemble.expire(session.id)
        while session.ended is None:
            await writer.write(writing(f"/written-{bench.timeline.now_s}"), lambda *_: None)
            await asyncio.sleep(0.01)

    with pytest.raises(SessionLostError):
        bench.run(work)
    bench.timeline.run_for(5.0)
    assert len(bench.process.sessions) == 2
    later = [entry for entry in bench.ensemble.log if entry.session_id == bench.process.sessions[1]]
    assert not [change for entry in later for change in entry.changes]


def test_nobody_stands_for_election_on_the_session_that_kazoo_opens_by_itself(bench: Bench) -> None:
    """An event loop that hears late of the end: a candidate there would lead nobody, and keep others from it."""
    layout = GroupLayout("g")

    async def work(session: Session, writer: FencedWriter) -> str | None:
        call_loop = session._call_loop

        def late(function: Callable[..., None], *arguments: object) -> None:
            is_end = KazooState.LOST in arguments
            bench.timeline.after(3.0 if is_end else 0.0, call_loop, function, *arguments)

        session._call_loop = late  # type: ignore[method-assign]
        await session.ensure(layout.parents)
        tasks = TaskSet(lambda _: None)
        election = Election(session, layout, "m", "/member", tasks, Metrics(), lambda *_: None, lambda: None)
        bench.ensemble.expire(session.id)
        while len(bench.process.sessions) == 1:  # noqa: ASYNC110 -- simulated time
            await asyncio.sleep(0.01)
        assert session.ended is None
        election.feed(EnterElection())
        await asyncio.sleep(1.0)
        assert bench.ensemble.truth.children(layout.election) == []
        await asyncio.sleep(3.0)
        await tasks.cancel()
        return session.ended

    assert bench.run(work) == "expired or closed by the server"


def test_a_heartbeat_whose_member_znode_is_gone_renews_nothing(bench: Bench) -> None:
    """The session lives, and nobody writes: the beat alone notices that others take this member for dead."""

    async def work(session: Session, writer: FencedWriter) -> tuple[str | None, bool]:
        heartbeat = Heartbeat(session.connection, session.gate, "/member", Metrics(), session.abandon, 1_000)
        heartbeat.start()
        await asyncio.sleep(1.5)
        assert session.gate.is_open(bench.timeline.now_s)
        assert isinstance(await session.transact([Delete("/member")]), Done)
        await asyncio.sleep(1.5)
        return session.ended, session.gate.is_open(bench.timeline.now_s)

    assert bench.run(work) == ("the member znode is gone", False)
