"""Mutants of work that runs on while the group of workers assigns again, and of the claims that let it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_HERDER = "workers/execution/herder.py"
_SUPERVISOR = "workers/execution/work_supervisor.py"
_PLAN = "workers/execution/work_plan.py"
_CLAIMS = "workers/execution/work_claims.py"
_STATUSES = "workers/stores/status_store.py"
_READER = "workers/stores/config_reader.py"

_TEST = "tests/sim/test_kept_work.py"
_PLAN_TEST = "tests/unit/workers/execution/test_work_plan.py"
_CLAIMS_TEST = "tests/sim/test_work_claims.py"
_STATUSES_TEST = "tests/sim/test_worker_statuses.py"
_RUNTIME_TEST = "tests/sim/test_worker_runtime.py"

MUTANTS = (
    # Before the join
    Mutant(
        "a rebalance stops all work",
        _HERDER,
        "        return outdated(config, {work: supervisor.spec for work, supervisor in self._running.items()})\n",
        "        return list(self._running)\n",
        _TEST,
    ),
    Mutant(
        "tasks with former settings run on during a rebalance",
        _HERDER,
        "        self._begin_stop(await self._outdated())\n        await self._stopped()\n",
        "",
        _TEST,
    ),
    Mutant(
        "a worker joins while tasks with former settings still stop",
        _HERDER,
        "        self._begin_stop(await self._outdated())\n        await self._stopped()\n",
        "        self._begin_stop(await self._outdated())\n",
        _TEST,
    ),
    Mutant(
        "a worker that cannot read the configuration keeps its work",
        _HERDER,
        "            return list(self._running)\n",
        "            return []\n",
        _TEST,
    ),
    Mutant(
        "work without an assignment is kept for ever",
        _HERDER,
        "        self._begin_patience()\n        self._begin_stop(",
        "        self._begin_stop(",
        _TEST,
    ),
    Mutant(
        "work of a membership that nothing confirms is kept for ever",
        _HERDER,
        "            if is_doubtful and not self._is_doubtful:\n",
        "            if False:\n",
        _TEST,
    ),
    Mutant(
        "a change starts work of a membership that nothing confirms",
        _HERDER,
        "        if config.offset < assignment.offset or self._is_doubtful:\n",
        "        if config.offset < assignment.offset:\n",
        _TEST,
    ),
    Mutant(
        "a worker that leaves keeps its work until it has left",
        _HERDER,
        "        if self._is_closing:\n            await self._give_back()\n            return\n",
        "",
        _TEST,
    ),
    Mutant(
        "a worker that cannot do its part keeps its work",
        "workers/coordination/worker_hooks.py",
        "        self._listener.on_lost()\n        self._attached.leave()\n",
        "        self._attached.leave()\n",
        "tests/unit/workers/coordination/test_unsynced_workers.py",
    ),
    # After the assignment
    Mutant(
        "work that moves is kept",
        _HERDER,
        "        self._begin_stop([work for work in self._running if work not in wanted])\n",
        "",
        _TEST,
    ),
    Mutant(
        "kept work does not follow its settings",
        _HERDER,
        "            supervisor.update(wanted[work], self._generation)\n",
        "            pass\n",
        _TEST,
    ),
    Mutant(
        "statuses of kept work stay as they are",
        _SUPERVISOR,
        "                self._context.parts.reports.confirm(self.work, self.status)\n",
        "",
        _TEST,
    ),
    Mutant(
        "a task whose claim is gone reports",
        _SUPERVISOR,
        "        if not self._context.parts.claims.owns(self.work):\n",
        "        if False:\n",
        _TEST,
    ),
    # What is assigned anew
    Mutant(
        "changed tasks are not outdated",
        _PLAN,
        "if work not in wanted or _identity(wanted[work]) != _identity(spec)]",
        "if work not in wanted]",
        _PLAN_TEST,
    ),
    Mutant(
        "a connector that was created again is the former one",
        _PLAN,
        "    return spec.created, spec.task\n",
        "    return 0, spec.task\n",
        _PLAN_TEST,
    ),
    Mutant(
        "a connector that was created again is not assigned again",
        _PLAN,
        "(entry.created, None if entry.problem",
        "(0, None if entry.problem",
        _PLAN_TEST,
    ),
    Mutant(
        "tasks that have to be assigned again start",
        _PLAN,
        "(_identity(former[work]) == _identity(spec) if work in former else spec.task is None)",
        "(True if work in former else spec.task is None)",
        _PLAN_TEST,
    ),
    # Claims and statuses
    Mutant(
        "a claim that is granted while its caller is cancelled stays",
        _CLAIMS,
        "            if request.outcome.done() and work in self._tokens:\n",
        "            if False:\n",
        _CLAIMS_TEST,
    ),
    Mutant(
        "a release during the read of its owner is missed",
        _CLAIMS,
        "            elif request is not None and work in self._fired:\n",
        "            elif False:\n",
        _CLAIMS_TEST,
    ),
    Mutant(
        "a release that no caller waits for leaves an error",
        _CLAIMS,
        "            self.outcome.exception()\n",
        "",
        _CLAIMS_TEST,
    ),
    Mutant(
        "a status is written after the release of its work",
        _STATUSES,
        "        self._newest.pop(work, None)\n",
        "",
        _STATUSES_TEST,
    ),
    Mutant(
        "a status that an operator has deleted is never written again",
        _STATUSES,
        "                self._written.discard(work)\n",
        "",
        _STATUSES_TEST,
    ),
    Mutant(
        "a snapshot is never read again",
        _READER,
        "self._last[0] == _identity(before)",
        "before is not None",
        "tests/sim/test_worker_configuration.py",
    ),
)
