"""What a breakage of the core is."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ON_SERVERS", "SIM", "Mutant"]

#: Some of the first seeds of the simulator.
SIM = "sim"
#: Tests on real servers, by the beginning of their names.
ON_SERVERS = "tests/integration/test_group"


class Mutant(NamedTuple):
    """
    ``old`` stands once in ``file`` (below the package) and is replaced by ``new``.

    ``killer`` names what notices: ``SIM`` or a test.
    """

    name: str
    file: str
    old: str
    new: str
    killer: str = SIM
