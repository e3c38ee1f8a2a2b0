"""The targets of the fuzzer with their seeds, and with inputs that have failed."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.property

#: Inputs with which a target has failed, by target.
FOUND: dict[str, list[bytes]] = {}


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_found_inputs_pass(name: str) -> None:
    """Each target passes with its seeds, with each seed truncated, and with the inputs that have failed."""
    target = TARGETS[name]
    for data in [*target.seeds, *FOUND.get(name, ())]:
        for size in (len(data), len(data) // 2, 3):
            target.run(data[:size])
