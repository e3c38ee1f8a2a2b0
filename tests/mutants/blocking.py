"""Mutants of the blocking clients: the threads of hooks."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_HOOK_THREADS = "sync/hook_threads.py"

_HOOK_TESTS = "tests/unit/sync/test_blocking_hooks.py"

MUTANTS = (
    Mutant(
        "a hook blocks the loop, which refuses its calls",
        _HOOK_THREADS,
        "        if not callable(function) or isinstance(function, type)",
        "        if True or isinstance(function, type)",
        _HOOK_TESTS,
    ),
    Mutant(
        "a coroutine that a plain function returns is dropped",
        _HOOK_THREADS,
        "        if inspect.isawaitable(called):\n            await called\n",
        "",
        _HOOK_TESTS,
    ),
    Mutant(
        "two callbacks of commits run at once",
        _HOOK_THREADS,
        "            if _IN_HOOK.get():",
        "            if True:",
        _HOOK_TESTS,
    ),
    Mutant(
        "a call by a hook waits until the hook has ended",
        _HOOK_THREADS,
        "            if _IN_HOOK.get():",
        "            if False:",
        _HOOK_TESTS,
    ),
    Mutant(
        "a hook starts while one that was cancelled still runs",
        _HOOK_THREADS,
        "                if self._thread.stopped:\n                    raise\n                cancelled = True",
        "                raise",
        _HOOK_TESTS,
    ),
    Mutant(
        "a hook that hangs keeps the loop from stopping",
        _HOOK_THREADS,
        "                if self._thread.stopped:\n                    raise\n",
        "",
        _HOOK_TESTS,
    ),
)
