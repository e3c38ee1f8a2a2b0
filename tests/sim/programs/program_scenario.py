"""Scenarios of groups of programs: settings and events, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.sim.scenario import Event

__all__ = ["FAULTS", "ProgramScenario", "make_program_scenario"]

#: The ranges of durations of operations, in seconds; the session timeout is 10.
SHORT_S, LONG_S = (0.05, 4.0), (6.0, 25.0)

#: Faults, each with a weight.
FAULTS = {
    "kill": 4,
    "restart": 3,
    "freeze": 5,
    "block": 4,
    "stall": 4,
    "reset": 3,
    "lose_reply": 8,
    "lose_request": 5,
    "lose_events": 2,
    "kill_beginning": 3,
    "kill_publishing": 3,
    "hang": 4,
    "hang_assigning": 2,
    "fail_assignment": 2,
    "delete_member": 2,
    "delete_candidate": 2,
    "delete_assignment": 2,
    "delete_group_state": 2,
    "garble_group_state": 2,
    "garble_member": 2,
    "garble_assignment": 1,
    "stranger": 2,
    "lag": 2,
    "partition": 3,
    "cut": 2,
    "freeze_server": 2,
    "crash": 2,
}
#: Operations that are no faults, each with a weight.
CHANGES = {"join": 5, "leave": 4, "leave_soon": 2, "rejoin": 6, "rejoin_beginning": 3}

LEAST_FAULTS, MOST_FAULTS = 5, 14
#: Seconds between two events, on average.
PACE_S = 2.0


@dataclass(frozen=True)
class ProgramScenario:
    """All settings that determine a run. All random delays derive from ``seed``."""

    seed: int
    members: int
    items: int
    #: The most seconds that ``prepare`` and ``complete`` take.
    prepare_s: float
    complete_s: float
    rebalance_timeout_ms: int
    reconcile_interval_ms: int
    sync_limit: int
    events: tuple[Event, ...]

    @property
    def faults(self) -> int:
        return sum(event.operation in FAULTS for event in self.events)

    @property
    def settings(self) -> str:
        """The settings, for a report."""
        return (
            f"{self.members} members, {self.items} items, prepare up to {self.prepare_s:g} s, complete up to"
            f" {self.complete_s:g} s, rebalance timeout {self.rebalance_timeout_ms} ms, checks every"
            f" {self.reconcile_interval_ms} ms"
        )


def make_program_scenario(seed: int) -> ProgramScenario:
    """Draw the scenario of a seed."""
    random = Random(f"programs {seed}")
    operations = _draw(random, FAULTS, random.randint(LEAST_FAULTS, MOST_FAULTS))
    operations += _draw(random, CHANGES, random.randint(4, 12))
    random.shuffle(operations)
    at_s, events = 0.0, []
    for operation in operations:
        at_s += random.expovariate(1 / PACE_S)
        duration_s = random.uniform(*random.choice([SHORT_S, LONG_S]))
        events.append(Event(round(at_s, 3), operation, random.randrange(60), random.random(), round(duration_s, 3)))
    return ProgramScenario(
        seed=seed,
        members=random.randint(1, 5),
        items=random.choice([3, 7, 20]),
        prepare_s=random.choice([0.0, 0.0, 0.5, 3.0]),
        complete_s=random.choice([0.0, 0.0, 0.5, 3.0]),
        rebalance_timeout_ms=random.choice([5_000, 15_000, 30_000]),
        reconcile_interval_ms=random.choice([10_000, 30_000]),
        sync_limit=random.choice([4, 10]),
        events=tuple(events),
    )


def _draw(random: Random, weights: dict[str, int], count: int) -> list[str]:
    return random.choices(list(weights), list(weights.values()), k=count)
