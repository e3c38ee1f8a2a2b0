"""The runner of mutants, on a project of one function and its test."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.trials import Outcome, Trials, Verdict, fits

pytestmark = pytest.mark.mutants

SOURCE = "def double(number):\n    return 2 * number\n"
TESTS = """
import time
from pathlib import Path
from kiel_groups.numbers import double

def test_double():
    assert double(2) == 4

def test_that_fails_anyway():
    assert double(2) == 5

def test_that_hangs():
    Path(__file__, "../../../hangs").resolve().touch()
    time.sleep(600)
"""


def mutant(killer: str, new: str = "3 * number") -> Mutant:
    return Mutant("a double that is a triple", "numbers.py", "2 * number", new, f"tests/test_numbers.py::{killer}")


class Project:
    """A project in a folder, the folder of its trials, and what is said of these."""

    def __init__(self, folder: Path) -> None:
        self.root, self.trials_folder = folder / "root", folder / "trials"
        self.said: list[str] = []
        # A package of its own: a folder without __init__.py would come after an installed package of that name.
        sources = {"kiel_groups/__init__.py": "", "kiel_groups/numbers.py": SOURCE, "tests/test_numbers.py": TESTS}
        for path, text in sources.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)

    async def run(self, *mutants: Mutant) -> list[Verdict]:
        return await Trials(self.root, self.trials_folder, 1, 2, self.said.append).run(mutants)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


async def test_who_is_noticed_and_who_is_not(project: Project) -> None:
    """A line for each killer and for each mutant; the project itself stays as it is."""
    verdicts = await project.run(mutant("test_double"), mutant("test_double", "number + number"))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.KILLED, Outcome.SURVIVED]
    assert len(project.said) == 4
    assert (project.root / "kiel_groups/numbers.py").read_text() == SOURCE
    assert [path.name for path in project.trials_folder.iterdir()] == ["unbroken"]


@pytest.mark.parametrize("killer", ["test_that_fails_anyway", "test_that_is_missing"])
async def test_a_killer_that_does_not_pass_without_it_has_no_say(project: Project, killer: str) -> None:
    """It would kill everything."""
    (verdict,) = await project.run(mutant(killer))
    assert verdict.outcome is Outcome.NONE


async def test_a_breakage_that_cannot_be_imported_has_no_verdict(project: Project) -> None:
    """It says nothing of the tests."""
    (verdict,) = await project.run(mutant("test_double", "2 *"))
    assert verdict.outcome is Outcome.NONE


async def test_who_is_interrupted_ends_its_killers(project: Project) -> None:
    """And waits for them: nobody goes on in a folder that is about to be deleted."""
    running = asyncio.ensure_future(project.run(mutant("test_that_hangs")))
    async with asyncio.timeout(60.0):
        while not (project.trials_folder / "hangs").exists():  # noqa: ASYNC110 -- another process makes it
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
    assert running.cancelled()
    assert not project.said[1:]


def test_what_is_replaced_stands_there_once(project: Project) -> None:
    """Neither not at all nor twice."""
    assert fits(mutant("test_double"), project.root)
    for other in ("2 * numbers", "number"):
        assert not fits(mutant("test_double")._replace(old=other), project.root)
