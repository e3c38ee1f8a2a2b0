"""The status store of a worker group: only owners report, and a status ends with the claim of its writer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import pytest

from kiel_groups.errors import SessionLostError
from kiel_groups.group.znodes.transactions import Answer, Delete, Operation
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.workers.values import ConnectorId, TaskId, Work
from tests.sim.worker_bench import LAYOUT, SimulatedWorker, WorkerBench

pytestmark = pytest.mark.sim

CONNECTOR, TASK = ConnectorId("c"), TaskId("c", 3)
RUNNING = WorkStatus(WorkState.RUNNING, "h:1", generation=4)
FAILED = WorkStatus(WorkState.FAILED, "h:1", "ValueError", 4)
UNASSIGNED = WorkStatus(WorkState.UNASSIGNED, "")


def claimed(workers: WorkerBench, *works: Work, worker_id: str = "w1") -> SimulatedWorker:
    """Return a worker that has claimed work of the connector "c", which exists."""
    worker = workers.worker(worker_id)
    workers.run(worker, worker.configuration.put_connector("c", {}))
    for work in works:
        workers.run(worker, worker.claim(work))
    return worker


def test_a_status_counts_while_the_claim_exists(workers: WorkerBench) -> None:
    """Work is unassigned before its owner reports, and as soon as the claim is gone."""
    worker = claimed(workers, CONNECTOR, TASK)

    async def read() -> list[WorkStatus]:
        return list((await worker.statuses.read([CONNECTOR, TASK])).values())

    assert workers.run(worker, read()) == [UNASSIGNED, UNASSIGNED]
    assert workers.run(worker, worker.statuses.put(TASK, FAILED))
    assert workers.run(worker, read()) == [UNASSIGNED, FAILED]
    assert workers.run(worker, worker.statuses.put(CONNECTOR, RUNNING))
    assert workers.run(worker, worker.statuses.put(TASK, RUNNING))
    assert workers.run(worker, read()) == [RUNNING, RUNNING]
    workers.run(worker, worker.release(TASK))
    assert workers.run(worker, read()) == [RUNNING, replace(RUNNING, state=WorkState.UNASSIGNED)]


def test_the_status_of_a_dead_worker_is_not_that_of_its_successor(workers: WorkerBench) -> None:
    """A failure that the last owner has reported is not shown for the next owner, which has not reported yet."""
    worker, other = claimed(workers, TASK), workers.worker("w2")
    workers.run(worker, worker.statuses.put(TASK, FAILED))
    workers.ensemble.expire(worker.session.id)
    workers.run(other, other.claim(TASK))
    shown = workers.run(other, other.statuses.read([TASK]))
    assert shown == {TASK: WorkStatus(WorkState.UNASSIGNED, "h:1", generation=4)}
    workers.run(other, other.statuses.put(TASK, RUNNING))
    assert workers.run(other, other.statuses.read([TASK])) == {TASK: RUNNING}


def test_the_status_of_a_deleted_connector_is_not_that_of_a_new_one(workers: WorkerBench) -> None:
    """A status from before the deletion does not count for a connector that is created again, under the same claim."""
    worker = claimed(workers, CONNECTOR)
    store = worker.configuration
    workers.run(worker, worker.statuses.put(CONNECTOR, FAILED))
    stored = workers.ensemble.tree.get(LAYOUT.status("c")).data
    workers.run(worker, store.delete_connector("c"))
    workers.write(LAYOUT.status("c"), stored)
    workers.run(worker, store.put_connector("c", {}))
    shown = workers.run(worker, worker.statuses.read([CONNECTOR]))
    assert shown == {CONNECTOR: WorkStatus(WorkState.UNASSIGNED, "h:1", generation=4)}
    workers.run(worker, worker.statuses.put(CONNECTOR, RUNNING))
    assert workers.run(worker, worker.statuses.read([CONNECTOR])) == {CONNECTOR: RUNNING}


def test_only_the_owner_of_existing_work_reports(workers: WorkerBench) -> None:
    """Without a claim, and for a deleted connector, nothing is stored."""
    worker = claimed(workers, CONNECTOR, TASK)
    assert not workers.run(worker, worker.statuses.put(TaskId("c", 4), RUNNING))
    assert workers.run(worker, worker.statuses.put_many({TASK: RUNNING, TaskId("c", 5): RUNNING})) == {TASK}
    workers.run(worker, worker.release(TASK))
    assert not workers.run(worker, worker.statuses.put(TASK, FAILED))
    workers.run(worker, worker.configuration.delete_connector("c"))
    assert not workers.run(worker, worker.statuses.put(CONNECTOR, RUNNING))
    assert workers.znodes(LAYOUT.statuses) == []


def test_the_status_of_a_connector_that_is_deleted_meanwhile_is_not_created(workers: WorkerBench) -> None:
    """If a connector is deleted after the look-up, the transaction that would create its status is refused."""
    worker, other = claimed(workers, CONNECTOR), workers.worker("w2")
    transact, deleted = worker.session.transact, []

    async def late(operations: Iterable[Operation]) -> Answer:
        listed = list(operations)
        if not deleted and any(operation.path == LAYOUT.status("c") for operation in listed):
            deleted.append("c")
            workers.timeline.after(0.0, other.process.start, other.configuration.delete_connector("c"))
            await asyncio.sleep(1.0)
        return await transact(listed)

    worker.session.transact = late  # type: ignore[method-assign]
    assert not workers.run(worker, worker.statuses.put(CONNECTOR, RUNNING))
    assert deleted
    assert workers.znodes(LAYOUT.statuses) == []


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("first", [True, False])
def test_a_status_is_stored_although_the_answer_is_lost(
    workers: WorkerBench, what: Literal["request", "reply"], first: bool
) -> None:
    """A lost answer is resolved by another write, also if the lost one has created the znode."""
    worker = claimed(workers, TASK)
    if not first:
        workers.run(worker, worker.statuses.put(TASK, RUNNING))
    worker.lose(what, LAYOUT.status("c", 3))
    assert workers.run(worker, worker.statuses.put(TASK, FAILED))
    assert workers.run(worker, worker.statuses.read([TASK])) == {TASK: FAILED}


@pytest.mark.parametrize("what", ["request", "reply"])
def test_the_newest_status_wins(workers: WorkerBench, what: Literal["request", "reply"]) -> None:
    """A status whose answer is lost is not written again after a newer one."""
    worker = claimed(workers, TASK)
    workers.run(worker, worker.statuses.put(TASK, UNASSIGNED))
    worker.lose(what, LAYOUT.status("c", 3))

    async def put(status: WorkStatus, delay_s: float) -> bool:
        await asyncio.sleep(delay_s)
        return await worker.statuses.put(TASK, status)

    assert workers.run_all((worker, lambda: put(RUNNING, 0.0)), (worker, lambda: put(FAILED, 0.01))) == [True, True]
    assert workers.run(worker, worker.statuses.read([TASK])) == {TASK: FAILED}
    assert worker.statuses._newest == {}


def test_many_statuses_take_few_transactions(workers: WorkerBench) -> None:
    """The first statuses of many tasks are stored in large transactions, and so are later ones."""
    tasks = [TaskId("c", number) for number in range(300)]
    worker = claimed(workers, *tasks)
    for most in (8, 5):
        before = len(workers.ensemble.log)
        assert workers.run(worker, worker.statuses.put_many(dict.fromkeys(tasks, RUNNING))) == set(tasks)
        assert len(workers.ensemble.log) - before <= most
    assert set(workers.run(worker, worker.statuses.read(tasks)).values()) == {RUNNING}


def test_statuses_are_stored_in_folders_that_an_operator_has_deleted(workers: WorkerBench) -> None:
    """A status is stored even if the folder above it is missing."""
    worker = claimed(workers, TASK, CONNECTOR)

    async def put(work: Work) -> bool:
        worker.session.client.delete_async(LAYOUT.statuses)
        return await worker.statuses.put(work, RUNNING)

    assert workers.run(worker, put(CONNECTOR))
    worker.session.client.delete_async(LAYOUT.status("c"))
    assert workers.run(worker, put(TASK))
    assert workers.run(worker, worker.statuses.read([TASK])) == {TASK: RUNNING}


def test_an_unreadable_status_says_so(workers: WorkerBench) -> None:
    """Garbage in a status is shown as its trace, until the owner reports again."""
    worker = claimed(workers, TASK)
    workers.run(worker, worker.statuses.put(TASK, RUNNING))
    workers.write(LAYOUT.status("c", 3), b"{")
    shown = workers.run(worker, worker.statuses.read([TASK]))[TASK]
    assert shown.state is WorkState.UNASSIGNED
    assert shown.trace.startswith(f"{LAYOUT.status('c', 3)}: not JSON")
    workers.run(worker, worker.statuses.put(TASK, RUNNING))
    assert workers.run(worker, worker.statuses.read([TASK])) == {TASK: RUNNING}


def test_a_worker_without_a_session_reports_nothing(workers: WorkerBench) -> None:
    """A worker that was frozen past its session cannot write over its successor's status."""
    worker, other = claimed(workers, TASK), workers.worker("w2")
    worker.process.freeze()
    workers.ensemble.expire(worker.session.id)
    workers.run(other, other.claim(TASK))
    workers.run(other, other.statuses.put(TASK, RUNNING))
    worker.process.thaw()
    with pytest.raises(SessionLostError):
        workers.run(worker, worker.statuses.put(TASK, FAILED))
    assert workers.run(other, other.statuses.read([TASK])) == {TASK: RUNNING}


def test_a_withdrawn_status_is_not_written(workers: WorkerBench) -> None:
    """After the release, another worker may have claimed the work, and the transaction would find that claim."""
    worker, other = claimed(workers, TASK), workers.worker("w2")
    exists_many = worker.session.exists_many

    async def slow(paths: Iterable[str]) -> object:
        found = await exists_many(paths)
        await asyncio.sleep(1.0)
        return found

    worker.session.exists_many = slow  # type: ignore[assignment, method-assign]
    reporting = worker.process.start(worker.statuses.put_many({TASK: FAILED}))
    workers.timeline.run_for(0.5)
    worker.process.call(worker.statuses.drop, TASK)
    workers.run(worker, worker.release(TASK))
    workers.run(other, other.claim(TASK))
    workers.timeline.run_until(reporting.done)
    assert workers.run(other, other.statuses.read([TASK])) == {TASK: UNASSIGNED}


def test_a_status_of_a_deleted_connector_is_refused(workers: WorkerBench) -> None:
    """Also if its znode is still there, and this worker has written it before."""
    worker = claimed(workers, TASK)
    workers.run(worker, worker.statuses.put(TASK, RUNNING))
    workers.run(worker, worker.session.transact([Delete(LAYOUT.connector("c"))]))
    assert not workers.run(worker, worker.statuses.put(TASK, FAILED))


def test_a_second_status_takes_one_round_trip(workers: WorkerBench) -> None:
    """The znode of a status that this worker has written exists. If an operator has deleted it, it is created again."""
    worker = claimed(workers, TASK)
    workers.run(worker, worker.statuses.put(TASK, RUNNING))
    reads = worker.session.exists_many
    worker.session.exists_many = None  # type: ignore[assignment, method-assign]
    assert workers.run(worker, worker.statuses.put(TASK, FAILED))
    worker.session.exists_many = reads  # type: ignore[method-assign]
    workers.run(worker, worker.session.transact([Delete(LAYOUT.status("c", 3))]))
    assert workers.run(worker, worker.statuses.put(TASK, RUNNING))
    assert workers.run(worker, worker.statuses.read([TASK])) == {TASK: RUNNING}
