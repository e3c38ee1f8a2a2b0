"""
Print ``docs/failures.rst``: every failure of which a test of this folder has the name, and what it shows.

    python -m tests.failures > docs/failures.rst
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

WIDTH = 120

HEAD = """\
What can fail, and what the group makes of it
=============================================

Each of these failures is brought about on real servers by a test of its name in ``tests/failures`` (``pytest
tests/failures`` runs them), the ones at the end by tests in ``tests/integration``. Most of the former note every
hand-out with the claim under which it was made, and fail where one came under a claim that was not the newest of its
partition, where a value was never handed out, or where an offset was committed that nobody had been given. Each waits
a bounded time for the group to recover. What chance finds beyond them: ``simulation.rst``; why it holds:
``ownership.rst``.
"""

ELSEWHERE = {
    "test_group_watchdog.py": "an event loop blocked in a leader and in an owner, an application that hangs, a listener"
    " that hangs",
    "test_group_static.py": "a duplicate instance, a process restarted faster than its old session expires",
    "test_group_resets.py": "an operator's reset under a busy and under an idle owner, and during a hand-over",
    "test_force_release.py": "a forced release of a living owner, and of one that is gone",
    "test_group_delivery.py": "a broker, or ZooKeeper, that restarts; a listener that raises",
    "test_group_refuted.py": "a topic deleted and created again, brokers that have moved",
    "test_group_membership.py": "partitions added, kill −9",
    "test_group_bad_input.py": "a chroot that is missing, members that disagree, an allocator that fails",
    "test_broker_offset_store.py": "mixed stores, brokers that are down",
    "test_old_tools.py": "a Java consumer, or a member of kiel's, that comes later",
}


def document() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(), *_elsewhere()])


def _sections() -> Iterator[str]:
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        about = (ast.get_docstring(module) or "").rstrip(".")
        yield f"{about}\n{'-' * len(about)}\n"
        for function in module.body:
            if isinstance(function, (ast.AsyncFunctionDef, ast.FunctionDef)) and function.name.startswith("test_"):
                failure = function.name.removeprefix("test_").replace("_", " ")
                yield f"{failure}\n{_indented(ast.get_docstring(function) or '')}\n"


def _elsewhere() -> Iterator[str]:
    title = "Shown in ``tests/integration``, beside what they belong to"
    yield f"{title}\n{'-' * len(title)}\n"
    for file, failures in ELSEWHERE.items():
        yield f"``{file}``\n{_indented(failures)}\n"


def _indented(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="    ", subsequent_indent="    ")


if __name__ == "__main__":
    sys.stdout.write(document())
