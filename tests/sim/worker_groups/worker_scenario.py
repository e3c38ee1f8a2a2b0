"""Scenarios of groups of workers: settings and events, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.sim.scenario import Event

__all__ = ["FAULTS", "WorkerScenario", "make_worker_scenario"]

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
    "task_raises": 5,
    "connector_raises": 3,
    "stop_hangs": 5,
    "lose_partitions": 6,
    "refuse_commits": 3,
    "silence_brokers": 3,
    "slow_sinks": 4,
    "delete_owner": 4,
    "delete_worker": 2,
    "delete_status": 2,
    "garble_status": 1,
    "garble_connector": 3,
    "garble_config": 1,
    "delete_member": 2,
    "delete_candidate": 1,
    "delete_assignment": 1,
    "delete_group_state": 2,
    "garble_group_state": 2,
    "garble_member": 1,
    "lag": 3,
    "partition": 3,
    "cut": 2,
    "freeze_server": 2,
    "crash": 2,
}
#: Operations that are no faults, each with a weight.
CHANGES = {
    "join": 4,
    "leave": 4,
    "rejoin": 3,
    "create": 6,
    "delete": 4,
    "configure": 6,
    "tasks_max": 5,
    "new_tasks": 6,
    "pause": 4,
    "resume": 4,
    "restart_work": 4,
}

LEAST_FAULTS, MOST_FAULTS = 4, 10
LEAST_CHANGES, MOST_CHANGES = 6, 14
#: The names of all connectors, and how many of them are sinks.
NAMES, SINK_PORTION = ("c1", "c2", "c3", "c4", "last"), 0.45
#: Seconds between two events, on average.
PACE_S = 2.0


@dataclass(frozen=True)
class WorkerScenario:
    """All settings that determine a run. All random delays derive from ``seed``."""

    seed: int
    members: int
    connectors: int
    #: The names of the connectors that are sinks, and the number of partitions of their topic.
    sinks: tuple[str, ...]
    partitions: int
    #: The most seconds that a call of a sink task takes, the time between two commits, and how often a consumer loses
    #: its partitions, in seconds.
    call_s: float
    commit_s: float
    losses_s: float
    allocator: str
    #: The most seconds that ``start`` and ``stop`` of connectors and tasks take.
    start_s: float
    stop_s: float
    #: Whether stop, flush and task_configs are plain methods, which run on threads.
    is_threaded: bool
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
        threads = ", on threads" if self.is_threaded else ""
        return (
            f"{self.members} workers, {self.connectors} connectors, sinks {list(self.sinks)} of {self.partitions}"
            f" partitions with calls up to {self.call_s:g} s, {self.allocator}, start up to {self.start_s:g} s,"
            f" stop up to {self.stop_s:g} s{threads}, rebalance timeout {self.rebalance_timeout_ms} ms, checks every"
            f" {self.reconcile_interval_ms} ms"
        )


def make_worker_scenario(seed: int) -> WorkerScenario:
    """Draw the scenario of a seed."""
    random = Random(f"workers {seed}")
    operations = _draw(random, FAULTS, random.randint(LEAST_FAULTS, MOST_FAULTS))
    operations += _draw(random, CHANGES, random.randint(LEAST_CHANGES, MOST_CHANGES))
    random.shuffle(operations)
    at_s, events = random.uniform(0.0, 6.0), []
    for operation in operations:
        at_s += random.expovariate(1 / PACE_S)
        duration_s = random.uniform(*random.choice([SHORT_S, LONG_S]))
        events.append(Event(round(at_s, 3), operation, random.randrange(60), random.random(), round(duration_s, 3)))
    return WorkerScenario(
        seed=seed,
        members=random.randint(1, 5),
        connectors=random.randint(1, 3),
        sinks=tuple(name for name in NAMES if random.random() < SINK_PORTION),
        partitions=random.randint(1, 4),
        call_s=random.choice([0.05, 0.3, 1.0]),
        commit_s=random.choice([1.0, 5.0]),
        losses_s=random.choice([4.0, 15.0, 60.0]),
        allocator=random.choice(["round_robin", "sticky"]),
        start_s=random.choice([0.0, 0.0, 0.5, 3.0]),
        stop_s=random.choice([0.0, 0.0, 0.5, 1.5]),
        is_threaded=random.random() < 0.3,
        rebalance_timeout_ms=random.choice([15_000, 30_000]),
        reconcile_interval_ms=random.choice([10_000, 30_000]),
        sync_limit=random.choice([4, 10]),
        events=tuple(events),
    )


def _draw(random: Random, weights: dict[str, int], count: int) -> list[str]:
    return random.choices(list(weights), list(weights.values()), k=count)
