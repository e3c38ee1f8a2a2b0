"""How work ends on simulated time: plugins that do not stop, and releases that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kiel_groups.errors import CoordinationError
from kiel_groups.group.znodes.worker_contents import WorkState
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.values import ConnectorId, TaskId, Work
from tests.sim.worker_group_bench import LAYOUT, WorkerGroupBench, WorkerProcess

pytestmark = pytest.mark.sim

TASK = TaskId("c", 0)
WORKS: tuple[Work, ...] = (ConnectorId("c"), TASK, TaskId("c", 1))


class Hang:
    """A hook that neither returns nor reacts to its cancellation before the test ends it, as a thread."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()

    async def __call__(self) -> None:
        while not self.is_over.is_set():
            try:
                await self.is_over.wait()
            except asyncio.CancelledError:
                continue


class Closing:
    """A worker that is closed while the task c-0 hangs in a method, and what it reports."""

    def __init__(self, bench: WorkerGroupBench, method: str) -> None:
        self.hang = Hang()
        bench.counts.hooks[method, "c-0"] = self.hang
        name = bench.owner(TASK)
        assert name is not None
        self.worker, self.stuck = bench.workers[name], list[Sequence[Work]]()
        if method == "poll":
            polls = bench.counts.count("poll", "c-0")
            bench.timeline.run_until(lambda: bench.counts.count("poll", "c-0") > polls)
        self.task = self.worker.process.start(self._close())

    async def _close(self) -> None:
        await self.worker.herder.close(self.stuck.append)
        await self.worker.session.close()

    def end_hang(self, bench: WorkerGroupBench) -> None:
        bench.counts.hooks.clear()
        self.worker.process.call(self.hang.is_over.set)


def group_of(*names: str) -> WorkerGroupBench:
    bench = WorkerGroupBench()
    bench.start(*names)
    bench.create("c", tasks_max="2", limit="100000", task_stop_timeout_ms="1000")
    bench.until_running("c", 2)
    return bench


@pytest.mark.parametrize("method", ["poll", "stop"])
def test_a_worker_that_closes_keeps_the_claim_of_a_plugin_that_does_not_stop(
    caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """It gives everything else back, leaves, warns every ten seconds, and ends when the call has returned."""
    bench = group_of("w1", "w2")
    closing = Closing(bench, method)
    name, starts = closing.worker.name, bench.counts.count("start", "c-0")
    bench.timeline.run_until(lambda: closing.stuck)
    assert closing.stuck == [[TASK]]
    bench.timeline.run_until(lambda: name not in {bench.owner(work) for work in WORKS if work != TASK}, 10.0)
    bench.timeline.run_for(25.0)
    warnings = [each for each in caplog.messages if "does not end before c-0, which did not stop" in each]
    assert len(warnings) == 3
    assert not closing.task.done()
    assert bench.owner(TASK) == name
    assert bench.counts.count("start", "c-0") == starts
    closing.end_hang(bench)
    bench.timeline.run_until(closing.task.done, 1.0)
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == starts + 1, 10.0)
    assert bench.owner(TASK) not in (None, name)


def test_a_worker_whose_session_is_lost_still_ends_after_its_plugins() -> None:
    """Its claims are gone, but the call runs in its process."""
    bench = group_of("w1")
    closing = Closing(bench, "poll")
    bench.timeline.run_until(lambda: closing.stuck)
    session = closing.worker.herder.role.session
    closing.worker.process.call(lambda: session.end("the test ends it"))
    bench.timeline.run_for(5.0)
    assert not closing.task.done()
    closing.end_hang(bench)
    bench.timeline.run_until(closing.task.done, 1.0)


def test_a_worker_that_loses_its_session_closes_when_its_plugins_have_stopped() -> None:
    """They are stopped without a commit, which takes a moment; they are not reported as stuck."""
    bench = group_of("w1")
    worker, stuck, hang = bench.workers["w1"], list[Sequence[Work]](), Hang()
    bench.counts.hooks["stop", "c-0"] = hang
    session = worker.herder.role.session
    worker.process.call(lambda: session.end("the test ends it"))
    bench.timeline.run_until(lambda: bench.counts.count("stop", "c-0") == 1)
    closing = worker.process.start(worker.herder.close(stuck.append))
    bench.timeline.run_for(0.5)
    assert not closing.done()
    worker.process.call(hang.is_over.set)
    bench.timeline.run_until(closing.done, 1.0)
    assert stuck == []


# ---------------------------------------------------------------------- releases


def refuse(worker: WorkerProcess, error: Exception, times: int = 1) -> list[Any]:
    """Have the next releases of the task c-0 with source offsets raise an error; return the offsets of all releases."""
    role, seen = worker.herder.role, list[Any]()
    release = role.release_claim

    async def failing(work: Work, offsets: Any = ()) -> None:
        if work == TASK:
            seen.append(offsets)
            if len(seen) <= times:
                raise error
        await release(work, offsets)

    role.release_claim = failing  # type: ignore[method-assign]
    return seen


def test_a_release_whose_offsets_cannot_be_stored_is_done_without_them(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and in the status; the next owner delivers the last records again."""
    bench = group_of("w1", "w2")
    name = bench.owner(TASK)
    assert name is not None
    worker, starts = bench.workers[name], bench.counts.count("start", "c-0")
    offsets = refuse(worker, ValueError("they are too large"))
    worker.close()
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == starts + 1, 2.0)
    assert bench.owner(TASK) not in (None, name)
    assert offsets[0]
    assert offsets[1:] == [()]
    text = "c-0: its last source offsets (of 1 source partition) are not stored, so its last records will be delivered"
    assert f"{text} again: they are too large" in caplog.text
    assert (worker.metrics.total("work_failed"), worker.metrics.total("source_offsets_unstored")) == (1, 1)
    bench.until_delivered("c-0", 500)
    assert set(bench.delivered("t", "c-0")) >= set(range(1, 501))


def test_a_release_without_the_claim_reports_the_offsets_that_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    """An operator deletes the owner znode while the task stops: the next owner delivers its last records again."""
    bench = group_of("w1", "w2")
    name = bench.owner(TASK)
    assert name is not None
    worker, starts = bench.workers[name], bench.counts.count("start", "c-0")
    role = worker.herder.role
    release = role.release_claim

    async def late(work: Work, offsets: Any = ()) -> None:
        if work == TASK:
            role.session.client.delete_async(LAYOUT.owner(*TASK))
        await release(work, offsets)

    role.release_claim = late  # type: ignore[method-assign]
    worker.close()
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == starts + 1, 2.0)
    assert "c-0: its last source offsets (of 1 source partition) are not stored" in caplog.text
    assert "its claim /kiel-groups/" in caplog.text
    assert (worker.metrics.total("work_failed"), worker.metrics.total("source_offsets_unstored")) == (0, 1)
    bench.until_delivered("c-0", 500)
    assert set(bench.delivered("t", "c-0")) >= set(range(1, 501))


def test_a_release_that_is_refused_is_tried_again() -> None:
    """A rebalance does not wait for it; it is done when ZooKeeper accepts it."""
    bench = group_of("w1", "w2")
    name = bench.owner(TASK)
    assert name is not None
    worker, starts = bench.workers[name], bench.counts.count("start", "c-0")
    refuse(worker, CoordinationError("rights are missing"), times=3)
    leaving = worker.process.start(worker.member.close())
    bench.timeline.run_until(leaving.done, 2.0)
    assert bench.owner(TASK) == name
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == starts + 1, 30.0)
    assert bench.owner(TASK) not in (None, name)


def test_offsets_that_do_not_fit_into_one_transaction_are_stored_before_the_release() -> None:
    """ZooKeeper would close the connection at a transaction of several MiB, again and again."""
    bench = group_of("w1")
    worker = bench.workers["w1"]
    partitions = [{"file": str(number), "pad": "x" * 400_000} for number in range(6)]

    async def release() -> None:
        role = worker.herder.role
        await role.release_claim(TASK, [(partition, {"n": 1}) for partition in partitions])

    sent: list[int] = []
    transact = worker.herder.role.session.transact

    async def measured(operations: Any) -> Any:
        listed = list(operations)
        sent.append(sum(len(getattr(each, "data", b"")) for each in listed))
        return await transact(listed)

    worker.herder.role.session.transact = measured  # type: ignore[method-assign]
    worker.run(release())
    assert max(sent) < 1 << 20
    assert bench.owner(TASK) is None
    assert len(bench.ensemble.tree.children(LAYOUT.connector_offsets("c"))) >= 6


def test_an_error_of_the_supervisor_fails_the_work() -> None:
    """It is FAILED with its trace, and a user starts it again; its claim is released when it has to stop."""
    bench = group_of("w1")
    (worker,) = bench.workers.values()
    supervisor = worker.herder.running(TASK)
    assert supervisor is not None
    follow = supervisor._follow_spec

    async def failing(token: int) -> None:
        raise KeyError("a bug")

    supervisor._follow_spec = failing  # type: ignore[method-assign]
    worker.run(worker.requests.restart(TaskId("c", 0)))
    bench.timeline.run_until(lambda: bench.state(TASK) == WorkState.FAILED)
    bench.timeline.run_for(1.0)
    status = worker.states("c")[TASK]
    assert status.state == WorkState.FAILED
    assert "KeyError: 'a bug'" in status.trace
    assert worker.metrics.total("work_supervisors_failed") == 1

    async def failing_after(token: int) -> None:
        await follow(token)
        raise KeyError("another bug")

    supervisor._follow_spec = failing_after  # type: ignore[method-assign]
    worker.run(worker.requests.restart(TaskId("c", 0)))
    bench.until_running("c", 2)
    worker.close()
    assert worker.metrics.total("work_supervisors_failed") == 2
    assert bench.ensemble.tree.children(LAYOUT.connector_owners("c")) == []


def test_a_check_of_settings_does_not_delay_the_end_of_a_worker() -> None:
    """It may take long, and has no effects, so its work is released while it still runs."""
    bench = group_of("w1")
    (worker,) = bench.workers.values()
    begun = list[WorkSpec]()

    async def settings(spec: WorkSpec) -> Any:
        begun.append(spec)
        await asyncio.Event().wait()

    worker.herder._plugins.settings = settings  # type: ignore[method-assign]
    bench.create("d")
    bench.timeline.run_until(lambda: begun)
    assert bench.owner(ConnectorId("d")) == "w1"
    closing = worker.process.start(worker._close())
    bench.timeline.run_until(closing.done, 1.0)
    assert bench.ensemble.tree.children(LAYOUT.connector_owners("d")) == []
