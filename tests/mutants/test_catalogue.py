"""The catalogue of mutants follows the source; whether they die is for ``scripts/mutants``, which takes long."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import SIM, Mutant
from tests.mutants.trials import fits

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    """What it breaks stands there exactly once; otherwise the catalogue is to be corrected with the source."""
    assert fits(mutant, ROOT)
    assert mutant.old != mutant.new


def test_mutants_have_names_of_their_own() -> None:
    """A verdict says of one mutant that it died."""
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]


@pytest.mark.parametrize("killer", sorted({mutant.killer for mutant in MUTANTS} - {SIM}))
def test_a_killer_exists(killer: str) -> None:
    """A test that was moved or renamed notices nothing any more."""
    file, _, name = killer.partition("::")
    assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")
