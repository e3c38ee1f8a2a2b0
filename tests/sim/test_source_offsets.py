"""The source offsets of a worker group: stored by the owner of a task only, whatever happens on the way."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from kiel_groups.errors import ClaimLostError, ConfigError, ProtocolError, SessionLostError
from kiel_groups.group.znodes.transactions import Delete, Done
from kiel_groups.group.znodes.worker_contents import SourceOffset, partition_digest
from kiel_groups.workers.values import TaskId
from tests.sim.worker_bench import LAYOUT, SimulatedWorker, WorkerBench

pytestmark = pytest.mark.sim

TASK = TaskId("c", 0)
FILE: dict[str, Any] = {"file": "a"}
OFFSETS = LAYOUT.connector_offsets("c")
PATH = LAYOUT.source_offset("c", partition_digest(FILE))


def claimed(workers: WorkerBench) -> SimulatedWorker:
    """Return a worker that has claimed the task 0 of the connector "c"."""
    worker = workers.worker()
    workers.run(worker, worker.claim(TASK))
    return worker


def test_offsets_are_read_as_they_were_written(workers: WorkerBench) -> None:
    """Each partition has its last offset, and one without an offset has None."""
    worker = claimed(workers)
    other = {"file": "b"}

    async def work() -> list[Any]:
        found: list[Any] = [await worker.offsets.read("c", FILE)]
        await worker.offsets.write(TASK, [(FILE, {"at": 1}), (other, {"at": 7}), (FILE, {"at": 2})])
        found.append(await worker.offsets.read("c", FILE))
        await worker.offsets.write(TASK, [(FILE, {"at": 3})])
        return [*found, *[await worker.offsets.read("c", partition) for partition in (other, {}, FILE)]]

    assert workers.run(worker, work()) == [None, {"at": 2}, {"at": 7}, None, {"at": 3}]
    assert workers.znodes(OFFSETS) == sorted(map(partition_digest, [FILE, other]))


def test_a_task_without_its_claim_stores_nothing(workers: WorkerBench) -> None:
    """A worker that has released a task, or never had it, cannot move its offsets."""
    worker = claimed(workers)
    workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 1})]))
    workers.run(worker, worker.release(TASK))
    with pytest.raises(ClaimLostError, match=f"task c-0: its claim {LAYOUT.owner('c', 0)} is gone"):
        workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 2}), ({}, {})]))
    assert workers.run(worker, worker.offsets.read("c", FILE)) == {"at": 1}
    assert workers.znodes(OFFSETS) == [partition_digest(FILE)]


def test_a_frozen_worker_does_not_move_the_offsets_of_its_successor(workers: WorkerBench) -> None:
    """After its session, a worker's write is refused, although the owner znode of the task exists: its successor's."""
    worker, other = claimed(workers), workers.worker("w2")
    worker.process.freeze()
    workers.ensemble.expire(worker.session.id)
    workers.run(other, other.claim(TASK))
    workers.run(other, other.offsets.write(TASK, [(FILE, {"at": 9})]))
    worker.process.thaw()
    with pytest.raises(SessionLostError):
        workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 2})]))
    assert workers.run(other, other.offsets.read("c", FILE)) == {"at": 9}


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("first", [True, False])
def test_offsets_are_stored_although_the_answer_is_lost(
    workers: WorkerBench, what: Literal["request", "reply"], first: bool
) -> None:
    """A lost answer is resolved by another write, also if the lost one has created the znode."""
    worker = claimed(workers)
    if not first:
        workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 1})]))
    worker.lose(what, PATH)
    workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 2})]))
    assert workers.run(worker, worker.offsets.read("c", FILE)) == {"at": 2}


def test_many_offsets_take_few_transactions(workers: WorkerBench) -> None:
    """Offsets are stored in large transactions, but none that a server refuses."""
    worker = claimed(workers)
    many = [({"n": number}, {"at": "x" * 2_000}) for number in range(1_000)]
    for _ in range(2):
        before = len(workers.ensemble.log)
        workers.run(worker, worker.offsets.write(TASK, many))
        written = [len(entry.changes) for entry in workers.ensemble.log[before:] if len(entry.changes) > 1]
        assert sum(written) == 1_000
        assert 5 <= len(written) <= 7
    assert len(workers.znodes(OFFSETS)) == 1_000


def test_offsets_that_an_operator_deletes_meanwhile_are_stored(workers: WorkerBench) -> None:
    """If an operator deletes an offset, and the folder, between the look-up and the write, both are created again."""
    worker = claimed(workers)
    workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 1})]))
    operations = worker.offsets._operations
    deleted: list[str] = []

    async def late(connector: str, data: dict[str, bytes]) -> Any:
        found = await operations(connector, data)
        if not deleted:
            deleted.append(PATH)
            worker.session.client.delete_async(PATH)
            worker.session.client.delete_async(LAYOUT.connector_offsets("c"))
        return found

    worker.offsets._operations = late  # type: ignore[method-assign]
    workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 2}), ({}, {"at": 1})]))
    assert workers.run(worker, worker.offsets.read("c", FILE)) == {"at": 2}
    assert workers.run(worker, worker.offsets.read("c", {})) == {"at": 1}


def test_offsets_are_stored_with_the_release_of_the_claim(workers: WorkerBench) -> None:
    """A worker can store the last offsets in the transaction that releases the task."""
    worker = claimed(workers)

    async def release() -> object:
        written = await worker.offsets.operations(TASK, [(FILE, {"at": 5})])
        return await worker.session.transact([*written, Delete(LAYOUT.owner("c", 0))])

    assert isinstance(workers.run(worker, release()), Done)
    assert workers.run(worker, worker.offsets.read("c", FILE)) == {"at": 5}


def test_garbage_in_an_offset_is_an_error(workers: WorkerBench) -> None:
    """A task does not start from the beginning because its offset is unreadable; a new offset replaces the garbage."""
    worker = claimed(workers)
    for garbage in (b"", b"x", SourceOffset({"file": "b"}, {}).encode()):
        workers.write(PATH, garbage)
        with pytest.raises(ProtocolError, match=f"^{PATH}: "):
            workers.run(worker, worker.offsets.read("c", FILE))
    workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 2})]))
    assert workers.run(worker, worker.offsets.read("c", FILE)) == {"at": 2}


def test_offsets_that_cannot_be_stored_are_refused(workers: WorkerBench) -> None:
    """
    An offset that is no JSON object is refused before anything of its batch is stored. Runners refuse those that are
    too large.
    """
    worker = claimed(workers)
    with pytest.raises(ConfigError, match="no form in JSON"):
        workers.run(worker, worker.offsets.write(TASK, [(FILE, {"at": 1}), ({}, {"x": {1, 2}})]))
    assert workers.ensemble.tree.znodes.get(OFFSETS) is None
