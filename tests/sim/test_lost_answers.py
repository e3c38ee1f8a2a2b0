"""Lost and refused requests: repeated reads, renewals of the lease, and partly refused writes."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.group.lease import lease_deadline
from kiel_groups.group.znodes.transactions import Check, Create, Done, Failure, Refused, Unknown
from kiel_groups.zookeeper.fenced_writes import FencedWriter, Outcome
from kiel_groups.zookeeper.session import Node, Session
from tests.sim.session_bench import SessionBench

pytestmark = pytest.mark.sim


def test_a_read_whose_answer_is_lost_is_repeated(bench: SessionBench) -> None:
    """The member repeats a read whose answer is lost. It does not mistake the lost answer for a missing znode."""

    async def work(session: Session, writer: FencedWriter) -> tuple[Node | None, float]:
        bench.timeline.after(0.0, bench.process.reset)
        return await session.get("/member"), session._metrics.total("zookeeper_reads_repeated")

    node, repeated = bench.run(work)  # type: ignore[misc]
    assert node is not None
    assert repeated == 1


def test_a_successful_transaction_renews_the_lease_from_its_sending(bench: SessionBench) -> None:
    """
    Like a heartbeat, any successful transaction renews the lease from its sending. A read, a refusal and a lost answer
    do not.
    """

    async def work(session: Session, writer: FencedWriter) -> None:
        await asyncio.sleep(1.0)
        sent_s = bench.timeline.now_s
        assert isinstance(await session.transact([Check("/member")]), Done)
        renewed_s = lease_deadline(sent_s, session.timeout_ms)
        assert session.gate.deadline_s == renewed_s
        await asyncio.sleep(1.0)
        assert await session.get("/member") is not None
        assert session.gate.deadline_s == renewed_s
        assert isinstance(await session.transact([Create("/member")]), Refused)
        assert session.gate.deadline_s == renewed_s
        bench.process.lose("reply")
        assert isinstance(await session.transact([Check("/member")]), Unknown)
        assert session.gate.deadline_s == renewed_s

    bench.run(work)


def test_a_refused_operation_is_dropped_and_the_rest_is_written(bench: SessionBench) -> None:
    """
    If one operation is refused, the rest of the write succeeds. So a contended claim neither delays other claims nor
    ends the session.
    """
    paths = ["/first", "/second", "/third"]

    async def work(session: Session, writer: FencedWriter) -> Outcome[str]:
        assert isinstance(await session.transact([Create("/second")]), Done)
        return await writer.write({path: (Create(path),) for path in paths}, lambda *_: None)

    outcome = bench.run(work)
    assert isinstance(outcome, Outcome)
    assert outcome.dropped == {"/second": Failure.NODE_EXISTS}
    assert list(outcome.done) == ["/first", "/third"]
