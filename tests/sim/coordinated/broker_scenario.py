"""Scenarios of groups that brokers coordinate: settings and events, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.sim.scenario import Event, pattern_events

__all__ = ["FAULTS", "BrokerScenario", "make_broker_scenario"]

#: The ranges of durations of operations, in seconds; the session timeout is 10. No cut is longer than a join, at the
#: shortest rebalance timeout, is waited for.
SHORT_S, LONG_S = (0.05, 4.0), (6.0, 15.0)

#: Faults, each with a weight.
FAULTS = {
    "kill": 3,
    "restart": 3,
    "freeze": 5,
    "block": 4,
    "cut": 4,
    "cut_beats": 3,
    "cut_offsets": 2,
    "lose_request": 6,
    "lose_answer": 8,
    "slow_network": 2,
    "crash_broker": 5,
    "move_coordinator": 3,
    "lose_metadata": 1,
    "expire_offsets": 1,
}
#: Operations that are no faults, each with a weight.
CHANGES = {"join": 4, "leave": 3, "leave_soon": 1, "subscribe": 3, "grow_topic": 1, "recreate_topic": 1}
#: What applications and producers do apart from their work, each with a weight.
ACTS = {"produce": 6, "get_many": 3, "pause_partition": 1, "resume_partitions": 1, "commit_chosen": 2}

EVENTS = 120
LEAST_FAULTS, MOST_FAULTS = 4, 10
#: Seconds between two events, on average.
PACE_S = 0.5
#: The share of the groups whose brokers are of 0.9, of those whose applications commit, and, where brokers are later
#: ones, of those whose topics have ids, and, of the others, of those that name a member before it waits for the others.
EARLY_SHARE, MANUAL_SHARE, IDS_SHARE, NAMES_FIRST_SHARE = 0.4, 0.25, 0.6, 0.5
#: The share of deliveries that take long, and how long, in seconds.
SLOW_SHARE, SLOW_S = 0.05, (5.0, 20.0)


@dataclass(frozen=True)
class BrokerScenario:
    """All settings that determine a run. All random delays derive from ``seed``."""

    seed: int
    members: int
    topics: tuple[int, ...]
    reset: str
    #: Whether the brokers behave as those of 0.9.
    early: bool
    #: Whether topics of later brokers have ids, as from 2.8 on.
    ids: bool
    #: Whether later brokers know JoinGroup v4, as from 2.2 on.
    names_first: bool
    assignor: str
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    request_timeout_ms: int
    #: The watchdog's limit; 0 for none.
    max_poll_ms: int
    metadata_max_age_ms: int
    offset_refresh_ms: int
    initial_delay_s: float
    autocommit: bool
    #: How long the assigned hook takes, in seconds.
    hook_s: float
    events: tuple[Event, ...]

    @property
    def faults(self) -> int:
        return sum(event.operation in FAULTS for event in self.events)

    @property
    def release(self) -> tuple[int, int]:
        """The release of the brokers."""
        if self.early:
            return (0, 9)
        return (3, 9) if self.ids else (2, 7) if self.names_first else (2, 1)

    @property
    def settings(self) -> str:
        """The settings, for a report."""
        major, minor = self.release
        brokers = f"{major}.{minor}"
        if not self.early:
            brokers += f", rebalance timeout {self.rebalance_timeout_ms} ms"
        return (
            f"{self.members} members, topics of {self.topics} partitions, {self.reset}, {self.assignor}, brokers of"
            f" {brokers}, heartbeats every {self.heartbeat_interval_ms} ms, watchdog {self.max_poll_ms} ms,"
            f" {'auto' if self.autocommit else 'manual '}commit, hooks of {self.hook_s:g} s"
        )


def make_broker_scenario(seed: int) -> BrokerScenario:
    """Draw the scenario of a seed."""
    random = Random(f"broker group {seed}")
    operations = _draw(random, FAULTS, random.randint(LEAST_FAULTS, MOST_FAULTS))
    operations += _draw(random, CHANGES, random.randint(3, 7)) + _draw(random, ACTS, random.randint(10, 30))
    operations += ["work"] * max(0, EVENTS - len(operations))
    random.shuffle(operations)
    at_s, events = 0.0, []
    for operation in operations:
        at_s += random.expovariate(1 / PACE_S)
        events.append(_event(random, at_s, operation))
    events = sorted([*events, *pattern_events(seed, at_s)])
    rebalance_timeout_ms = random.choice([10_000, 15_000, 30_000, 300_000])
    # Later settings have their own source, so that the seeds of former releases keep all others.
    names_first = Random(f"broker group names {seed}").random() < NAMES_FIRST_SHARE
    return BrokerScenario(
        seed=seed,
        members=random.randint(2, 5),
        topics=random.choice([(12,), (8, 6), (5, 4, 3)]),
        reset=random.choice(["earliest", "latest"]),
        early=random.random() < EARLY_SHARE,
        assignor=random.choice(["range", "roundrobin", "sticky"]),
        heartbeat_interval_ms=random.choice([1_000, 3_000, 3_300]),
        rebalance_timeout_ms=rebalance_timeout_ms,
        request_timeout_ms=random.choice([3_000, 8_000, 30_000]),
        max_poll_ms=random.choice([0, 0, min(rebalance_timeout_ms, 15_000)]),
        metadata_max_age_ms=random.choice([5_000, 20_000]),
        offset_refresh_ms=random.choice([15_000, 3_600_000]),
        initial_delay_s=random.choice([0.0, 0.0, 3.0]),
        autocommit=random.random() >= MANUAL_SHARE,
        hook_s=random.choice([0.0, 0.0, 0.3, 2.0]),
        events=tuple(events),
        ids=random.random() < IDS_SHARE,
        names_first=names_first,
    )


def _draw(random: Random, weights: dict[str, int], count: int) -> list[str]:
    return random.choices(list(weights), list(weights.values()), k=count)


def _event(random: Random, at_s: float, operation: str) -> Event:
    if operation == "work":
        duration_s = random.uniform(*SLOW_S) if random.random() < SLOW_SHARE else random.uniform(0.01, 1.0)
    elif operation in ACTS:
        duration_s = 0.5
    else:
        duration_s = random.uniform(*random.choice([SHORT_S, LONG_S]))
    return Event(round(at_s, 3), operation, random.randrange(60), random.random(), round(duration_s, 3))
