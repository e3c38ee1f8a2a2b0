"""
The fences of one session, tested one by one on the fake ZooKeeper, because random scenarios reach them only by chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.protocol.states import KazooState

from kiel_groups.errors import SessionLostError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Answer, Create, Delete, Done, Operation
from kiel_groups.members.zookeeper.leader import Candidacy
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.fenced_writes import FencedWriter, Outcome
from kiel_groups.zookeeper.heartbeat import Heartbeat
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import TaskSet
from tests.helpers.contexts import session_context
from tests.sim.session_bench import SessionBench

pytestmark = pytest.mark.sim


def writing(path: str) -> dict[str, tuple[Create]]:
    """Return the operations of a write that creates one znode."""
    return {path: (Create(path),)}


def test_a_write_without_the_member_znode_is_refused(bench: SessionBench) -> None:
    """
    A write without the member znode is refused, and the member ends its session although ZooKeeper still has the
    session.
    """

    async def work(session: Session, writer: FencedWriter) -> str | None:
        session.client.delete_async("/member")
        with pytest.raises(SessionLostError):
            await writer.write(writing("/written"), lambda *_: None)
        return session.ended

    assert bench.run(work) == "the member znode is gone"
    assert "/written" not in bench.ensemble.tree.znodes


def test_an_unknown_outcome_is_returned_after_a_proof(bench: SessionBench) -> None:
    """
    If the answer to a write is lost, the writer waits for another quorum write, so that later reads show the lost
    write.
    """

    async def work(session: Session, writer: FencedWriter) -> Outcome[str]:
        bench.process.lose("reply")
        outcome = await writer.write(writing("/written"), lambda *_: None)
        assert await session.exists("/written") is not None
        return outcome

    outcome = bench.run(work)
    assert isinstance(outcome, Outcome)
    assert outcome.unknown == {"/written"}
    assert len(bench.proofs) == 1


def test_a_proof_is_repeated_until_it_is_answered(bench: SessionBench) -> None:
    """A quorum write whose answer is lost is no proof, so the writer repeats it."""

    async def work(session: Session, writer: FencedWriter) -> None:
        bench.process.lose("reply")
        await writer.prove()

    bench.run(work)
    assert len(bench.proofs) == 2


def test_folders_are_created_although_their_parent_is_deleted_meanwhile(bench: SessionBench) -> None:
    """A folder is created even if an operator deletes its empty parent folder right before."""

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
    assert {"/group", "/group/members"} <= bench.ensemble.tree.znodes.keys()


def test_a_large_write_is_split_to_fit_the_limit_of_the_servers(bench: SessionBench) -> None:
    """
    A large write is split. Three thousand operations with short paths would fit into one transaction, but with long
    paths they do not.
    """
    paths = [f"/{'x' * 600}-{number}" for number in range(3_000)]

    async def work(session: Session, writer: FencedWriter) -> Outcome[str]:
        return await writer.write({path: (Create(path),) for path in paths}, lambda *_: None, most=3_000)

    outcome = bench.run(work)
    assert isinstance(outcome, Outcome)
    assert list(outcome.done) == paths
    written = [len(entry.changes) for entry in bench.ensemble.log if len(entry.changes) > 1]
    assert sum(written) == 3_000
    assert 2 <= len(written) <= 5


def test_a_lost_request_has_an_unknown_outcome_too(bench: SessionBench) -> None:
    """
    If the connection breaks before the server receives a request, nothing is written. The client cannot know this, so
    the outcome is unknown.
    """

    async def work(session: Session, writer: FencedWriter) -> Outcome[str]:
        bench.process.lose("request")
        return await writer.write(writing("/written"), lambda *_: None)

    outcome = bench.run(work)
    assert isinstance(outcome, Outcome)
    assert outcome.unknown == {"/written"}
    assert "/written" not in bench.ensemble.tree.znodes


def test_an_expired_session_is_ended(bench: SessionBench) -> None:
    """The product's session ends at once when ZooKeeper expires it. kazoo alone would continue with a new session."""

    async def work(session: Session, writer: FencedWriter) -> str | None:
        bench.ensemble.expire(session.id)
        await asyncio.sleep(2.0)
        return session.ended

    assert bench.run(work) == "expired or closed by the server"


def test_unanswered_requests_fail_when_the_session_ends(bench: SessionBench) -> None:
    """When the session ends, unanswered requests fail, because their answers would never arrive."""

    async def work(session: Session, writer: FencedWriter) -> None:
        bench.process.stall()
        asyncio.get_running_loop().call_later(1.0, session.end, "enough")
        with pytest.raises(SessionLostError, match="enough"):
            await session.get("/member")

    bench.run(work, limit_s=5.0)


def test_nothing_is_written_on_the_session_that_kazoo_opens_by_itself(bench: SessionBench) -> None:
    """Requests after the expiry fail, and nothing is written on the session that kazoo opens next."""

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


def test_no_candidate_enters_the_election_on_the_session_that_kazoo_opens_by_itself(bench: SessionBench) -> None:
    """
    Even if the event loop is notified late of the expiry, no candidate enters the election on the session that kazoo
    opens. Such a candidate would not lead, but block the other candidates.
    """
    layout = GroupLayout("g")

    async def work(session: Session, writer: FencedWriter) -> str | None:
        call_loop = session._call_loop

        def late(function: Callable[..., None], *arguments: object) -> None:
            is_end = KazooState.LOST in arguments
            bench.timeline.after(3.0 if is_end else 0.0, call_loop, function, *arguments)

        session._call_loop = late  # type: ignore[method-assign]
        await session.ensure(layout.parents)
        tasks = TaskSet(lambda _: None)
        context = session_context(session, tasks=tasks, runtime=bench.process.runtime)
        planner = cast(Any, SimpleNamespace(stop=lambda: None))
        candidacy = Candidacy(context, lambda _: planner, "/member")
        bench.ensemble.expire(session.id)
        while len(bench.process.sessions) == 1:  # noqa: ASYNC110 -- simulated time
            await asyncio.sleep(0.01)
        assert session.ended is None
        candidacy.enter()
        await asyncio.sleep(1.0)
        assert bench.ensemble.tree.children(layout.election) == []
        await asyncio.sleep(3.0)
        await tasks.cancel()
        return session.ended

    assert bench.run(work) == "expired or closed by the server"


def test_a_heartbeat_without_the_member_znode_renews_nothing(bench: SessionBench) -> None:
    """The session still exists and the member writes nothing else, so only the heartbeat detects the deletion."""

    async def work(session: Session, writer: FencedWriter) -> tuple[str | None, bool]:
        heartbeat = Heartbeat(session, "/member", 1_000, Metrics(), bench.process.runtime)
        heartbeat.start()
        await asyncio.sleep(1.5)
        assert session.gate.is_open(bench.timeline.now_s)
        assert isinstance(await session.transact([Delete("/member")]), Done)
        await asyncio.sleep(1.5)
        return session.ended, session.gate.is_open(bench.timeline.now_s)

    assert bench.run(work) == ("the member znode is gone", False)
