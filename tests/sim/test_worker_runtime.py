"""Groups of workers on simulated time: every task runs under one claim, whatever happens to its worker."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest

from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.worker_contents import SourceOffset, WorkState, partition_digest
from kiel_groups.workers.values import ConnectorId, TaskId
from tests.sim.worker_group_bench import LAYOUT, WorkerGroupBench

pytestmark = pytest.mark.sim


def stored(bench: WorkerGroupBench, task: str) -> int | None:
    """Return the stored source offset of a task."""
    path = LAYOUT.source_offset(task.rpartition("-")[0], partition_digest({"task": task}))
    node = bench.ensemble.tree.znodes.get(path)
    if node is None:
        return None
    found: int = SourceOffset.parse(node.data, path).offset["next"]
    return found


def test_a_new_connector_runs_with_its_tasks() -> None:
    """A created connector is assigned, configures its tasks, and these are assigned; their records arrive once."""
    bench = WorkerGroupBench()
    bench.start("w1", "w2")
    bench.create("c", tasks_max="3", limit="25")
    bench.until_running("c", 3)
    for task in ("c-0", "c-1", "c-2"):
        bench.until_delivered(task, 25)
        assert bench.delivered("t", task) == list(range(1, 26))
    assert set(bench.owned(ConnectorId("c"), *(TaskId("c", n) for n in range(3))).values()) == {"w1", "w2"}
    bench.timeline.run_for(1.0)
    assert stored(bench, "c-0") == 26
    states = bench.workers["w1"].states("c")
    assert {status.state for status in states.values()} == {WorkState.RUNNING}
    assert {status.worker for status in states.values()} == {"w1:8083", "w2:8083"}


def test_a_stopped_worker_gives_everything_back_first() -> None:
    """Its tasks stop in order, their offsets are stored with the release, and the other worker continues there."""
    bench = WorkerGroupBench()
    first, _ = bench.start("w1", "w2")
    bench.create("c", tasks_max="2", limit="400")
    bench.until_running("c", 2)
    bench.until_delivered("c-0", 30)
    first.close()
    bench.until_running("c", 2)
    for task in ("c-0", "c-1"):
        bench.until_delivered(task, 400)
        assert bench.delivered("t", task) == list(range(1, 401))
    assert set(bench.owned(TaskId("c", 0), TaskId("c", 1)).values()) == {"w2"}


def test_the_successor_of_a_killed_worker_waits_for_its_session() -> None:
    """Its owner znodes exist until its session expires; then its tasks continue after the stored offsets."""
    bench = WorkerGroupBench()
    bench.start("w1", "w2")
    bench.create("c", tasks_max="2", limit="500")
    bench.until_running("c", 2)
    bench.until_delivered("c-0", 30)
    victim = bench.owner(TaskId("c", 0))
    assert victim is not None
    bench.workers[victim].process.kill()
    bench.until_delivered("c-0", 500)
    assert set(bench.delivered("t", "c-0")) == set(range(1, 501))
    starts = [call for call in bench.counts.calls if call.method == "start" and call.work == "c-0"]
    assert starts[-1].token > starts[0].token


def test_a_frozen_worker_delivers_and_commits_nothing_after_its_session() -> None:
    """A worker that wakes up after its session has expired notices that before its next record."""
    bench = WorkerGroupBench()
    bench.start("w1", "w2")
    bench.create("c", limit="100000", offset_flush_interval_ms="200")
    bench.until_running("c", 1)
    bench.until_delivered("c-0", 30)
    victim = bench.owner(TaskId("c", 0))
    assert victim is not None
    frozen, starts = bench.workers[victim], bench.counts.count("start", "c-0")
    frozen.process.freeze()
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") > starts)
    successor = max(call.token for call in bench.counts.calls if call.work == "c-0")
    bench.timeline.run_for(5.0)
    before = len(bench.counts.calls)
    frozen.process.thaw()
    bench.timeline.run_for(5.0)
    # A poll that was under way may return; its records are not delivered.
    late = [c for c in bench.counts.calls[before:] if c.work == "c-0" and c.token < successor]
    assert [call.method for call in late if call.method != "poll"] in ([], ["stop"])
    numbers = bench.delivered("t", "c-0")
    repeated = numbers.index(numbers[-1]) != len(numbers) - 1
    assert not repeated
    # What was delivered since the last store of offsets.
    assert (stored(bench, "c-0") or 0) >= numbers[-1] - 60


def test_two_workers_never_run_the_same_task() -> None:
    """Between a start and its stop, no other worker starts the task, through joins, leaves and a lost session."""
    bench = WorkerGroupBench()
    bench.start("w1", "w2", "w3")
    bench.create("c", tasks_max="5", limit="100000")
    bench.until_running("c", 5)
    bench.start("w4")
    bench.until_running("c", 5)
    bench.workers["w1"].close()
    bench.until_running("c", 5)
    second = bench.workers["w2"].herder.role.session
    bench.workers["w2"].process.call(lambda: second.end("the test ends it"))
    bench.timeline.run_for(20.0)
    bench.until_running("c", 5)
    runs: dict[str, int] = {}
    for call in bench.counts.calls:
        if call.method == "start" and call.token:
            assert call.work not in runs, f"{call} starts beside the run with token {runs[call.work]}"
            runs[call.work] = call.token
        elif call.method == "stop" and call.token:
            assert runs.pop(call.work) == call.token
    assert len(runs) == 5


def test_a_deleted_claim_is_taken_again() -> None:
    """If an operator deletes an owner znode, the task stops at once, and starts with a larger token."""
    bench = WorkerGroupBench()
    bench.start("w1")
    bench.create("c", limit="100000")
    bench.until_running("c", 1)
    first = bench.counts.calls[-1].token
    bench.operator_deletes(LAYOUT.owner("c", 0))
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == 2)
    assert [call.method for call in bench.counts.calls if call.work == "c-0" and call.token == first][-1] == "stop"
    assert bench.counts.calls[-1].token > first


def test_an_emptied_configuration_offset_causes_one_rebalance_at_most() -> None:
    """The history says which offset the configuration has, so workers that know it do not rejoin without end."""
    bench = WorkerGroupBench()
    first, _ = bench.start("w1", "w2")
    bench.create("c", tasks_max="2", limit="100000")
    bench.until_running("c", 2)
    before = first.member.token
    assert before is not None
    bench.write(LAYOUT.config, b"")
    first.process.call(first.member.request_rejoin)
    bench.timeline.run_for(10.0)
    after = first.member.token
    assert after is not None
    assert after.generation <= before.generation + 2
    bench.until_running("c", 2)


def test_claims_that_end_before_their_session_are_no_failure() -> None:
    """The driver of claims may be notified first. The work ends with the session, and runs again on the next one."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100000")
    bench.until_running("c", 1)
    role = worker.herder.role
    worker.process.call(worker.member.request_rejoin)
    worker.process.call(worker.herder.on_lost)
    bench.timeline.run_until(lambda: role.claims._releases != {} or worker.herder.running(TaskId("c", 0)) is None)
    worker.process.call(role.claims.end)
    bench.timeline.run_for(1.0)
    worker.process.call(lambda: role.session.end("the test ends it"))
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == 2)
    assert worker.metrics.total("work_supervisors_failed") == worker.metrics.total("work_failed") == 0
    assert worker.failures == []


def test_a_pause_stops_the_work_and_a_resume_starts_it_without_a_rebalance() -> None:
    """The owner follows the target state of the connector; the group assigns nothing again."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100000")
    bench.until_running("c", 1)
    generation = worker.member.token
    worker.run(worker.requests.pause("c"))
    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == bench.state(ConnectorId("c")) == WorkState.PAUSED)
    delivered = len(bench.delivered("t", "c-0"))
    bench.timeline.run_for(5.0)
    assert len(bench.delivered("t", "c-0")) == delivered
    assert {status.state for status in worker.states("c").values()} == {WorkState.PAUSED}
    worker.run(worker.requests.resume("c"))
    bench.until_running("c", 1)
    assert worker.member.token == generation
    bench.timeline.run_for(2.0)
    numbers = bench.delivered("t", "c-0")
    assert numbers == list(range(1, len(numbers) + 1))


def test_changed_settings_restart_the_connector_and_changed_tasks_rejoin() -> None:
    """A change that leaves the tasks as they are restarts the connector only; changed tasks are assigned again."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.counts.task_configs["c"] = [{"limit": "10"}]
    bench.create("c", limit="1")
    bench.until_running("c", 1)
    generation, starts = worker.member.token, bench.counts.count("start", "c")
    config = worker.run(worker.requests.config("c"))
    worker.run(worker.requests.put_config("c", {**config, "limit": "2"}))
    bench.timeline.run_until(lambda: bench.counts.count("start", "c") == starts + 1)
    bench.timeline.run_for(1.0)
    assert worker.member.token == generation
    assert bench.counts.methods("c-0") == ["start"]
    bench.counts.task_configs["c"] = [{"limit": "20"}, {"limit": "5"}]
    worker.process.call(bench.counts.connectors["c"].request_task_reconfiguration)
    # tasks.max is 1.
    bench.timeline.run_until(lambda: bench.state(ConnectorId("c")) == WorkState.FAILED)
    worker.run(worker.requests.put_config("c", {**config, "tasks.max": "2"}))
    bench.until_delivered("c-1", 5)
    assert worker.member.token != generation


def test_a_deleted_connector_stops() -> None:
    """Its work stops, its claims are released, and its statuses are deleted."""
    bench = WorkerGroupBench()
    (worker, other) = bench.start("w1", "w2")
    bench.create("c", tasks_max="2", limit="100000")
    bench.until_running("c", 2)
    worker.run(worker.requests.delete("c"))
    works = (ConnectorId("c"), TaskId("c", 0), TaskId("c", 1))
    bench.timeline.run_until(lambda: set(bench.owned(*works).values()) == {None})
    assert bench.counts.methods("c-0")[-1] == "stop"
    assert other.run(other.requests.connectors()) == []


def test_a_task_that_raises_fails_and_keeps_its_claim() -> None:
    """Its status has the trace; what it has delivered is stored; a user restarts it."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100")
    bench.until_delivered("c-0", 20)

    def fail() -> None:
        raise ValueError("out of order")

    bench.counts.hooks["poll", "c-0"] = fail
    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == WorkState.FAILED)
    bench.timeline.run_for(1.0)
    status = worker.states("c")[TaskId("c", 0)]
    assert status.state == WorkState.FAILED
    assert "ValueError: out of order" in status.trace
    assert bench.owner(TaskId("c", 0)) == "w1"
    assert stored(bench, "c-0") == bench.delivered("t", "c-0")[-1] + 1
    bench.timeline.run_for(60.0)
    assert bench.counts.methods("c-0") == ["start", "stop"]
    bench.counts.hooks.clear()
    worker.run(worker.requests.restart(TaskId("c", 0)))
    bench.until_delivered("c-0", 100)
    assert bench.delivered("t", "c-0") == list(range(1, 101))


def test_a_task_restarts_by_its_policy_and_stays_failed_after_its_limit() -> None:
    """With back-off, the task starts again after delays that double, as often as the policy allows."""
    bench = WorkerGroupBench()
    bench.start("w1")
    times: list[float] = []

    def fail() -> None:
        times.append(bench.timeline.now_s)
        raise ValueError

    bench.counts.hooks["start", "c-0"] = fail
    bench.create("c", restart_policy="backoff", restart_max="3", restart_backoff_ms="1000", limit="10")
    bench.timeline.run_for(120.0)
    assert len(times) == 4
    gaps = [after - before for before, after in pairwise(times)]
    assert all(0.7 * expected < gap < 1.4 * expected for gap, expected in zip(gaps, (1, 2, 4), strict=True))
    assert bench.state(TaskId("c", 0)) == WorkState.FAILED


def test_a_task_that_hangs_in_stop_is_abandoned_and_keeps_its_claim() -> None:
    """The rebalance continues without it; its successor starts when its call has returned."""
    bench = WorkerGroupBench()
    first, second = bench.start("w1", "w2")
    bench.create("c", limit="100000", task_stop_timeout_ms="2000")
    bench.until_running("c", 1)
    victim = bench.owner(TaskId("c", 0))
    assert victim is not None
    released = asyncio.Event()

    async def hang() -> None:
        # It does not react to its cancellation, as a thread.
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    bench.counts.hooks["stop", "c-0"] = hang
    starts = bench.counts.count("start", "c-0")
    worker = bench.workers[victim]
    closing = worker.process.start(worker.member.close())
    bench.timeline.run_until(closing.done, 10.0)
    bench.timeline.run_for(10.0)
    assert bench.owner(TaskId("c", 0)) == victim
    assert bench.counts.count("start", "c-0") == starts
    other = second if worker is first else first
    status = other.states("c")[TaskId("c", 0)]
    assert status.state == WorkState.FAILED
    assert "did not stop within 2 s" in status.trace
    worker.process.call(released.set)
    bench.counts.hooks.clear()
    bench.timeline.run_until(lambda: bench.owner(TaskId("c", 0)) == other.name)
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == starts + 1)


def test_a_connector_that_returns_garbage_fails() -> None:
    """What is no list of settings, has values that are no texts, or too many tasks, is refused with a status."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    for number, garbage in enumerate(({"a": "b"}, [{"a": 1}], [{}, {}], 7, "text")):
        name = f"c{number}"
        bench.counts.task_configs[name] = garbage
        bench.create(name)
        bench.timeline.run_until(lambda name=name: bench.state(ConnectorId(name)) == WorkState.FAILED)  # type: ignore[misc]
        bench.timeline.run_for(1.0)
        assert "task_configs returned" in worker.states(name)[ConnectorId(name)].trace
    assert worker.failures == []


def test_zookeeper_is_gone_for_a_while_and_back() -> None:
    """Tasks wait while the connection is broken, and continue on the same claim if the session survives."""
    bench = WorkerGroupBench()
    bench.start("w1")
    bench.create("c", limit="100000")
    bench.until_delivered("c-0", 30)
    (server,) = bench.ensemble.servers
    bench.ensemble.crash(server)
    bench.timeline.run_for(30.0)
    delivered = len(bench.delivered("t", "c-0"))
    bench.timeline.run_for(5.0)
    assert len(bench.delivered("t", "c-0")) == delivered
    bench.ensemble.heal(server)
    bench.timeline.run_until(lambda: len(bench.delivered("t", "c-0")) > delivered + 100, 120.0)
    numbers = set(bench.delivered("t", "c-0"))
    assert numbers == set(range(1, max(numbers) + 1))


def test_rebalances_do_not_wait_for_an_abandoned_task_again() -> None:
    """Its worker may be assigned the task anew, several times: it starts when the former call has returned."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100000", task_stop_timeout_ms="1000")
    bench.until_running("c", 1)
    released = asyncio.Event()

    async def hang() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    bench.counts.hooks["stop", "c-0"] = hang
    for _ in range(3):
        worker.process.call(worker.herder.on_lost)
        before = worker.member.token
        worker.process.call(worker.member.request_rejoin)
        bench.timeline.run_until(lambda before=before: worker.member.token not in (None, before), 10.0)  # type: ignore[misc]
        bench.timeline.run_until(lambda: bench.state(ConnectorId("c")) == WorkState.RUNNING, 10.0)
    assert bench.counts.methods("c-0") == ["start", "stop"]
    worker.process.call(released.set)
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == 2, 10.0)
    bench.until_running("c", 1)


def test_what_a_deleted_connector_leaves_is_deleted() -> None:
    """The leader deletes its statuses and its folder of owner znodes; its source offsets stay."""
    bench = WorkerGroupBench()
    first, _ = bench.start("w1", "w2")
    bench.create("c", tasks_max="3", limit="20")
    bench.until_running("c", 3)
    bench.until_delivered("c-0", 20)
    bench.timeline.run_for(1.0)
    first.run(first.requests.delete("c"))
    gone = {LAYOUT.status("c"), LAYOUT.connector_owners("c"), LAYOUT.connector("c")}
    bench.timeline.run_until(lambda: not gone & bench.ensemble.tree.znodes.keys())
    assert stored(bench, "c-0") == 21


@pytest.mark.parametrize("after_ms", range(0, 400, 20))
def test_a_change_during_a_rebalance_is_not_missed(after_ms: int) -> None:
    """Whenever a connector is created and another one gets tasks while the group rebalances, all of them run."""
    bench = WorkerGroupBench(seed=after_ms)
    first, second = bench.start("w1", "w2")
    bench.counts.task_configs["c"] = []
    bench.create("c", tasks_max="2", limit="100000")
    bench.timeline.run_until(lambda: bench.state(ConnectorId("c")) == WorkState.RUNNING)
    bench.timeline.run_for(1.0)
    first.process.call(first.member.request_rejoin)
    bench.timeline.run_for(after_ms / 1000)
    del bench.counts.task_configs["c"]
    config = second.run(second.requests.config("c"))
    second.run(second.requests.put_config("c", {**config, "limit": "99999"}))
    bench.create("d", limit="100000")
    bench.until_running("c", 2)
    bench.until_running("d", 1)


def test_a_clean_up_without_the_right_to_delete_stops_no_work(caplog: pytest.LogCaptureFixture) -> None:
    """The leader logs once that the status of a deleted connector stays. It deletes it when it has the right."""
    bench = WorkerGroupBench()
    first, _ = bench.start("w1", "w2")
    for name in ("gone", "c"):
        bench.create(name, limit="100000")
        bench.until_running(name, 1)
    bench.ensemble.tree.denied.add(("delete", LAYOUT.statuses))
    with caplog.at_level(logging.WARNING):
        first.run(first.requests.delete("gone"))
        for name in ("d", "e"):
            bench.create(name)
            bench.until_running(name, 1)
            bench.timeline.run_for(2.0)
    bench.until_delivered("c-0", 50)

    def total(metric: str) -> float:
        return sum(worker.metrics.total(metric) for worker in bench.workers.values())

    assert (total("sessions_denied"), total("sessions_lost")) == (0, 0)
    assert total("clean_ups_denied") > 1
    assert [line for line in caplog.messages if "ZooKeeper refused" in line] == [
        f"group g: what deleted connectors have left stays: ZooKeeper refused to delete a znode in {LAYOUT.statuses}:"
        " its ACL denies this client the right to delete; 'kiel-groups acl show g' shows the ACLs of the group"
    ]
    assert LAYOUT.status("gone") in bench.ensemble.tree.znodes
    bench.ensemble.tree.denied.clear()
    bench.create("f")
    bench.timeline.run_until(lambda: LAYOUT.status("gone") not in bench.ensemble.tree.znodes, 15.0)


def test_a_right_that_both_sessions_of_a_worker_lack_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Its work stops, and runs again when the right is back. The next refusal is another line."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", limit="100000")
    bench.until_running("c", 1)
    path = GroupLayout("g").config
    for times in (1, 2):
        bench.ensemble.tree.denied.add(("read", path))
        with caplog.at_level(logging.WARNING):
            worker.process.call(worker.session._supervisor.current.session.end, "is ended by the test")  # type: ignore[union-attr]
            worker.process.call(worker.member._coordination._session.session.end, "is ended by the test")  # type: ignore[attr-defined]
            bench.timeline.run_for(30.0)
        assert bench.state(TaskId("c", 0)) is None
        assert caplog.text.count(f"ZooKeeper refused to read {path}") == times
        bench.ensemble.tree.denied.clear()
        bench.until_running("c", 1)
        bench.timeline.run_for(5.0)
