"""The catalogue of mutants fits the source. ``scripts/mutants``, which is slow, checks that each mutant is killed."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.catalogue import MUTANTS
from tests.mutants.former import FORMER
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


def test_the_names_of_mutants_are_unique() -> None:
    """The names of mutants are unique, because the report of a run identifies each mutant by its name."""
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]


def test_no_former_fault_is_in_the_catalogue() -> None:
    """
    No former fault is in the catalogue. A fault that can be expressed against the source belongs in the catalogue
    alone.
    """
    assert not {mutant.name for mutant in MUTANTS} & FORMER.keys()


@pytest.mark.parametrize("killer", sorted({mutant.killer for mutant in MUTANTS} - {SIM}))
def test_a_killer_exists(killer: str) -> None:
    """Each killer exists. A test that was moved or renamed kills no mutant."""
    file, _, name = killer.partition("::")
    assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


def test_the_page_has_the_numbers_of_the_catalogue() -> None:
    """``docs/simulation.rst`` says how many mutants there are, and how many are killed by each kind of test."""
    kinds = Counter(_kind(mutant.killer) for mutant in MUTANTS)
    page = " ".join((ROOT / "docs/simulation.rst").read_text(encoding="utf-8").split())
    assert (
        f"``scripts/mutants`` has {len(MUTANTS):,} breakages, and none survives: {kinds['scenarios']} are found by"
        f" scenarios, within 500 seeds, {kinds['no servers']} by tests without servers, and {kinds['servers']} by tests"
        " on real ones"
    ) in page


def _kind(killer: str) -> str:
    """Return what a killer runs on; the markers of its file say whether it needs real servers."""
    if killer == SIM:
        return "scenarios"
    source = (ROOT / killer.partition("::")[0]).read_text(encoding="utf-8")
    needs_none = re.search(r"^pytestmark = .*\bmark\.(unit|property|sim)\b", source, re.MULTILINE)
    return "no servers" if needs_none else "servers"
