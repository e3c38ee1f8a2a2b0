"""When a step that takes long is warned of."""

from __future__ import annotations

import pytest

from kiel_groups.zookeeper import tasks as slow_step
from kiel_groups.zookeeper.tasks import SlowStep
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_step, "FIRST_S", 0.01)
    monkeypatch.setattr(slow_step, "LONGEST_SILENCE_S", 0.04)


async def test_the_pauses_between_warnings_grow_to_the_longest_one() -> None:
    """Each warning comes when the step has taken twice as long as at the one before, or the longest pause later."""
    ages: list[float] = []
    with SlowStep(ages.append):
        await eventually(lambda: len(ages) >= 5, "five warnings")
    assert ages[:5] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.12])


async def test_a_step_that_has_ended_is_not_warned_of() -> None:
    """The end of a step ends its warnings, also if it has failed, and whether or not there was a warning before."""
    ages: list[float] = []
    with SlowStep(ages.append):
        pass
    with pytest.raises(ValueError, match="failed"), SlowStep(ages.append):
        raise ValueError("failed")
    await throughout(lambda: not ages, "no warning comes", 0.05)
    with SlowStep(ages.append):
        await eventually(lambda: ages, "a warning")
    count = len(ages)
    await throughout(lambda: len(ages) == count, "no later warning comes", 0.1)
