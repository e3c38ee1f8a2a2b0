"""Mutants of the blocking clients: the threads of hooks, and loops on the program's thread."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_HOOK_THREADS = "sync/hook_threads.py"

_BLOCKING_RECORDS = "sync/blocking_records.py"

_RECORDS_TESTS = "tests/unit/sync/test_blocking_records.py"
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
    # Exits
    Mutant(
        "an exit on the event loop of a blocking consumer keeps its session",
        "sync/blocking_client.py",
        "        self._client._left_loop.abandon()\n",
        "        pass\n",
        "tests/integration/test_sync_exits.py",
    ),
    Mutant(
        "a task that ignores its cancellation keeps a client whose loop has failed",
        "sync/loop_thread.py",
        "                    self._call_on_failure()\n                    raise\n",
        "                    raise\n",
        "tests/unit/sync/test_loop_thread.py",
    ),
    # Loops
    Mutant(
        "a commit counts a record that the program takes after the call",
        _BLOCKING_RECORDS,
        "        self._ask_behind()\n        return method",
        "        return method",
        _RECORDS_TESTS,
    ),
    Mutant(
        "a fork of the process delivers records of its parent",
        _BLOCKING_RECORDS,
        "            client._ask_behind()\n",
        "            pass\n",
        _RECORDS_TESTS,
    ),
    Mutant(
        "an interpreter without a lock takes records on two threads",
        _BLOCKING_RECORDS,
        "            if _HAS_LOCK:\n",
        "            if True:\n",
        _RECORDS_TESTS,
    ),
    Mutant(
        "a record that arrives together with a Ctrl-C counts as processed",
        _BLOCKING_RECORDS,
        "        if has_taken or (asking is not None and self._asking is asking):\n",
        "        if has_taken:\n",
        _RECORDS_TESTS,
    ),
    Mutant(
        "the record before a Ctrl-C is delivered again",
        _BLOCKING_RECORDS,
        "            self._records.delivery.finish()\n",
        "            self._records.delivery.put_back()\n",
        _RECORDS_TESTS,
    ),
    Mutant(
        "a program takes records after a Ctrl-C before it was settled",
        _BLOCKING_RECORDS,
        "            self.ask_behind()\n            self._consumer._thread.post",
        "            self._consumer._thread.post",
        _RECORDS_TESTS,
    ),
    Mutant(
        "an interrupted call of a compiled step counts as none",
        "clients/delivery/_steps.c",
        "asking ? asking : Py_None",
        "Py_None",
        _RECORDS_TESTS,
    ),
    Mutant(
        "a Ctrl-C within a compiled step is not settled",
        "clients/delivery/_steps.c",
        "        interrupted(self, asking);\n",
        "        ;\n",
        _RECORDS_TESTS,
    ),
    Mutant(
        "the work of a call whose caller has just given up is begun",
        "sync/loop_thread.py",
        "        task.cancel()\n",
        "        pass\n",
        "tests/unit/sync/test_loop_thread.py",
    ),
    Mutant(
        "a consumer whose loop was ended by an exit counts as closed",
        "sync/blocking_client.py",
        "        return self._thread.stopped and not self._thread.failed\n",
        "        return self._thread.stopped\n",
        "tests/unit/sync/test_blocking_clients.py",
    ),
    Mutant(
        "a call of a loop that was ended by an exit does not say so",
        "sync/loop_thread.py",
        "self._failure, self._stopped = error, True\n",
        "self._stopped = True\n",
        "tests/unit/sync/test_loop_thread.py",
    ),
)
