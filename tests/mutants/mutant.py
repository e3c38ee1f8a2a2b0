"""A mutant: one deliberate fault in the source, and the test that must fail because of it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ON_SERVERS", "SIM", "Mutant"]

#: Simulated groups, with the same first seeds each time.
SIM = "sim"
#: Tests on real servers, by the beginning of their names.
ON_SERVERS = "tests/integration/test_group"


class Mutant(NamedTuple):
    """
    A deliberate fault: the text ``old``, which occurs once in ``file`` (below the package), is replaced by ``new``.

    ``name`` says what the code then does wrong: the actor, and its fault. ``killer`` must fail because of the fault:
    ``SIM`` or a test.
    """

    name: str
    file: str
    old: str
    new: str
    killer: str = SIM
