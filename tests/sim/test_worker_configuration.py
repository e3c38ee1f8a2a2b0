"""The configuration store of a worker group: one sequence of changes, whatever happens between its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from kiel_groups.errors import (
    ClaimLostError,
    ConfigError,
    ConnectorExistsError,
    CoordinationError,
    ProtocolError,
    SessionLostError,
    UnknownConnectorError,
)
from kiel_groups.group.znodes.transactions import LARGEST_BYTES
from kiel_groups.group.znodes.worker_contents import TargetState
from kiel_groups.workers.stores.config_store import MOST_KEPT
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId
from tests.sim.worker_bench import LAYOUT, SimulatedWorker, WorkerBench

pytestmark = pytest.mark.sim


def test_a_connector_is_created_configured_paused_and_deleted(workers: WorkerBench) -> None:
    """Each change has the next offset. Tasks and the target state outlive a change of the settings."""
    worker = workers.worker()
    store = worker.configuration

    async def change() -> list[object]:
        found: list[object] = [await store.snapshot()]
        found.append(await store.put_connector("c/1", {"a": "1"}, is_new=True))
        found.append(await store.put_task_configs("c/1", [{"t": "1"}, {"t": "2"}]))
        found.append(await store.set_target_state("c/1", TargetState.PAUSED))
        found.append(await store.put_connector("c/1", {"a": "2"}))
        found.append(await store.snapshot())
        found.append(await store.delete_connector("c/1"))
        return [*found, await store.snapshot()]

    entry = ConnectorEntry({"a": "2"}, TargetState.PAUSED, ({"t": "1"}, {"t": "2"}))
    expected = [ConfigSnapshot(), 1, 2, 3, 4, ConfigSnapshot(4, {"c/1": entry}), 5, ConfigSnapshot(5)]
    assert workers.run(worker, change()) == expected
    history = workers.history()
    assert [(change.offset, change.what, change.keys) for change in history] == [
        (1, "created", ("a",)),
        (2, "tasks", ("t",)),
        (3, "paused", ()),
        (4, "configured", ("a",)),
        (5, "deleted", ()),
    ]
    assert {(change.connector, change.worker) for change in history} == {("c/1", "w1")}


def test_what_changes_nothing_is_not_written(workers: WorkerBench) -> None:
    """Equal tasks and the present target state leave the offset, so that no worker is notified in vain."""
    worker = workers.worker()
    store = worker.configuration

    async def change() -> list[int]:
        await store.put_connector("c", {})
        await store.put_task_configs("c", [{"t": "1"}])
        again = [
            await store.put_task_configs("c", [{"t": "1"}]),
            await store.set_target_state("c", TargetState.STARTED),
        ]
        return [*again, (await store.snapshot()).offset]

    assert workers.run(worker, change()) == [2, 2, 2]


def test_changes_that_do_not_fit_are_refused(workers: WorkerBench) -> None:
    """A connector that exists is not created, and one that does not exist is not changed."""
    worker = workers.worker()
    store = worker.configuration

    async def change() -> None:
        await store.put_connector("c", {})
        with pytest.raises(ConnectorExistsError, match="connector 'c' already exists"):
            await store.put_connector("c", {}, is_new=True)
        with pytest.raises(UnknownConnectorError):
            await store.put_task_configs("d", [])
        with pytest.raises(UnknownConnectorError):
            await store.set_target_state("d", TargetState.PAUSED)
        with pytest.raises(UnknownConnectorError):
            await store.delete_connector("d")
        with pytest.raises(ConfigError, match="should be texts"):
            await store.put_connector("d", {"x": 1})  # type: ignore[dict-item]

    workers.run(worker, change())
    assert workers.run(worker, store.snapshot()).offset == 1


def test_concurrent_changes_form_one_sequence(workers: WorkerBench) -> None:
    """Workers that change the configuration at the same time get different offsets, and no change is lost."""
    group = [workers.worker(f"w{number}") for number in range(3)]

    def changing(worker: SimulatedWorker) -> Callable[[], Awaitable[list[int]]]:
        async def change() -> list[int]:
            store = worker.configuration
            offsets = [await store.put_connector(f"{worker.worker_id}-{number}", {}) for number in range(5)]
            return [*offsets, *[await store.put_connector("shared", {worker.worker_id: ""}) for _ in range(5)]]

        return change

    found = workers.run_all(*((worker, changing(worker)) for worker in group))
    assert sorted(offset for offsets in found for offset in offsets) == list(range(1, 31))  # type: ignore[attr-defined]
    snapshot = workers.run(group[0], group[0].configuration.snapshot())
    assert snapshot.offset == 30
    assert len(snapshot.connectors) == 16
    history = workers.history()
    assert [change.offset for change in history] == list(range(1, 31))


def test_a_change_needs_the_offset_that_it_is_based_on(workers: WorkerBench) -> None:
    """A change that another one overtakes gets a later offset, even if an operator has deleted the history since."""
    worker, other = workers.worker("w1"), workers.worker("w2")
    read_base, overtaken = worker.configuration._read_base, []

    async def overtake() -> None:
        offset = await other.configuration.put_connector("d", {})
        other.session.client.delete_async(LAYOUT.history_entry(offset))

    async def late(connector: str) -> Any:
        base = await read_base(connector)
        if not overtaken:
            overtaken.append(connector)
            workers.timeline.after(0.0, other.process.start, overtake())
            await asyncio.sleep(2.0)
        return base

    worker.configuration._read_base = late  # type: ignore[method-assign]
    assert workers.run(worker, worker.configuration.put_connector("c", {})) == 2
    assert workers.run(worker, worker.configuration.snapshot()).offset == 2


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("others", [0, 3])
def test_a_change_whose_answer_is_lost_is_written_once(
    workers: WorkerBench, what: Literal["request", "reply"], others: int
) -> None:
    """A worker finds in the history whether a change was written whose answer is lost, also after other changes."""
    worker, other = workers.worker("w1"), workers.worker("w2")
    worker.lose(what, LAYOUT.config)

    async def change() -> int:
        return await worker.configuration.put_connector("c", {}, is_new=True)

    async def change_otherwise() -> None:
        for number in range(others):
            await other.configuration.put_connector(f"d{number}", {})

    offset, _ = workers.run_all((worker, change), (other, change_otherwise))
    history = workers.history()
    assert len(history) == 1 + others
    assert [entry.offset for entry in history if entry.connector == "c"] == [offset]


def test_a_change_whose_entry_is_gone_has_an_unknown_outcome(workers: WorkerBench) -> None:
    """After a hundred later changes, a worker cannot know whether its own was written, and does not write it again."""
    worker, other = workers.worker("w1"), workers.worker("w2")
    prove = worker.configuration._writer.prove
    proved: list[int] = []

    async def prove_late() -> None:
        proved.append(1)
        if len(proved) == 2:
            await asyncio.sleep(2.0)
        await prove()

    async def change() -> int:
        return await worker.configuration.put_connector("c", {}, is_new=True)

    async def change_otherwise() -> None:
        while not proved[1:]:  # noqa: ASYNC110 -- simulated time
            await asyncio.sleep(0.001)
        for _ in range(MOST_KEPT):
            await other.configuration.put_connector("d", {})

    worker.configuration._writer.prove = prove_late  # type: ignore[method-assign]
    worker.lose("reply", LAYOUT.config)
    found = workers.run_all((worker, change), (other, change_otherwise))
    assert isinstance(found[0], CoordinationError)
    assert "the outcome of a change of connector 'c' is not known" in str(found[0])


def test_a_worker_on_a_slow_server_decides_on_present_data() -> None:
    """Before a change, a worker waits until its server has all earlier changes; it may read old snapshots otherwise."""
    workers = WorkerBench(servers=3)
    worker, late = workers.worker("w1", server=0), workers.worker("w2", server=1)
    workers.ensemble.servers[1].lag_s = 0.5
    workers.run(worker, worker.configuration.put_connector("c", {}))
    workers.run(worker, worker.configuration.set_target_state("c", TargetState.PAUSED))
    assert workers.run(late, late.configuration.snapshot()) == ConfigSnapshot()
    assert workers.run(late, late.configuration.snapshot(current=True)).offset == 2
    workers.run(worker, worker.configuration.set_target_state("c", TargetState.STARTED))
    assert workers.run(late, late.configuration.set_target_state("c", TargetState.PAUSED)) == 4
    with pytest.raises(ConnectorExistsError):
        workers.run(late, late.configuration.put_connector("c", {}, is_new=True))


@pytest.mark.parametrize("seed", range(10))
def test_a_snapshot_has_all_changes_up_to_its_offset_and_no_other(seed: int) -> None:
    """Snapshots that are read during changes, on servers of different speed, show one moment each."""
    workers = WorkerBench(servers=3, seed=seed)
    writer, readers = workers.worker("w0", server=0), [workers.worker(f"w{n}", server=n) for n in (0, 1, 2)[1:]]
    workers.ensemble.servers[2].lag_s = 0.05

    async def change() -> None:
        for number in range(1, 61):
            # Some changes follow each other at once, and others after a pause.
            await asyncio.sleep(workers.timeline.random.choice([0.0, 0.03]))
            await writer.configuration.put_connector(f"c{number % 7}", {"at": str(number)})

    def reading(worker: SimulatedWorker) -> Callable[[], Awaitable[list[ConfigSnapshot]]]:
        async def read() -> list[ConfigSnapshot]:
            found = [ConfigSnapshot()]
            while found[-1].offset < 60:
                found.append(await worker.configuration.snapshot())
            return found

        return read

    found = workers.run_all((writer, change), *((reader, reading(reader)) for reader in readers))
    for snapshots in found[1:]:
        assert isinstance(snapshots, list)
        for snapshot in snapshots:
            newest = {f"c{number % 7}": str(number) for number in range(1, snapshot.offset + 1)}
            assert {name: entry.config["at"] for name, entry in snapshot.connectors.items()} == newest
        assert len({snapshot.offset for snapshot in snapshots}) > 5


def test_nothing_is_changed_after_the_end_of_the_session(workers: WorkerBench) -> None:
    """A worker whose session has expired changes nothing, and learns that from the error."""
    worker, other = workers.worker("w1"), workers.worker("w2")
    workers.ensemble.expire(worker.session.id)
    with pytest.raises(SessionLostError):
        workers.run(worker, worker.configuration.put_connector("c", {}))
    assert workers.run(other, other.configuration.snapshot()) == ConfigSnapshot()


def test_garbage_concerns_one_connector_only(workers: WorkerBench) -> None:
    """A connector whose znode has garbage has a problem and no task. It can be replaced and deleted, not changed."""
    worker = workers.worker()
    store = worker.configuration
    workers.run(worker, store.put_connector("good", {}))
    workers.run(worker, store.put_connector("bad", {}))
    for garbage in (b"{", b"\xff", b'{"version":1}'):
        workers.write(LAYOUT.connector("bad"), garbage)
        # Garbage is found by the next change.
        workers.run(worker, store.put_connector("good", {}))
        snapshot = workers.run(worker, store.snapshot())
        assert snapshot.connectors["good"] == ConnectorEntry({})
        assert snapshot.connectors["bad"].problem.startswith(f"{LAYOUT.connector('bad')}: ")
        with pytest.raises(ConfigError, match=r"connector 'bad' is unreadable: .*; replace its settings, or delete it"):
            workers.run(worker, store.set_target_state("bad", TargetState.PAUSED))
        with pytest.raises(ConfigError, match="is unreadable"):
            workers.run(worker, store.put_task_configs("bad", []))
    workers.run(worker, store.put_connector("bad", {"a": "1"}))
    assert workers.run(worker, store.snapshot()).connectors["bad"] == ConnectorEntry({"a": "1"})
    workers.write(LAYOUT.connector("bad"), b"")
    workers.run(worker, store.delete_connector("bad"))
    assert set(workers.run(worker, store.snapshot()).connectors) == {"good"}


def test_a_znode_that_is_no_connectors_is_ignored(workers: WorkerBench, caplog: pytest.LogCaptureFixture) -> None:
    """A znode whose name no connector has is ignored, with one warning."""
    worker = workers.worker()
    workers.write(f"{LAYOUT.connectors}/a b", b"{}")
    for _ in range(2):
        assert workers.run(worker, worker.configuration.snapshot()) == ConfigSnapshot()
    assert caplog.text.count("is not the znode of a connector") == 1


def test_garbage_in_the_offsets_znode_is_an_error(workers: WorkerBench) -> None:
    """Without the offset no order of changes is known, so neither a snapshot nor a change is possible."""
    worker = workers.worker()
    workers.write(LAYOUT.config, b"x")
    with pytest.raises(ProtocolError, match=f"^{LAYOUT.config}: not JSON"):
        workers.run(worker, worker.configuration.snapshot())
    with pytest.raises(ProtocolError, match=f"^{LAYOUT.config}: not JSON"):
        workers.run(worker, worker.configuration.put_connector("c", {}))


def test_the_repair_of_the_offsets_znode_loses_nothing(workers: WorkerBench) -> None:
    """What the error says repairs it: the configuration is what it was, and the next change has the next offset."""
    worker = workers.worker()
    store = worker.configuration
    for number in range(3):
        workers.run(worker, store.put_connector("c", {"n": str(number)}))
    before = workers.run(worker, store.snapshot())
    workers.write(LAYOUT.config, b"garbage")
    with pytest.raises(ProtocolError, match=f"the largest number in the names below {LAYOUT.history}"):
        workers.run(worker, store.snapshot())
    workers.write(LAYOUT.config, b'{"version":1,"offset":3}')
    assert workers.run(worker, store.snapshot()) == before
    assert workers.run(worker, store.put_connector("c", {})) == 4


def test_the_sequence_continues_after_an_emptied_offset(workers: WorkerBench) -> None:
    """If an operator empties the offset's znode, later changes have offsets above those in the history."""
    worker = workers.worker()
    store = worker.configuration
    for _ in range(3):
        workers.run(worker, store.put_connector("c", {}))
    workers.write(LAYOUT.config, b"")
    assert workers.run(worker, store.put_connector("c", {})) == 4


def test_deleted_folders_are_created_again(workers: WorkerBench) -> None:
    """If an operator deletes all that the workers have configured, the next change creates the folders again."""
    worker = workers.worker()

    async def change() -> int:
        client = worker.session.client
        for folder in (
            LAYOUT.statuses,
            LAYOUT.offsets,
            LAYOUT.owners,
            LAYOUT.history,
            LAYOUT.connectors,
            LAYOUT.config,
        ):
            client.delete_async(folder)
        return await worker.configuration.put_connector("c", {})

    assert workers.run(worker, change()) == 1


def test_a_connector_that_is_too_large_is_refused(workers: WorkerBench) -> None:
    """What does not fit into a znode is refused with its size; what just fits is stored with its entry."""
    worker = workers.worker()
    store = worker.configuration
    with pytest.raises(ConfigError, match=f"connector 'c': .* 0 tasks take 9[0-9]* bytes; at most {LARGEST_BYTES} fit"):
        workers.run(worker, store.put_connector("c", {"x": "y" * LARGEST_BYTES}))
    workers.run(worker, store.put_connector("c", {f"{n:03d}" + "k" * 900: "y" * 1_000 for n in range(500)}))
    with pytest.raises(ConfigError, match="9 tasks take"):
        workers.run(worker, store.put_task_configs("c", [{"x": "y" * 50_000}] * 9))
    assert workers.run(worker, store.snapshot()).offset == 1
    assert len(workers.ensemble.tree.get(LAYOUT.history_entry(1)).data) < 4_096


def test_the_history_has_the_last_hundred_changes_and_no_values(workers: WorkerBench) -> None:
    """Old entries are deleted, and no entry has the value of a setting."""
    worker = workers.worker()

    async def change() -> None:
        for number in range(MOST_KEPT + 5):
            await worker.configuration.put_connector("c", {"password": f"s3cret{number}"})
            await worker.configuration.put_task_configs("c", [{"token": f"s3cret{number}"}])

    workers.run(worker, change())
    offsets = [entry.offset for entry in workers.history()]
    assert offsets == list(range(MOST_KEPT + 11, 2 * MOST_KEPT + 11))
    entries = [workers.ensemble.tree.get(LAYOUT.history_entry(offset)).data for offset in offsets]
    assert not [entry for entry in entries if b"s3cret" in entry]
    assert b'"keys":["password"]' in entries[0]


def test_tasks_are_configured_under_the_claim_of_the_connector(workers: WorkerBench) -> None:
    """A worker that has lost the connector cannot replace its tasks."""
    worker = workers.worker()
    store, connector = worker.configuration, ConnectorId("c")
    claim = LAYOUT.owner("c")
    workers.run(worker, store.put_connector("c", {}))
    with pytest.raises(ClaimLostError, match=f"connector 'c': the claim {claim} is gone"):
        workers.run(worker, store.put_task_configs("c", [{}], claim=claim))
    workers.run(worker, worker.claim(connector))
    assert workers.run(worker, store.put_task_configs("c", [{}], claim=claim)) == 2
    workers.run(worker, worker.release(connector))
    with pytest.raises(ClaimLostError):
        workers.run(worker, store.put_task_configs("c", [{}, {}], claim=claim))
    assert workers.run(worker, store.snapshot()).connectors["c"].tasks == ({},)


def test_a_follower_gets_each_change(workers: WorkerBench) -> None:
    """A follower gets the present configuration, and a newer one after each change, also over a new connection."""
    worker, other = workers.worker("w1"), workers.worker("w2")
    seen: list[int] = []
    following = worker.process.start(worker.configuration.follow(lambda snapshot: seen.append(snapshot.offset)))
    workers.timeline.run_until(lambda: seen == [0])
    workers.run(other, other.configuration.put_connector("c", {}))
    workers.timeline.run_until(lambda: seen == [0, 1])
    worker.process.reset()
    workers.timeline.run_for(2.0)
    assert seen == [0, 1]
    workers.run(other, other.configuration.delete_connector("c"))
    workers.timeline.run_until(lambda: seen == [0, 1, 2])
    workers.write(LAYOUT.config, b"x")
    workers.timeline.run_for(1.0)
    workers.write(LAYOUT.config, b'{"offset":9,"version":1}')
    workers.timeline.run_until(lambda: seen == [0, 1, 2, 9])
    workers.ensemble.expire(worker.session.id)
    workers.timeline.run_until(following.done)
    assert isinstance(following.exception(), SessionLostError)
