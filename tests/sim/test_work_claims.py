"""Claims of work on simulated time: one owner at a time, although answers are lost and znodes deleted."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any, Literal

import pytest

from kiel_groups.errors import ClaimLostError, SessionLostError
from kiel_groups.group.znodes.transactions import Check, Create, Done
from kiel_groups.workers.stores.work_claims import WorkClaims
from kiel_groups.workers.values import ConnectorId, TaskId, Work
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from tests.sim.worker_bench import LAYOUT, SimulatedWorker, WorkerBench

pytestmark = pytest.mark.sim

TASK = TaskId("c", 0)
OWNER = LAYOUT.owner("c", 0)


class Claimant:
    """A worker of the bench with its claims, and the work whose claims have disappeared."""

    def __init__(self, bench: WorkerBench, worker_id: str) -> None:
        self.bench = bench
        self.worker = bench.worker(worker_id)
        self.gone: list[Work] = []
        writer = FencedWriter(self.worker.session, LAYOUT.worker(worker_id), _caught_up)

        async def create() -> WorkClaims:
            return WorkClaims(self.worker.session, writer, LAYOUT, worker_id)

        self.claims = bench.run(self.worker, create())
        self.driver = self.worker.process.start(self.claims.run(self.gone.append))

    def begin(self, work: Work) -> asyncio.Task[int]:
        return self.worker.process.start(self.claims.claim(work))

    def claim(self, work: Work = TASK) -> int:
        task = self.begin(work)
        self.bench.timeline.run_until(task.done, 30.0)
        return task.result()

    def release(self, work: Work = TASK, *operations: Any) -> bool:
        return self.bench.run(self.worker, self.claims.release(work, operations))

    def until(self, condition: Callable[[], object]) -> None:
        self.bench.timeline.run_until(condition, 30.0)


async def _caught_up() -> None:
    pass


def owner(bench: WorkerBench, path: str = OWNER) -> bytes | None:
    node = bench.ensemble.tree.znodes.get(path)
    return None if node is None else node.data


def test_a_claim_is_an_ephemeral_znode_whose_zxid_is_the_token(workers: WorkerBench) -> None:
    """The znode has the worker's id; a later claim has a larger token; a release deletes the znode."""
    first = Claimant(workers, "w1")
    token = first.claim()
    assert owner(workers) == b"w1"
    assert token == workers.ensemble.tree.znodes[OWNER].czxid
    assert first.claims.owns(TASK)
    assert first.release()
    assert owner(workers) is None
    assert not first.claims.owns(TASK)
    assert first.claim() > token


def test_a_successor_waits_for_the_release(workers: WorkerBench) -> None:
    """A claim of another worker's work is done once the owner has released it, and not before."""
    first, second = Claimant(workers, "w1"), Claimant(workers, "w2")
    token = first.claim()
    waiting = second.begin(TASK)
    workers.timeline.run_for(2.0)
    assert not waiting.done()
    assert TASK in second.claims._contended
    assert first.release()
    second.until(waiting.done)
    assert waiting.result() > token
    assert owner(workers) == b"w2"


def test_a_successor_waits_for_the_end_of_a_frozen_workers_session(workers: WorkerBench) -> None:
    """The frozen worker's claims end with its session; when it wakes up, its release is refused."""
    first, second = Claimant(workers, "w1"), Claimant(workers, "w2")
    first.claim()
    waiting = second.begin(TASK)
    workers.timeline.run_for(1.0)
    first.worker.process.freeze()
    workers.timeline.run_for(1.0)
    assert not waiting.done()
    workers.ensemble.expire(first.worker.session.id)
    second.until(waiting.done)
    first.worker.process.thaw()
    with pytest.raises(SessionLostError):
        first.release()
    assert owner(workers) == b"w2"
    first.until(first.driver.done)
    with pytest.raises(SessionLostError):
        first.claim(ConnectorId("c"))


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_claim_whose_answer_is_lost_is_resolved(workers: WorkerBench, what: Literal["request", "reply"]) -> None:
    """The owner znodes are read: one that was created is this worker's claim, one that was not is created."""
    first = Claimant(workers, "w1")
    first.worker.lose(what, OWNER)
    assert first.claim() == workers.ensemble.tree.znodes[OWNER].czxid


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_release_whose_answer_is_lost_is_resolved(workers: WorkerBench, what: Literal["request", "reply"]) -> None:
    """The owner znode is gone after the call, whether or not the lost transaction was executed."""
    first = Claimant(workers, "w1")
    first.claim()
    first.worker.lose(what, OWNER)
    assert first.release()
    assert owner(workers) is None
    assert first.gone == []


def test_many_claims_share_transactions(workers: WorkerBench) -> None:
    """A worker claims a hundred tasks of two connectors, of which another has one, with few transactions."""
    first, second = Claimant(workers, "w1"), Claimant(workers, "w2")
    second.claim(TaskId("d", 7))
    works: list[Work] = [TaskId(name, number) for name in "cd" for number in range(50)]
    before = len(workers.ensemble.log)
    claiming = [first.begin(work) for work in works]
    first.until(lambda: sum(task.done() for task in claiming) == 99)
    assert len(workers.ensemble.log) - before < 10
    assert not claiming[57].done()


def test_a_cancelled_claim_leaves_no_znode(workers: WorkerBench) -> None:
    """A worker that does not want the work any more releases what was created meanwhile, or stops waiting."""
    first, second = Claimant(workers, "w1"), Claimant(workers, "w2")
    for after_s in (number * 0.0005 for number in range(60)):
        claiming = first.begin(TASK)
        workers.timeline.run_for(after_s)
        claiming.cancel()
        workers.timeline.run_for(1.0)
        assert first.claims.owns(TASK) == (claiming.done() and not claiming.cancelled())
        assert (owner(workers) is None) == (not first.claims.owns(TASK))
        if first.claims.owns(TASK):
            first.release()
    token = first.claim()
    waiting = second.begin(TASK)
    workers.timeline.run_for(1.0)
    waiting.cancel()
    first.release()
    workers.timeline.run_for(1.0)
    assert owner(workers) is None
    assert first.claim() > token


def test_a_deleted_owner_znode_is_noticed(workers: WorkerBench) -> None:
    """A watch tells the worker, also if another worker has claimed the work since; releasing that changes nothing."""
    first, second = Claimant(workers, "w1"), Claimant(workers, "w2")
    first.claim()
    workers.run(second.worker, second.worker.session.transact([Check(OWNER)]))
    waiting = second.begin(TASK)
    workers.timeline.run_for(1.0)
    workers.run(second.worker, second.worker.release(TASK))
    second.until(waiting.done)
    workers.timeline.run_for(1.0)
    assert first.gone == [TASK]
    assert not first.claims.owns(TASK)
    assert first.release()
    assert owner(workers) == b"w2"


def test_deleted_folders_are_created_again(workers: WorkerBench) -> None:
    """If an operator deletes the folder of a connector's owner znodes, the next claim creates it."""
    first = Claimant(workers, "w1")
    first.claim()
    first.release()
    workers.run(first.worker, _delete(first.worker, LAYOUT.connector_owners("c")))
    assert first.claim()
    assert owner(workers) == b"w1"


async def _delete(worker: SimulatedWorker, path: str) -> None:
    worker.session.client.delete_async(path)


def test_a_release_writes_more_in_its_transaction(workers: WorkerBench) -> None:
    """What is written with a release is there afterwards; if ZooKeeper refuses it, the claim stays."""
    first = Claimant(workers, "w1")
    first.claim()
    path = f"{LAYOUT.offsets}/x"
    assert first.release(TASK, Create(path, b"1"))
    assert owner(workers, path) == b"1"
    first.claim()
    assert not first.release(TASK, Create(path, b"2"))
    assert owner(workers) == b"w1"
    assert owner(workers, path) == b"1"
    assert first.claims.owns(TASK)
    assert first.release()


def test_a_release_of_a_lost_claim_says_that_nothing_more_is_written(workers: WorkerBench) -> None:
    """The owner znode is deleted long before the release, or right before it; another worker may have the work."""
    first, path = Claimant(workers, "w1"), f"{LAYOUT.offsets}/x"
    for pause_s in (1.0, 0.0):
        first.claim()
        workers.run(first.worker, _delete(first.worker, OWNER))
        workers.timeline.run_for(pause_s)
        with pytest.raises(ClaimLostError, match=f"c-0: its claim {OWNER} is gone"):
            first.release(TASK, Create(path, b"1"))
        assert not first.claims.owns(TASK)
    assert owner(workers, path) is None


def test_a_broken_connection_keeps_the_claims(workers: WorkerBench) -> None:
    """Watches fire when the connection breaks; the claims are read again, and are still there."""
    first = Claimant(workers, "w1")
    first.claim()
    (server,) = workers.ensemble.servers
    workers.ensemble.crash(server)
    workers.timeline.run_for(1.0)
    workers.ensemble.heal(server)
    first.until(lambda: first.worker.session.trusted)
    workers.timeline.run_for(2.0)
    assert first.gone == []
    assert isinstance(workers.run(first.worker, first.worker.session.transact([Check(OWNER)])), Done)
    assert first.release()


def test_a_claim_that_is_granted_while_its_caller_is_cancelled_is_released(workers: WorkerBench) -> None:
    """The driver may have finished the claim in the same step of the event loop in which the caller is cancelled."""
    claimant = Claimant(workers, "w1")
    waiting = claimant.begin(TASK)
    granted = claimant.claims._sorted_out

    def cancelling(found: Any) -> Any:
        free = granted(found)
        if claimant.claims.owns(TASK):
            waiting.cancel()
        return free

    claimant.claims._sorted_out = cancelling  # type: ignore[method-assign]
    claimant.until(waiting.done)
    assert waiting.cancelled()
    claimant.until(lambda: not claimant.claims.owns(TASK))
    assert owner(workers) is None


def test_a_release_during_the_read_of_the_owner_is_not_missed(workers: WorkerBench) -> None:
    """The watch of the owner znode fires before the read of all wanted work has returned."""
    first, second = Claimant(workers, "w1"), Claimant(workers, "w2")
    first.claim()
    exists_many = second.worker.session.exists_many

    async def slow(paths: Any, watchers: Any = None) -> Any:
        nodes = await exists_many(paths, watchers)
        if OWNER in paths and nodes[0] is not None:
            second.worker.session.exists_many = exists_many  # type: ignore[method-assign]
            await asyncio.sleep(1.0)
        return nodes

    second.worker.session.exists_many = slow  # type: ignore[method-assign]
    waiting = second.begin(TASK)
    workers.timeline.run_for(0.5)
    assert first.release()
    second.until(waiting.done)
    assert owner(workers) == b"w2"


def test_claims_that_nobody_waits_for_end_silently(workers: WorkerBench) -> None:
    """The release of a claim whose caller was cancelled may end with the session; no error is left over."""
    claimant = Claimant(workers, "w1")
    claimant.claim()
    claimant.worker.process.call(claimant.claims._release_unused, TASK)
    claimant.worker.process.call(claimant.claims.end)
    workers.timeline.run_for(1.0)
    gc.collect()
    assert workers.timeline.failures == []
