"""The runner of mutants, on a project with one function and its tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.helpers.waiting import eventually
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

def test_that_always_fails():
    assert double(2) == 5

def test_that_hangs():
    Path(__file__, "../../../hangs").resolve().touch()
    time.sleep(600)
"""


def mutant(killer: str, new: str = "3 * number") -> Mutant:
    return Mutant("double() returns the triple", "numbers.py", "2 * number", new, f"tests/test_numbers.py::{killer}")


class Project:
    """A project in a folder, the folder of its trials, and the lines that the trials have printed."""

    def __init__(self, folder: Path) -> None:
        self.root, self.trials_folder = folder / "root", folder / "trials"
        self.lines: list[str] = []
        # Regular packages: a folder without __init__.py would come after an installed package of the same name.
        sources = {"kiel_groups/__init__.py": "", "kiel_groups/numbers.py": SOURCE, "tests/test_numbers.py": TESTS}
        for path, text in sources.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)

    async def run(self, *mutants: Mutant) -> list[Verdict]:
        return await Trials(self.root, self.trials_folder, 1, 2, self.lines.append).run(mutants)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


async def test_a_mutant_that_fails_its_killer_is_killed_and_an_equivalent_one_survives(project: Project) -> None:
    """
    A mutant whose killer fails is killed, and an equivalent mutant survives. There is a line for each killer and each
    mutant, and the project itself is unchanged.
    """
    verdicts = await project.run(mutant("test_double"), mutant("test_double", "number + number"))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.KILLED, Outcome.SURVIVED]
    assert len(project.lines) == 4
    assert (project.root / "kiel_groups/numbers.py").read_text() == SOURCE
    assert [path.name for path in project.trials_folder.iterdir()] == ["original"]


@pytest.mark.parametrize("killer", ["test_that_always_fails", "test_that_is_missing"])
async def test_a_killer_that_does_not_pass_on_the_original_gives_no_verdict(project: Project, killer: str) -> None:
    """A killer that does not pass on the original gives no verdict, because it would kill every mutant."""
    (verdict,) = await project.run(mutant(killer))
    assert verdict.outcome is Outcome.NONE


async def test_a_mutant_that_cannot_be_imported_has_no_verdict(project: Project) -> None:
    """A mutant that cannot be imported has no verdict, because it shows nothing about the tests."""
    (verdict,) = await project.run(mutant("test_double", "2 *"))
    assert verdict.outcome is Outcome.NONE


async def test_a_cancelled_run_ends_its_killers(project: Project) -> None:
    """
    A cancelled run ends its killers and waits for their end, because no process may continue in a folder that is about
    to be deleted.
    """
    running = asyncio.ensure_future(project.run(mutant("test_that_hangs")))
    await eventually((project.trials_folder / "hangs").exists, "the killer runs", timeout_s=60.0)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert not project.lines[1:]


def test_the_replaced_text_must_occur_exactly_once(project: Project) -> None:
    """A mutant does not fit the source if its text is missing, or if it occurs twice."""
    assert fits(mutant("test_double"), project.root)
    for other in ("2 * numbers", "number"):
        assert not fits(mutant("test_double")._replace(old=other), project.root)
