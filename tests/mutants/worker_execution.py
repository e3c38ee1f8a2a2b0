"""Mutants of the work that workers run: claims, supervisors and runners."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_FENCE = "workers/runners/work_fence.py"
_CALLS = "workers/runners/plugin_calls.py"
_SOURCE = "workers/runners/source_task_runner.py"
_SINK = "workers/runners/sink_task_runner.py"
_CONNECTOR = "workers/runners/connector_runner.py"
_CLAIMS = "workers/execution/work_claims.py"
_SUPERVISOR = "workers/execution/work_supervisor.py"
_PLAN = "workers/execution/work_plan.py"
_POLICY = "workers/execution/restart_policy.py"

_CALLS_TEST = "tests/unit/workers/runners/test_plugin_calls.py"
_SOURCE_TEST = "tests/unit/workers/runners/test_source_task_runner.py"
_SINK_TEST = "tests/unit/workers/runners/test_sink_task_runner.py"
_CONNECTOR_TEST = "tests/unit/workers/runners/test_connector_runner.py"
_CLAIMS_TEST = "tests/sim/test_work_claims.py"
_RUNTIME_TEST = "tests/sim/test_worker_runtime.py"
_PLAN_TEST = "tests/unit/workers/execution/test_work_plan.py"
_POLICY_TEST = "tests/unit/workers/execution/test_restart_policy.py"

MUTANTS = (
    # Runners
    Mutant(
        "work whose claim is lost is delivered",
        _FENCE,
        "            if self.shut_reason:\n",
        "            if False:\n",
        _SOURCE_TEST,
    ),
    Mutant(
        "records are delivered while the session is not trusted",
        _FENCE,
        "return not self.shut_reason and self._session.trusted",
        "return not self.shut_reason",
        _SOURCE_TEST,
    ),
    Mutant(
        "the fence is not looked at after the wait for other calls",
        _CALLS,
        "        if not self._fence.is_open:\n",
        "        if False:\n",
        _CALLS_TEST,
    ),
    Mutant(
        "a turn whose fence has closed is not repeated",
        _CALLS,
        "                with suppress(_FenceClosedError):\n",
        "                if True:\n",
        _CALLS_TEST,
    ),
    Mutant(
        "a thread does not look at the fence before it calls a plugin",
        _CALLS,
        "            check()\n            return guarded(method, arguments)\n",
        "            return guarded(method, arguments)\n",
        _CALLS_TEST,
    ),
    Mutant(
        "a cancelled call does not wait for its thread",
        _CALLS,
        "        while not running.done():\n            try:\n",
        "        while not running.done() and not is_cancelled:\n            try:\n",
        _CALLS_TEST,
    ),
    Mutant(
        "a slow constructor blocks the event loop",
        _CALLS,
        "            if _needs_thread(plugin_class):\n",
        "            if False:\n",
        _CALLS_TEST,
    ),
    Mutant(
        "a constructor that needs the running loop has none",
        _CALLS,
        "    return not any(inspect.iscoroutinefunction(getattr(plugin_class, name, None)) for name in _METHODS)\n",
        "    return True\n",
        _CALLS_TEST,
    ),
    Mutant(
        "offsets of records that were not delivered are stored",
        _SOURCE,
        "        for outcome in outcomes:\n            outcome.result()\n",
        "",
        _SOURCE_TEST,
    ),
    Mutant(
        "what a task delivered before its error is delivered again",
        _SOURCE,
        "            await self._store_after_error()\n",
        "",
        _SOURCE_TEST,
    ),
    Mutant(
        "source offsets are stored without regard to the interval",
        _SOURCE,
        "self._due_s = ended_s + max(self._interval_s, pause_s)",
        "self._due_s = ended_s + pause_s",
        _SOURCE_TEST,
    ),
    Mutant(
        "source offsets keep a slow ZooKeeper busy",
        _SOURCE,
        "self._due_s = ended_s + max(self._interval_s, pause_s)",
        "self._due_s = ended_s + self._interval_s",
        _SOURCE_TEST,
    ),
    Mutant(
        "a run that is cancelled ends beside a call of its plugin",
        "workers/runners/runner_interface.py",
        "        except BaseException:\n            await self.calls.ended()\n            raise\n",
        "",
        _CALLS_TEST,
    ),
    Mutant(
        "two sinks share a consumer group",
        "workers/runners/task_clients.py",
        'f"connect_{shown}_{digest[:_DIGEST_CHARACTERS]}"',
        'f"connect_{shown}"',
        _SINK_TEST,
    ),
    Mutant(
        "a partial write is left before the next line of another task",
        "workers/shipped/file_stream_sink.py",
        "                os.ftruncate(descriptor, end)\n",
        "                pass\n",
        "tests/unit/workers/shipped/test_file_stream_sink.py",
    ),
    Mutant(
        "a new file with the same first line is taken for the old one",
        "workers/shipped/followed_file.py",
        "if lines is None or self._next.inode not in (None, lines.identity[1]):",
        "if lines is None:",
        "tests/unit/workers/shipped/test_followed_file.py",
    ),
    Mutant(
        "a sink commits what it has not flushed",
        _SINK,
        "            await self.calls.in_turn(lambda call: call(self._task.flush, dict(self._taken)))\n",
        "",
        _SINK_TEST,
    ),
    Mutant(
        "a sink gives partitions back without a flush",
        _SINK,
        "        await self._flush_and_commit()\n        self._forget(partitions)\n",
        "        self._forget(partitions)\n",
        _SINK_TEST,
    ),
    Mutant(
        "a stop that waits for a hook is left out if it is cancelled",
        "workers/runners/plugin_calls.py",
        "                break\n            except asyncio.CancelledError:\n",
        "                break\n            except TimeoutError:\n",
        _CALLS_TEST,
    ),
    Mutant(
        "a hook of a sink calls its task after stop",
        _CALLS,
        "        self._is_last = True\n",
        "",
        _SINK_TEST,
    ),
    Mutant(
        "the error of a fetch that was given up is logged",
        _SINK,
        "        getting.add_done_callback(retrieve)\n",
        "",
        _SINK_TEST,
    ),
    Mutant(
        "a sink that has failed in a hook continues",
        _SINK,
        "                self._failure.set_exception(error)\n",
        "                self._failure.cancel()\n",
        _SINK_TEST,
    ),
    Mutant(
        "a connector has more tasks than users allow",
        _CONNECTOR,
        "    if len(configs) > most:\n",
        "    if False:\n",
        _CONNECTOR_TEST,
    ),
    # Claims
    Mutant(
        "the owner znode of another worker is taken for a claim",
        _CLAIMS,
        "            if node.owner == self._session.id:\n",
        "            if True:\n",
        _CLAIMS_TEST,
    ),
    Mutant(
        "a release deletes the owner znode of another worker",
        _CLAIMS,
        "        waiting = self._mine(await self._read(releases))\n",
        "        waiting = set(releases)\n",
        _CLAIMS_TEST,
    ),
    Mutant(
        "a cancelled claim leaves its owner znode",
        _CLAIMS,
        "                    # The caller was cancelled after the owner znode was created.\n"
        "                    self._release_unused(work)\n",
        "                    pass\n",
        _CLAIMS_TEST,
    ),
    Mutant(
        "a deleted owner znode is not noticed",
        _CLAIMS,
        "                self._on_gone(work)\n",
        "",
        _CLAIMS_TEST,
    ),
    Mutant(
        "a release whose answer is lost is not tried again",
        _CLAIMS,
        "self._mine(await self._read(outcome.unknown)) if outcome.unknown else set()",
        "set()",
        _CLAIMS_TEST,
    ),
    # Supervisors
    Mutant(
        "the claim of a plugin that does not stop is released",
        _SUPERVISOR,
        "            self._abandon(limit_s)\n            await asyncio.wait({running})\n",
        "            self._abandon(limit_s)\n",
        _RUNTIME_TEST,
    ),
    Mutant(
        "a rebalance waits for a plugin that does not stop",
        _SUPERVISOR,
        "        if self._is_stopping:\n            self.given_back.set()\n",
        "",
        _RUNTIME_TEST,
    ),
    Mutant(
        "work starts beside its former run",
        _SUPERVISOR,
        "            await self._wait_for_former()\n",
        "            self._former = None\n",
        _RUNTIME_TEST,
    ),
    # Plans
    Mutant(
        "changed settings of a task are not assigned",
        _PLAN,
        "    return _shared(assigned) != _shared(present)\n",
        "    return _shared(assigned).keys() != _shared(present).keys()\n",
        _PLAN_TEST,
    ),
    Mutant(
        "tasks of an unreadable connector run",
        _PLAN,
        "    if entry.problem or entry.tasks is None or work.task >= len(entry.tasks):\n",
        "    if entry.tasks is None or work.task >= len(entry.tasks):\n",
        _PLAN_TEST,
    ),
    Mutant(
        "failed work restarts without a limit",
        _POLICY,
        '        if self._restarts >= settings["restart.max"]:\n            return None\n',
        "",
        _POLICY_TEST,
    ),
)
