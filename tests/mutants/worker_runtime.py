"""Mutants of what simulated groups of workers have found."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_TEST = "tests/sim/test_worker_runtime.py"

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
        "if self._context.parts.is_over or isinstance(error, SessionLostError):",
        "if self._context.parts.is_over:",
        _TEST,
    ),
)
