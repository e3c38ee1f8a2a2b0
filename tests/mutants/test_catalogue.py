"""The catalogue of mutants fits the source. ``scripts/mutants``, which is slow, checks that each mutant is killed."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.catalogue import MUTANTS, PROMISES
from tests.mutants.mutant import SIM, Mutant
from tests.mutants.trials import fits

pytestmark = pytest.mark.unit

#: Names in mutants that the package itself does not use.
_NAMES_OF_MUTANTS = {"CLOCK_MONOTONIC", "_newest"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    """
    The text that a mutant replaces occurs exactly once in the source. A change of the source may require a change of
    the catalogue.
    """
    assert fits(mutant, ROOT)
    assert mutant.old != mutant.new


def test_mutants_use_names_that_exist() -> None:
    """
    Mutants use only names that exist. A mutant with the former name of something would fail for that reason, whatever
    its killer tests.
    """
    files = (path for path in (ROOT / "kiel_groups").rglob("*") if path.suffix in {".py", ".c", ".h"})
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    known = set(re.findall(r"\w+", source)) | _NAMES_OF_MUTANTS
    code = {mutant.name: re.sub(r"\"[^\"]*\"|'[^']*'", "", mutant.new) for mutant in MUTANTS}
    unknown = {name: set(re.findall(r"[A-Za-z_]\w*", text)) - known for name, text in code.items()}
    assert {name: words for name, words in unknown.items() if words} == {}


def test_each_module_of_mutants_names_its_promise() -> None:
    """The docstring of each module is one sentence, the promise that its mutants break."""
    assert not [promise for promise in PROMISES if not promise.endswith(".") or "\n" in promise]


def test_the_names_of_mutants_are_unique() -> None:
    """The names of mutants are unique, because the report of a run identifies each mutant by its name."""
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]


@pytest.mark.parametrize("killer", sorted({mutant.killer for mutant in MUTANTS} - {SIM}))
def test_a_killer_exists(killer: str) -> None:
    """Each killer exists. A test that was moved or renamed kills no mutant."""
    file, _, name = killer.partition("::")
    assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")
