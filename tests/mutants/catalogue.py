"""
The catalogue of mutants, a module for each promise that they would break; its docstring is the promise.

A mutant replaces one piece of the source, which it quotes exactly.
"""

from __future__ import annotations

from types import ModuleType

from tests.mutants import (
    commits,
    credentials,
    delivery,
    fencing,
    leadership,
    liveness,
    mirrors,
    outcomes,
    ownership,
    resets,
    secrets,
    workers,
)
from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS", "PROMISES"]

_MODULES: tuple[ModuleType, ...] = (
    ownership,
    fencing,
    leadership,
    delivery,
    commits,
    resets,
    outcomes,
    liveness,
    workers,
    mirrors,
    secrets,
    credentials,
)

#: The mutants of each promise.
PROMISES: dict[str, tuple[Mutant, ...]] = {module.__doc__ or "": module.MUTANTS for module in _MODULES}
MUTANTS: tuple[Mutant, ...] = tuple(mutant for mutants in PROMISES.values() for mutant in mutants)
