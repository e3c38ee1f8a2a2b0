"""Mutants of what simulated groups of workers have found."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_TEST, _CLOSE_TEST = "tests/sim/test_worker_runtime.py", "tests/sim/test_worker_close.py"

MUTANTS = (
    Mutant(
        "an emptied configuration offset moves back to 0",
        "workers/stores/config_reader.py",
        "offset = offset or await self._newest_in_history()",
        "offset = offset or 0",
        _TEST,
    ),
    Mutant(
        "claims that end before their session count as a failed supervisor",
        "workers/execution/work_supervisor.py",
        "return self._context.parts.is_over or isinstance(error, SessionLostError)",
        "return self._context.parts.is_over",
        _TEST,
    ),
    Mutant(
        "a worker that closes does not wait for plugins that do not stop",
        "workers/execution/herder.py",
        "        await self._plugins_stopped(on_stuck)\n",
        "",
        _CLOSE_TEST,
    ),
    Mutant(
        "a release whose offsets cannot be stored keeps its claim",
        "workers/execution/work_supervisor.py",
        "                    offsets = ()\n",
        "                    return\n",
        _CLOSE_TEST,
    ),
    Mutant(
        "a refused release is not tried again",
        "workers/execution/work_supervisor.py",
        "                    await asyncio.sleep(_REFUSED_PAUSE_S)\n",
        "                    return\n",
        _CLOSE_TEST,
    ),
    Mutant(
        "a check of settings blocks the worker",
        "workers/execution/plugin_lookups.py",
        'self._runtime.in_thread(lambda: guarded(function, arguments), "plugins")',
        "asyncio.ensure_future(asyncio.sleep(0, guarded(function, arguments)))",
        "tests/unit/workers/execution/test_plugin_lookups.py",
    ),
)
