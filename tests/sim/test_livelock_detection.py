"""A livelock ends with an error that names the seed, the simulated time and the repeated step."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kiel_groups.group import claims
from kiel_groups.members.zookeeper.owned_partitions import OwnedPartitions
from tests.fakes import FakeEnsemble, Livelock, SimulatedProcess, Timeline
from tests.sim.play import play
from tests.sim.scenario import make_scenario

pytestmark = pytest.mark.sim


async def spin() -> None:
    """Yield to the event loop in an endless loop, without waiting for anything."""
    while True:
        await pause()


async def pause() -> None:
    await asyncio.sleep(0)


def test_a_task_that_never_waits_is_named() -> None:
    """The error names a task that keeps its event loop busy within one step of the timeline."""
    timeline = Timeline(7, most_steps=5_000)
    process = SimulatedProcess(FakeEnsemble(timeline), "c1")
    timeline.run_for(2.5)
    process.start(spin())
    with pytest.raises(Livelock) as raised:
        timeline.run_for(1.0)
    assert str(raised.value) == (
        "seed 7, at 1002.500000 s of simulated time: more than 5000 steps in one instant. The last 1000: 1000 x c1:"
        f" task spin at test_livelock_detection.py:{pause.__code__.co_firstlineno + 1}"
    )


def test_a_call_that_schedules_the_next_one_at_once_is_named() -> None:
    timeline = Timeline(7, most_steps=5_000)

    def again() -> None:
        timeline.after(0.0, again)

    again()
    with pytest.raises(Livelock, match=r"1000 x test_a_call_that.*\.again$"):
        timeline.run_for(1.0)


def test_a_callback_that_schedules_itself_is_named() -> None:
    timeline = Timeline(7, most_steps=5_000)
    process = SimulatedProcess(FakeEnsemble(timeline), "c1")

    def again() -> None:
        process.loop.call_soon(again)

    process.loop.call_later(0.5, again)
    with pytest.raises(Livelock, match=r"at 1000\.500000 s .* 1000 x c1: .*\.again$"):
        timeline.run_for(1.0)


def test_many_steps_at_different_instants_are_no_livelock() -> None:
    timeline = Timeline(7, most_steps=10)
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(timeline.now_s)
        timeline.after(0.001, tick)

    tick()
    timeline.run_for(1.0)
    assert len(ticks) > 900


def test_a_scenario_with_a_livelock_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The error names the seed. In this livelock a member reads its assignment again and again, because each read sets the
    hint to read it.
    """

    async def read_and_hint(owned: OwnedPartitions) -> claims.AssignmentRead:
        owned._due.set()
        return claims.AssignmentRead(None)

    monkeypatch.setattr(OwnedPartitions, "_read_assignment", read_and_hint)
    outcome = play(replace(make_scenario(11), events=()))
    assert outcome.error.startswith("Livelock: seed 11, at ")
    assert "task OwnedPartitions._follow_assignment" in outcome.error
