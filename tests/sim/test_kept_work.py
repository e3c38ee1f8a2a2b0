"""Work that runs on while the group of workers assigns again, and what has to stop before."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any
from urllib.parse import quote

import pytest

from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.workers.membership import WorkerHooks
from kiel_groups.workers.values import ConnectorId, TaskId
from tests.sim.worker_group_bench import LAYOUT, WorkerGroupBench

pytestmark = pytest.mark.sim

ENDLESS = {"limit": "100000"}


def stored_generation(bench: WorkerGroupBench, *work: int) -> int:
    """Return the generation in the status of connector c, or of one of its tasks."""
    path = LAYOUT.status("c", *work)
    return WorkStatus.parse(bench.ensemble.tree.get(path).data, path).generation


def until_rejoined(bench: WorkerGroupBench, name: str) -> int:
    """Have a worker join again, wait for its next assignment, and return the generation."""
    worker = bench.workers[name]
    before = worker.member.token
    worker.process.call(worker.member.request_rejoin)
    bench.timeline.run_until(lambda: worker.member.token not in (None, before))
    # Statuses of work that stays are written last.
    bench.timeline.run_for(2.0)
    assert worker.member.token is not None
    return worker.member.token.generation


def stopping_slowly(bench: WorkerGroupBench, task: str) -> asyncio.Event:
    """Have the stop of a task wait for an event."""
    released = asyncio.Event()
    bench.counts.hooks["stop", task] = released.wait
    return released


def test_work_that_stays_runs_on() -> None:
    """A rebalance neither stops nor starts it; its statuses have the new generation after it."""
    bench = WorkerGroupBench()
    bench.start("w1", "w2")
    bench.create("c", tasks_max="3", **ENDLESS)
    bench.until_running("c", 3)
    bench.timeline.run_for(1.0)
    owners = bench.owned(ConnectorId("c"), TaskId("c", 0), TaskId("c", 1), TaskId("c", 2))
    tokens = {call.token for call in bench.counts.calls}
    generation = until_rejoined(bench, "w2")
    assert bench.owned(*owners) == owners
    assert {call.token for call in bench.counts.calls} == tokens
    assert [bench.counts.methods(work)[-1] for work in ("c-0", "c-1", "c-2")] == ["start"] * 3
    assert {stored_generation(bench), *(stored_generation(bench, task) for task in range(3))} == {generation}


def test_work_that_moves_is_stopped_before_it_starts_elsewhere() -> None:
    """The new worker waits for the claims; what the others keep runs on."""
    bench = WorkerGroupBench()
    bench.start("w1")
    bench.create("c", tasks_max="3", **ENDLESS)
    bench.until_running("c", 3)
    bench.start("w2")
    moved = [TaskId("c", 0), TaskId("c", 2)]
    bench.timeline.run_until(lambda: all(bench.owner(task) == "w2" for task in moved))
    bench.until_running("c", 3)
    assert [bench.counts.methods(str(task)) for task in moved] == [["start", "stop", "start"]] * 2
    assert bench.counts.methods("c-1") == ["start"]


def test_a_deleted_status_is_written_again_by_the_next_assignment() -> None:
    """An operator may have deleted it."""
    bench = WorkerGroupBench()
    bench.start("w1")
    bench.create("c", **ENDLESS)
    bench.until_running("c", 1)
    bench.timeline.run_for(1.0)
    bench.operator_deletes(LAYOUT.status("c", 0))
    generation = until_rejoined(bench, "w1")
    assert stored_generation(bench, 0) == generation


def test_tasks_with_other_settings_stop_before_the_join() -> None:
    """No task starts with new settings while another worker runs one with former settings."""
    bench = WorkerGroupBench()
    first, _ = bench.start("w1", "w2")
    bench.create("c", tasks_max="4", **ENDLESS)
    bench.until_running("c", 4)
    bench.timeline.run_for(1.0)
    before = len(bench.counts.calls)
    first.run(first.requests.put_config("c", {**first.herder.config.connectors["c"].config, "topic": "u"}))  # type: ignore[union-attr]
    bench.timeline.run_until(lambda: all(bench.counts.count("start", f"c-{task}") == 2 for task in range(4)))
    calls = [call.method for call in bench.counts.calls[before:] if call.token and call.method in {"start", "stop"}]
    assert calls == ["stop"] * 4 + ["start"] * 4


def test_no_worker_joins_while_its_changed_tasks_still_stop() -> None:
    """Tasks with new settings start after the last one with former settings has stopped."""
    bench = WorkerGroupBench()
    first, _ = bench.start("w1", "w2")
    bench.create("c", tasks_max="4", **ENDLESS)
    bench.until_running("c", 4)
    released = stopping_slowly(bench, "c-0")
    first.run(first.requests.put_config("c", {**first.herder.config.connectors["c"].config, "topic": "u"}))  # type: ignore[union-attr]
    bench.timeline.run_for(3.0)
    assert [bench.counts.count("start", f"c-{task}") for task in range(4)] == [1] * 4
    bench.workers[bench.owner(TaskId("c", 0)) or ""].process.call(released.set)
    bench.timeline.run_until(lambda: all(bench.counts.count("start", f"c-{task}") == 2 for task in range(4)))


def test_a_worker_leaves_after_its_work_has_stopped() -> None:
    """The others assign its work to themselves when they can claim it."""
    bench = WorkerGroupBench()
    first, second = bench.start("w1", "w2")
    bench.create("c", tasks_max="2", **ENDLESS)
    bench.until_running("c", 2)
    mine = next(task for task in (TaskId("c", 0), TaskId("c", 1)) if bench.owner(task) == "w1")
    released, before = stopping_slowly(bench, str(mine)), second.member.token
    leaving = first.process.start(first.herder.close())
    bench.timeline.run_for(3.0)
    assert second.member.token == before
    first.process.call(released.set)
    bench.timeline.run_until(leaving.done)
    bench.timeline.run_until(lambda: bench.owner(mine) == "w2")


def test_a_worker_that_cannot_read_the_configuration_stops_before_the_join(caplog: pytest.LogCaptureFixture) -> None:
    """It does not know which of its work is still wanted."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", **ENDLESS)
    bench.until_running("c", 1)
    bench.write(LAYOUT.config, b"garbage")
    worker.process.call(worker.member.request_rejoin)
    bench.timeline.run_until(lambda: bench.counts.count("stop", "c-0") == 1)
    bench.timeline.run_until(lambda: bench.owner(TaskId("c", 0)) is None)
    assert "group g: all work stops: the configuration could not be read: " in caplog.text


def test_work_without_an_assignment_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    """After the session timeout, the group may have removed the worker, and others may wait for its claims."""
    bench = WorkerGroupBench()
    worker, second = bench.start("w1", "w2")
    bench.create("c", tasks_max="2", **ENDLESS)
    bench.until_running("c", 2)
    # The group waits for a member that does not answer, up to its rebalance timeout.
    second.herder.hooks._listener.on_revoked = lambda *_: second.process.loop.create_future()  # type: ignore[method-assign]
    worker.process.call(worker.member.request_rejoin)
    mine = next(task for task in (TaskId("c", 0), TaskId("c", 1)) if bench.owner(task) == "w1")
    with caplog.at_level(logging.WARNING):
        bench.timeline.run_until(lambda: worker.herder._assignment is None)
        bench.timeline.run_for(5.0)
        assert bench.owner(mine) == "w1"
        bench.timeline.run_for(2.0)
    assert bench.owner(mine) is None
    assert "group g: all work stops: no assignment has followed within 6 s" in caplog.text


def test_a_connector_that_was_created_again_starts_anew() -> None:
    """Although its settings and its tasks are the same: workers may have seen nothing of the deletion."""
    bench = WorkerGroupBench()
    worker, _ = bench.start("w1", "w2")
    bench.create("c", tasks_max="2", **ENDLESS)
    bench.until_running("c", 2)
    config = worker.herder.config
    assert config is not None
    settings = dict(config.connectors["c"].config)

    async def create_again() -> None:
        store = worker.herder.role.config
        await store.delete_connector("c")
        await store.put_connector("c", settings, is_new=True)

    worker.run(create_again())
    bench.timeline.run_until(lambda: all(bench.counts.count("start", work) == 2 for work in ("c", "c-0", "c-1")))
    bench.until_running("c", 2)
    bench.timeline.run_for(1.0)
    assert {status.state for status in worker.states("c").values()} == {WorkState.RUNNING}


def test_a_change_during_the_rebalance_is_followed_by_the_assignment() -> None:
    """A connector whose settings change while its worker has no assignment is restarted with them."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", **ENDLESS)
    bench.until_running("c", 1)
    config = worker.herder.config
    assert config is not None
    settings = {**config.connectors["c"].config, "topic": "u"}
    worker.process.call(worker.member.request_rejoin)
    bench.timeline.run_until(lambda: worker.herder._assignment is None)
    worker.run(worker.herder.role.config.put_connector("c", settings))
    bench.timeline.run_until(lambda: bench.delivered("u", "c-0"))
    assert bench.counts.count("start", "c") == 2


def test_a_task_whose_claim_was_deleted_reports_nothing() -> None:
    """An operator deletes the claim while ``stop`` hangs, and another worker claims the task."""
    bench = WorkerGroupBench()
    bench.start("w1", "w2")
    bench.create("c", task_stop_timeout_ms="1000", **ENDLESS)
    bench.until_running("c", 1)
    first = bench.owner(TaskId("c", 0)) or ""
    other = {"w1": "w2", "w2": "w1"}[first]

    async def never() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    bench.counts.hooks["stop", "c-0"] = never
    bench.workers[first].process.call(bench.workers[first].herder.on_lost)
    bench.timeline.run_for(0.1)
    assert bench.counts.count("stop", "c-0") == 1
    bench.operator_deletes(LAYOUT.owner("c", 0))
    bench.counts.hooks.clear()
    claims = bench.workers[other].herder.role.claims
    bench.workers[other].run(claims.claim(TaskId("c", 0)))
    bench.timeline.run_for(5.0)
    status = bench.workers[other].states("c")[TaskId("c", 0)]
    assert (status.state, status.trace) == (WorkState.UNASSIGNED, "")


def fail(bench: WorkerGroupBench, task: str, **policy: str) -> list[float]:
    """Create the connector c, whose task fails at each poll; return when it was polled."""
    times: list[float] = []

    def raise_error() -> None:
        times.append(bench.timeline.now_s)
        raise ValueError("out of order")

    bench.counts.hooks["poll", task] = raise_error
    bench.create("c", tasks_max="2", **ENDLESS, **policy)
    return times


def test_failed_work_that_stays_is_not_started_by_a_rebalance() -> None:
    """It stays FAILED with its trace; the status has the new generation."""
    bench = WorkerGroupBench()
    worker, _ = bench.start("w1", "w2")
    fail(bench, "c-0")
    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == WorkState.FAILED)
    bench.timeline.run_for(1.0)
    owner = bench.owner(TaskId("c", 0))
    generation = until_rejoined(bench, "w1")
    assert bench.owner(TaskId("c", 0)) == owner
    status = worker.states("c")[TaskId("c", 0)]
    assert (status.state, status.generation) == (WorkState.FAILED, generation)
    assert "ValueError: out of order" in status.trace
    assert bench.counts.count("start", "c-0") == 1


def test_a_failure_is_reported_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """The errors of plugins may quote URLs with passwords. Neither the log line nor the stored trace shows them."""
    bench = WorkerGroupBench()
    bench.start("w1")

    async def raise_error() -> None:
        raise OSError("no answer from http://u:12/s3cret@host/")

    bench.counts.hooks["poll", "c-0"] = raise_error
    bench.create("c", tasks_max="2", **ENDLESS)
    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == WorkState.FAILED)
    bench.timeline.run_for(1.0)
    path = LAYOUT.status("c", 0)
    for shown in (caplog.text, bench.ensemble.tree.get(path).data.decode()):
        assert "no answer from http://[hidden]@host/" in shown
        assert "s3cret" not in shown


@pytest.mark.parametrize("work", [ConnectorId("c"), TaskId("c", 0)], ids=str)
def test_a_failure_is_reported_without_the_passwords_of_its_settings(
    work: ConnectorId | TaskId, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The error of a plugin may quote a declared password, or an undeclared one, in any form, as may the error's cause.

    Neither the log line nor the stored trace shows any of it.
    """
    bench = WorkerGroupBench()
    bench.start("w1")
    login, token = "d'0\\ü s3cret", "t0ken"

    async def raise_error() -> None:
        try:
            raise KeyError(login)
        except KeyError as error:
            raise OSError(f"no user {login} {login!r} {quote(login)} {json.dumps(login)} {token}; try again") from error

    bench.counts.hooks["start" if isinstance(work, ConnectorId) else "poll", str(work)] = raise_error
    bench.create("c", login=login, db_token=token, **ENDLESS)
    bench.timeline.run_until(lambda: bench.state(work) == WorkState.FAILED)
    bench.timeline.run_for(1.0)
    path = LAYOUT.status("c", *([work.task] if isinstance(work, TaskId) else []))
    trace = WorkStatus.parse(bench.ensemble.tree.get(path).data, path).trace
    for shown in (caplog.text, trace):
        assert """no user [hidden] "[hidden]" [hidden] "[hidden]" [hidden]; try again""" in shown
        assert not any(part in shown for part in ("s3cret", "d'0", "d%270", token))
    assert 'KeyError: "[hidden]"' in trace


class UnprintableError(Exception):
    """An error of a plugin whose text cannot be made."""

    def __str__(self) -> str:
        raise SystemExit


def test_an_error_without_a_text_is_reported() -> None:
    """The text of an error is code of a plugin, too; it runs on a thread, and may do anything."""
    bench = WorkerGroupBench()
    bench.start("w1")

    async def raise_error() -> None:
        raise UnprintableError

    bench.counts.hooks["poll", "c-0"] = raise_error
    bench.create("c", **ENDLESS)
    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == WorkState.FAILED)
    bench.timeline.run_for(1.0)
    path = LAYOUT.status("c", 0)
    trace = WorkStatus.parse(bench.ensemble.tree.get(path).data, path).trace
    assert trace == "UnprintableError, whose text cannot be made"


def test_a_rebalance_does_not_reset_the_restarts_of_failed_work() -> None:
    """The work that stays with its worker is started ``restart.max`` times in all."""
    bench = WorkerGroupBench()
    bench.start("w1")
    times = fail(bench, "c-0", restart_policy="backoff", restart_max="3", restart_backoff_ms="2000")
    for restarts in range(1, 4):
        bench.timeline.run_until(lambda restarts=restarts: len(times) == restarts)  # type: ignore[misc]
        until_rejoined(bench, "w1")
    bench.timeline.run_for(120.0)
    until_rejoined(bench, "w1")
    bench.timeline.run_for(120.0)
    assert len(times) == 4
    assert bench.state(TaskId("c", 0)) == WorkState.FAILED


def test_failed_work_that_moves_is_started_by_its_next_owner() -> None:
    """The failure may have been its worker's; the next owner counts its restarts anew."""
    bench = WorkerGroupBench()
    bench.start("w1")
    times = fail(bench, "c-0", restart_policy="backoff", restart_max="1", restart_backoff_ms="1000")
    bench.timeline.run_for(60.0)
    assert (len(times), bench.state(TaskId("c", 0))) == (2, WorkState.FAILED)
    bench.start("w2")
    bench.timeline.run_until(lambda: bench.owner(TaskId("c", 0)) == "w2")
    bench.timeline.run_for(60.0)
    assert (len(times), bench.state(TaskId("c", 0))) == (4, WorkState.FAILED)


def test_a_pause_hides_a_failure_and_a_resume_starts_the_work_again() -> None:
    """The state follows the target, wherever the work is."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    fail(bench, "c-0")
    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == WorkState.FAILED)
    worker.run(worker.requests.pause("c"))
    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == WorkState.PAUSED)
    bench.counts.hooks.clear()
    worker.run(worker.requests.resume("c"))
    bench.until_running("c", 2)
    assert bench.counts.count("start", "c-0") == 2


def test_a_restart_is_counted_when_failed_work_starts_again() -> None:
    """A resume or a user restarts it. A pause does not, and a start of work that has not failed is no restart."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    fail(bench, "c-0")

    def counted() -> tuple[float, float]:
        return worker.metrics.total("work_failed"), worker.metrics.total("work_restarts")

    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == WorkState.FAILED)
    worker.run(worker.requests.pause("c"))
    bench.timeline.run_until(lambda: bench.state(TaskId("c", 0)) == WorkState.PAUSED)
    bench.timeline.run_for(1.0)
    assert counted() == (1, 0)
    worker.run(worker.requests.resume("c"))
    bench.timeline.run_until(lambda: counted() == (2, 1))
    bench.counts.hooks.clear()
    worker.run(worker.requests.restart(TaskId("c", 0)))
    bench.until_running("c", 2)
    assert counted() == (2, 2)
    # The task has not failed since.
    worker.run(worker.requests.restart(TaskId("c", 0)))
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == 4)
    worker.run(worker.requests.pause("c"))
    worker.run(worker.requests.resume("c"))
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == 5)
    assert counted() == (2, 2)


def test_a_restart_by_the_policy_is_counted() -> None:
    """After ``restart.max`` restarts, the next failure is not followed by one."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    times = fail(bench, "c-0", restart_policy="backoff", restart_max="3", restart_backoff_ms="100")
    bench.timeline.run_for(60.0)
    assert (len(times), worker.metrics.total("work_failed"), worker.metrics.total("work_restarts")) == (4, 4, 3)


def test_work_of_an_unconfirmed_membership_is_given_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A worker that has lost only the brokers has its claims, and the group may have removed it. Its work starts again
    when the membership is confirmed, without another assignment.
    """
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", **ENDLESS)
    bench.until_running("c", 1)
    ended_s = bench.timeline.now_s
    monkeypatch.setattr(WorkerHooks, "unconfirmed_s", property(lambda _: bench.timeline.now_s - ended_s))
    bench.timeline.run_for(2.5)
    assert bench.owner(TaskId("c", 0)) == "w1"
    bench.timeline.run_for(2.0)
    assert bench.owned(ConnectorId("c"), TaskId("c", 0)) == {ConnectorId("c"): None, TaskId("c", 0): None}
    assert "group g: all work stops: nothing has confirmed the membership for long" in caplog.text
    # A change of the configuration starts nothing meanwhile.
    worker.run(worker.requests.pause("c"))
    worker.run(worker.requests.resume("c"))
    bench.timeline.run_for(2.0)
    assert bench.owner(TaskId("c", 0)) is None
    monkeypatch.undo()
    bench.timeline.run_until(lambda: bench.counts.count("start", "c-0") == 2)


def test_a_problem_is_in_the_status_while_it_lasts() -> None:
    """It is there after a second, without secrets and in one line; one that is over by then is not written."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", **ENDLESS)
    bench.until_running("c", 1)
    context: Any = bench.counts.contexts["c-0"]
    path = LAYOUT.status("c", 0)

    def problem() -> str:
        return WorkStatus.parse(bench.ensemble.tree.get(path).data, path).problem

    def report(text: str) -> None:
        worker.process.call(context.report_problem, text)

    report("passes")
    bench.timeline.run_for(0.5)
    report("")
    bench.timeline.run_for(2.0)
    assert problem() == ""
    report("no answer\n from http://u:s3cret@host/")
    bench.timeline.run_for(1.5)
    assert (problem(), bench.state(TaskId("c", 0))) == ("no answer from http://[hidden]@host/", WorkState.RUNNING)
    until_rejoined(bench, "w1")
    assert problem() == "no answer from http://[hidden]@host/"
    report("")
    bench.timeline.run_for(1.5)
    assert problem() == ""


def test_a_run_that_has_ended_reports_no_problem() -> None:
    """Neither its failure nor its next run has the problem or the metrics of the run before."""
    bench = WorkerGroupBench()
    (worker,) = bench.start("w1")
    bench.create("c", **ENDLESS)
    bench.until_running("c", 1)
    former: Any = bench.counts.contexts["c-0"]
    path = LAYOUT.status("c", 0)

    async def raise_error() -> None:
        raise ValueError("no")

    def status() -> WorkStatus:
        return WorkStatus.parse(bench.ensemble.tree.get(path).data, path)

    worker.process.call(former.report_problem, "slow")
    former.metrics.gauge("lag", 3, topic="a")
    former.metrics.count("records", 2)
    bench.timeline.run_for(6.5)
    assert status().problem == "slow"
    assert status().metrics == (("lag", (("topic", "a"),), 3.0), ("records", (), 2))
    labels = (("connector", "c"), ("task", "0"))
    assert ("records", labels, 2.0) in worker.metrics.samples()
    bench.counts.hooks["poll", "c-0"] = raise_error
    bench.timeline.run_until(lambda: status().state == "FAILED")
    assert (status().problem, status().metrics) == ("", ())
    assert ("records", labels, 2.0) not in worker.metrics.samples()
    del bench.counts.hooks["poll", "c-0"]
    worker.run(worker.requests.restart(TaskId("c", 0)))
    bench.until_running("c", 1)
    worker.process.call(former.report_problem, "late")
    bench.timeline.run_for(2.0)
    assert (status().state, status().problem) == ("RUNNING", "")
