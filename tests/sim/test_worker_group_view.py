"""What tools see of a worker group: the same as its workers, without a session of a worker."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus, encode_config_offset
from kiel_groups.workers.stores import worker_group_view
from kiel_groups.workers.stores.worker_group_view import describe_workers
from kiel_groups.workers.values import ConnectorId, TaskId
from tests.fakes import Host, fake_client
from tests.sim.worker_bench import LAYOUT, WorkerBench

pytestmark = pytest.mark.sim

CONNECTOR, TASK = ConnectorId("c/1"), TaskId("c/1", 0)
RUNNING, FAILED = WorkStatus(WorkState.RUNNING, "h:1"), WorkStatus(WorkState.FAILED, "h:1", "ValueError", 2)


def started(workers: WorkerBench) -> KazooClient:
    """Return a client as tools have it."""
    client = fake_client(Host(workers.ensemble))
    client.start()
    return client


def test_tools_see_what_workers_see(workers: WorkerBench) -> None:
    """Configuration, statuses, history and owners are those that the stores of a worker read."""
    worker = workers.worker()

    async def work() -> None:
        await worker.configuration.put_connector("c/1", {"a": "1"})
        await worker.configuration.put_task_configs("c/1", [{}])
        for claimed, status in ((CONNECTOR, RUNNING), (TASK, FAILED)):
            await worker.claim(claimed)
            assert await worker.statuses.put(claimed, status)

    workers.run(worker, work())
    client = started(workers)
    group = describe_workers(client, "g")
    assert group.configuration == workers.run(worker, worker.configuration.snapshot())
    assert group.statuses == {CONNECTOR: RUNNING, TASK: FAILED}
    assert group.owners == {CONNECTOR: "w1", TASK: "w1"}
    assert list(group.workers) == ["w1"]
    assert list(group.history) == workers.history()
    workers.ensemble.expire(worker.session.id)
    after = describe_workers(client, "g")
    assert {status.state for status in after.statuses.values()} == {WorkState.UNASSIGNED}
    assert (after.workers, after.owners) == ({}, {})


def test_tools_see_garbage_that_workers_have_not_read_yet(workers: WorkerBench) -> None:
    """A worker reads the connectors again when the configuration offset has moved; an operator does not move it."""
    worker = workers.worker()
    workers.run(worker, worker.configuration.put_connector("c", {"a": "1"}))
    known = workers.run(worker, worker.configuration.snapshot())
    client = started(workers)
    client.set(LAYOUT.connector("c"), b"garbage")
    assert LAYOUT.connector("c") in describe_workers(client, "g").configuration.connectors["c"].problem
    assert workers.run(worker, worker.configuration.snapshot()) == known
    workers.run(worker, worker.configuration.put_connector("d", {"a": "1"}))
    assert workers.run(worker, worker.configuration.snapshot()).connectors["c"].problem


def test_a_group_without_workers_is_described(workers: WorkerBench) -> None:
    """A group that has no znodes of workers has no connector."""
    assert describe_workers(started(workers), "g").configuration.connectors == {}


def test_a_configuration_that_changes_meanwhile_is_read_again(
    workers: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools read the znodes until the configuration has not changed between two reads."""
    workers.worker()
    client, reads = started(workers), []
    read = worker_group_view.read_workers

    def slow(client: KazooClient, group: str) -> object:
        found = read(client, group)
        reads.append(len(reads))
        if len(reads) < 3:
            client.set(LAYOUT.config, encode_config_offset(len(reads)))
        return found

    monkeypatch.setattr(worker_group_view, "read_workers", slow)
    assert describe_workers(client, "g").configuration.offset == 2
    assert len(reads) == 4
