"""What is left of a deleted connector: its source offsets, and its statuses only until the next clean-up."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.workers.stores.config_store import ConfigStore
from kiel_groups.workers.values import ConnectorId, TaskId
from tests.sim.worker_bench import LAYOUT, WorkerBench

pytestmark = pytest.mark.sim

RUNNING = WorkStatus(WorkState.RUNNING, "h:1")


def test_a_deleted_connector_leaves_its_source_offsets_only(workers: WorkerBench) -> None:
    """Statuses and the empty folder of claims are deleted with a connector; its source offsets stay, as in Connect."""
    worker = workers.worker()
    store, task = worker.configuration, TaskId("c", 0)

    async def work() -> None:
        await store.put_connector("c", {})
        await worker.claim(task)
        assert await worker.statuses.put(task, RUNNING)
        await worker.offsets.write(task, [({"file": "f"}, {"position": 3})])
        await worker.release(task)
        await store.delete_connector("c")

    workers.run(worker, work())
    assert [workers.znodes(folder) for folder in (LAYOUT.connectors, LAYOUT.statuses, LAYOUT.owners)] == [[], [], []]
    workers.run(worker, store.put_connector("c", {}))
    assert workers.run(worker, worker.statuses.read([task])) == {task: WorkStatus(WorkState.UNASSIGNED, "")}
    assert workers.run(worker, worker.offsets.read("c", {"file": "f"})) == {"position": 3}


def test_an_interrupted_clean_up_is_resumed_by_another_worker(workers: WorkerBench) -> None:
    """If the session of the worker that deletes a connector ends, another worker deletes the statuses later."""
    worker, other = workers.worker("w1"), workers.worker("w2")
    works = [ConnectorId("c"), *(TaskId("c", number) for number in range(250))]

    async def work() -> int:
        await worker.configuration.put_connector("c", {})
        for claimed in works:
            await worker.claim(claimed)
        await worker.statuses.put_many(dict.fromkeys(works, RUNNING))
        leftovers = worker.configuration._leftovers

        async def interrupted() -> object:
            worker.session.end("killed")
            return await leftovers()

        worker.configuration._leftovers = interrupted  # type: ignore[assignment, method-assign]
        return await worker.configuration.delete_connector("c")

    assert workers.run(worker, work()) == 2
    assert workers.znodes(LAYOUT.statuses) == ["c"]
    workers.run(other, other.configuration.clean_up())
    assert workers.znodes(LAYOUT.statuses) == []
    assert workers.znodes(LAYOUT.owners) == ["c"]
    workers.ensemble.expire(worker.session.id)
    workers.run(other, other.configuration.clean_up())
    assert workers.znodes(LAYOUT.owners) == []


def test_a_clean_up_leaves_a_connector_that_is_created_again(
    workers: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a connector is created again between the reads and the deletions of a clean-up, its status stays."""
    worker, other = workers.worker("w1"), workers.worker("w2")
    connector = ConnectorId("c")
    workers.write(LAYOUT.status("c"), b"old")
    leftovers, reads = ConfigStore._leftovers, []

    async def create_again() -> None:
        await other.configuration.put_connector("c", {})
        await other.claim(connector)
        assert await other.statuses.put(connector, RUNNING)

    async def late(deleted: ConfigStore) -> object:
        found = await leftovers(deleted)
        reads.append(sorted(path for path, _ in found))
        if not reads[1:]:
            workers.timeline.after(0.0, other.process.start, create_again())
            await asyncio.sleep(2.0)
        return found

    monkeypatch.setattr(ConfigStore, "_leftovers", late)
    workers.run(worker, worker.configuration.clean_up())
    assert reads == [[LAYOUT.status("c")], []]
    assert workers.run(worker, worker.statuses.read([connector])) == {connector: RUNNING}
