"""Poisoned records at simulated members: no commit gets past them, unless the application has said so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.model import TopicPartition
from tests.sim import poison
from tests.sim.consumer import Consumer
from tests.sim.play import play
from tests.sim.poison import Poison
from tests.sim.scenario import make_scenario
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

P0 = TopicPartition("t0", 0)


class OnePoisoned(Poison):
    """The record at offset 5 is poisoned."""

    def first(self, partition: TopicPartition, start: int, until: int) -> int | None:
        return 5 if start <= 5 < until else None


def member(world: World, *, hook: bool) -> Consumer:
    """Return the member, with a hook for poisoned records or without."""
    world.poison = OnePoisoned(0, 1)
    (consumer,) = world.consumers
    records = consumer.poisoned
    records.bad._on_bad_record = records._hook if hook else "raise"
    return consumer


def test_an_error_is_met_again_and_again_until_the_application_seeks() -> None:
    """The record before is stored, and not the poisoned one; with the seek, what is behind it."""
    with at_rest(members=1, topics=(1,), reset="earliest") as world:
        consumer = member(world, hook=False)
        for raised in (0, 1, 2):
            consumer.work(0.0, 20, 0.1)
            world.run_for(7.0)
            assert consumer.metrics.counter("bad_records_raised") == raised
            assert world.history.stored(P0) == 5
        consumer.work(0.0, 20, 0.1)
        world.run_for(7.0)
        assert world.history.stored(P0) == 6
        consumer.work(0.0, 4, 0.1)
        world.run_for(7.0)
        assert world.history.stored(P0) == 10
        world.close(60.0)


def test_the_next_owner_meets_the_same_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release does not wait for a record that was raised, and does not store it."""
    monkeypatch.setattr(poison, "PATIENCE", 1_000)
    with at_rest(members=1, topics=(1,), reset="earliest") as world:
        consumer = member(world, hook=False)
        consumer.work(0.0, 20, 0.1)
        world.run_for(1.0)
        consumer.work(0.0, 20, 0.1)
        world.run_for(0.01)
        other = world.join(["t0"])
        consumer.leave()
        world.run_for(20.0)
        assert world.history.stored(P0) == 5
        other.poisoned.bad._on_bad_record = "raise"
        other.work(0.0, 20, 0.1)
        world.run_for(1.0)
        assert other.metrics.counter("bad_records_raised") == 1
        world.close(60.0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_release_waits_for_a_hook(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """It stores the record if the hook has returned, and leaves it to the next owner if the hook has raised."""
    monkeypatch.setattr(poison, "FAILING_SHARE", 1.0 if fails else 0.0)
    with at_rest(members=1, topics=(1,), reset="earliest") as world:
        consumer = member(world, hook=True)
        consumer.work(0.0, 20, 0.1)
        world.run_for(1.0)
        consumer.work(0.0, 20, 0.1)
        world.run_for(0.01)
        assert consumer.poisoned.hooks.keys() == {P0}
        world.join(["t0"])
        consumer.leave()
        world.run_for(20.0)
        assert consumer.closed
        assert world.history.stored(P0) == (5 if fails else 6)
        world.close(60.0)


def test_scenarios_meet_poisoned_records() -> None:
    """Errors are raised, hooks return and fail, and nothing is lost."""
    seen: dict[str, int] = {}

    for seed in range(3):
        worlds: list[World] = []
        outcome = play(replace(make_scenario(seed), poison_every=5), observe=worlds.append)
        assert outcome.error == ""
        for consumer in worlds[0].consumers:
            for name in ("bad_records_raised", "bad_records_passed", "bad_record_hooks_failed"):
                seen[name] = seen.get(name, 0) + consumer.metrics.counter(name)
    assert all(seen.values()), seen
