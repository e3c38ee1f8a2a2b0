"""Scenarios: the settings and events of a simulated group, drawn from a seed. A failing scenario can be shortened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar

from kiel_groups.config import BROKER_V0, ZOOKEEPER_STORE
from tests.fakes.simulated_process import ENDLESS

__all__ = [
    "PATTERNS",
    "pattern_events",
    "AnyScenario",
    "Event",
    "Eventful",
    "Scenario",
    "FAULTS",
    "BROKER_FAULTS",
    "RECONCILE_FAULTS",
    "make_scenario",
    "shorten",
]

#: The ranges of durations of operations, in seconds; the session timeout is 10.
SHORT_S, LONG_S = (0.05, 4.0), (6.0, 25.0)


class Event(NamedTuple):
    """
    An operation on the group, ``at_s`` seconds after the start.

    ``target`` selects a consumer, a server, a topic or the like by its number, modulo their count. ``choice`` in [0, 1)
    selects one of its partitions or another detail. ``duration_s`` is the duration of the operation or of its effect.
    """

    at_s: float
    operation: str
    target: int
    choice: float
    duration_s: float


class Eventful(Protocol):
    """A scenario of any kind of group: a frozen dataclass."""

    @property
    def seed(self) -> int: ...
    @property
    def events(self) -> tuple[Event, ...]: ...
    @property
    def faults(self) -> int: ...
    @property
    def settings(self) -> str: ...


AnyScenario = TypeVar("AnyScenario", bound=Eventful)


@dataclass(frozen=True)
class Scenario:
    """All settings that determine a run. All random delays derive from ``seed``."""

    seed: int
    members: int
    topics: tuple[int, ...]
    reset: str
    #: The name of the group's allocator.
    allocator: str
    is_static: bool
    most_operations: int
    #: None means the product's default. Longer intervals make runs faster, and let more leases expire.
    heartbeat_interval_ms: int | None
    #: The ticks of half a second for which a server without contact to the leader keeps answering.
    sync_limit: int
    #: The offset store.
    store: str
    #: The interval at which members reconcile without a notification.
    reconcile_interval_ms: int
    events: tuple[Event, ...]
    #: The seconds after which the first partitions of every topic get a leader. Other partitions have a leader at once.
    leaders_after_s: tuple[float, ...] = ()
    #: Whether members commit finished records by themselves; if not, their applications commit.
    autocommit: bool = True
    #: About one record of this number is poisoned; 0 for none.
    poison_every: int = 0
    #: How long the applications wait between joining and subscribing, in seconds; consumers take these in turn.
    subscribe_after_s: tuple[float, ...] = (0.0,)

    @property
    def settings(self) -> str:
        """The settings, for a report."""
        return (
            f"{self.members} members, topics of {self.topics} partitions, {self.reset}, {self.allocator}, offsets in"
            f" {self.store}, at most {self.most_operations} operations a transaction"
        )

    @property
    def faults(self) -> int:
        faults = FAULTS.keys() | BROKER_FAULTS.keys() | RECONCILE_FAULTS.keys() | set(LOG_FAULTS)
        return sum(event.operation in faults for event in self.events)


#: Faults, each with a weight.
FAULTS = {
    "kill": 3,
    "restart": 3,
    "pause": 4,
    "block": 2,
    "stall": 4,
    "reset": 2,
    "lose_reply": 5,
    "lose_request": 1,
    "lag": 3,
    "cut": 3,
    "partition": 4,
    "freeze": 2,
    "crash": 2,
    "kill_publishing": 3,
    "reset_offset": 4,
    "garble_offset": 2,
    "delete_offsets": 2,
    "force_release": 2,
    "delete_assignment": 1,
    "delete_group_state": 1,
    "delete_candidate": 1,
    "delete_member": 1,
    "recreate_topic": 1,
    "lose_leaders": 3,
}
#: Further faults, each with a weight, if brokers write the offsets, and the most such faults in a scenario.
BROKER_FAULTS = {"hold_commits": 3, "lose_commit_answers": 1}
MOST_BROKER_FAULTS = 4
#: Further faults, each with a weight, if members reconcile several times in a scenario, and the most such faults.
RECONCILE_FAULTS = {"notify_often": 3, "lose_events": 2}
MOST_RECONCILE_FAULTS = 2
#: The short reconcile interval in milliseconds, the share of the groups with it, and the interval of other groups.
FREQUENT_MS, FREQUENT_SHARE, USUAL_MS = 8_000, 0.25, 30_000
#: Faults of logs, in some of the scenarios.
LOG_FAULTS = ("retain", "cut_log")
#: Operations that move partitions and are no faults, each with a weight.
CHANGES = {"join": 4, "leave": 3, "subscribe": 3, "grow_topic": 1, "weights": 2}
#: What applications do apart from their work, each with a weight; the share of the groups in which they do, and how
#: often at most.
ACTS = {"seek": 5, "get_many": 4, "pause_partition": 3, "resume_partitions": 2}
ACTING_SHARE, MOST_ACTS = 0.5, 30
#: Subscriptions to patterns, and topics that come and go, each with a weight; the share of the groups with them, and
#: how many there are at most.
PATTERN_CHANGES = {"subscribe_pattern": 3, "create_topic": 5, "delete_topic": 3}
PATTERN_SHARE, MOST_PATTERN_CHANGES = 0.4, 16
#: The patterns of consumers. The last one matches for ever, as far as members know.
PATTERNS = ("t", "n", "t0|n", "[tn].*", "n[0-3]", "none", f"{ENDLESS}b")
#: The share of the groups that use each allocator.
ALLOCATING = {
    "sticky": 0.35,
    "range": 0.1,
    "round_robin": 0.15,
    "weighted": 0.15,
    "lag_aware": 0.15,
    "rack_aware": 0.1,
}

EVENTS = 150
LEAST_FAULTS, MOST_FAULTS = 5, 9
#: Seconds between two events, on average.
PACE_S = 0.35
#: The share of the groups that have static members.
STATIC_SHARE = 0.3
#: The share of the groups in which brokers write the offsets.
BROKER_SHARE = 0.2
#: The share of the scenarios in which logs lose records, and the most such faults in one.
LOGS_SHARE = 0.5
MOST_LOG_FAULTS = 6
#: The share of the scenarios in which applications commit offsets that they choose, and the most such commits in one.
CHOSEN_SHARE = 0.5
#: The share of the groups with poisoned records, and how rare those are.
POISON_SHARE, POISON_EVERY = 0.4, (5, 20, 60)
MOST_CHOSEN = 25
#: The share of the groups with applications that subscribe after they have joined; the share of their consumers that
#: do, and the longest time between, in seconds.
LATE_SHARE, LATE_CONSUMERS, MOST_LATE_S = 0.4, 0.6, 8.0
#: The share of the scenarios in which an operator orders offsets, and the most such orders in one.
ORDERS_SHARE, MOST_ORDERS = 0.5, 6
#: The share of the groups whose applications commit (``autocommit=False``).
MANUAL_SHARE = 0.25


def make_scenario(seed: int) -> Scenario:
    """Draw the scenario of a seed."""
    random = Random(seed)
    faults = random.randint(LEAST_FAULTS, MOST_FAULTS)
    changes = random.randint(3, 7)
    store = BROKER_V0 if random.random() < BROKER_SHARE else ZOOKEEPER_STORE
    operations = _draw(random, FAULTS, faults) + _draw(random, CHANGES, changes)
    if store == BROKER_V0:
        operations += _draw(random, BROKER_FAULTS, random.randint(1, MOST_BROKER_FAULTS))
    reconcile_interval_ms = FREQUENT_MS if random.random() < FREQUENT_SHARE else USUAL_MS
    if reconcile_interval_ms == FREQUENT_MS:
        operations += _draw(random, RECONCILE_FAULTS, random.randint(1, MOST_RECONCILE_FAULTS))
    operations += ["work"] * (EVENTS + faults - len(operations))
    random.shuffle(operations)
    at_s, events = 0.0, []
    for operation in operations:
        at_s += random.expovariate(1 / PACE_S)
        events.append(_event(random, at_s, operation))
    events += [*_log_events(seed, at_s), *_chosen_commits(seed, at_s), *_application_events(seed, at_s)]
    events = sorted([*events, *_orders(seed, at_s), *pattern_events(seed, at_s)])
    return Scenario(
        seed=seed,
        members=random.randint(3, 6),
        topics=random.choice([(24,), (14, 12), (10, 9, 8)]),
        reset=random.choice(["earliest", "latest"]),
        allocator=random.choices(list(ALLOCATING), list(ALLOCATING.values()))[0],
        is_static=random.random() < STATIC_SHARE,
        most_operations=random.choice([3, 8, 200]),
        heartbeat_interval_ms=random.choice([None, 3_000, 3_300, 3_300]),
        sync_limit=random.choice([4, 10, 30]),
        store=store,
        reconcile_interval_ms=reconcile_interval_ms,
        events=tuple(events),
        leaders_after_s=_leaders_after_s(random),
        # From a separate generator, as the faults of logs.
        autocommit=Random(f"autocommit of {seed}").random() >= MANUAL_SHARE,
        poison_every=_poison_every(seed),
        subscribe_after_s=_subscribe_after_s(seed),
    )


def _poison_every(seed: int) -> int:
    """Draw ``Scenario.poison_every`` from a separate generator, so that it does not change the rest of a scenario."""
    random = Random(f"poison of {seed}")
    return random.choice(POISON_EVERY) if random.random() < POISON_SHARE else 0


def _subscribe_after_s(seed: int) -> tuple[float, ...]:
    """Draw ``Scenario.subscribe_after_s`` from a separate generator, as ``_poison_every``."""
    random = Random(f"late subscriptions of {seed}")
    if random.random() >= LATE_SHARE:
        return (0.0,)
    return tuple(
        round(random.uniform(0.0, MOST_LATE_S), 3) if random.random() < LATE_CONSUMERS else 0.0 for _ in range(7)
    )


def _log_events(seed: int, until_s: float) -> list[Event]:
    """Draw the faults of logs from a separate generator, so that they do not change the rest of a scenario."""
    random = Random(f"logs of {seed}")
    count = random.randint(2, MOST_LOG_FAULTS) if random.random() < LOGS_SHARE else 0
    return [_event(random, random.uniform(0.1, 1.0) * until_s, random.choice(LOG_FAULTS)) for _ in range(count)]


def _chosen_commits(seed: int, until_s: float) -> list[Event]:
    """Draw the commits of chosen offsets from a separate generator, so that they do not change the rest."""
    random = Random(f"chosen commits of {seed}")
    count = random.randint(2, MOST_CHOSEN) if random.random() < CHOSEN_SHARE else 0
    return [_event(random, random.uniform(0.05, 1.0) * until_s, "commit_chosen") for _ in range(count)]


def _orders(seed: int, until_s: float) -> list[Event]:
    """Draw the orders of an operator from a separate generator, so that they do not change the rest of a scenario."""
    random = Random(f"orders of {seed}")
    count = random.randint(1, MOST_ORDERS) if random.random() < ORDERS_SHARE else 0
    return [_event(random, random.uniform(0.05, 1.0) * until_s, "order_offsets") for _ in range(count)]


def _application_events(seed: int, until_s: float) -> list[Event]:
    """Draw seeks, pauses and the like from a separate generator, as the faults of logs."""
    random = Random(f"application of {seed}")
    count = random.randint(5, MOST_ACTS) if random.random() < ACTING_SHARE else 0
    acts = _draw(random, ACTS, count)
    return [_event(random, random.uniform(0.1, 1.0) * until_s, act)._replace(duration_s=0.5) for act in acts]


def pattern_events(seed: int, until_s: float) -> list[Event]:
    """Draw subscriptions to patterns, and new and deleted topics, from a separate generator, as the faults of logs."""
    random = Random(f"patterns of {seed}")
    if random.random() >= PATTERN_SHARE:
        return []
    changes = ["subscribe_pattern", *_draw(random, PATTERN_CHANGES, random.randint(3, MOST_PATTERN_CHANGES))]
    return [_event(random, random.uniform(0.0, 1.0) * until_s, change) for change in changes]


def _leaders_after_s(random: Random) -> tuple[float, ...]:
    """Draw ``Scenario.leaders_after_s``. A third of the groups start while partitions have no leader."""
    if random.random() < 2 / 3:
        return ()
    bound_s = random.choice([1.0, 20.0])
    return tuple(round(random.uniform(0.0, bound_s), 3) for _ in range(random.randint(1, 12)))


def _draw(random: Random, weights: dict[str, int], count: int) -> list[str]:
    return random.choices(list(weights), list(weights.values()), k=count)


def _event(random: Random, at_s: float, operation: str) -> Event:
    if operation == "work":
        duration_s = random.uniform(0.01, 1.0) if random.random() < 0.95 else random.uniform(5.0, 20.0)
    else:
        duration_s = random.uniform(*random.choice([SHORT_S, LONG_S]))
    return Event(round(at_s, 3), operation, random.randrange(60), random.random(), round(duration_s, 3))


def shorten(scenario: AnyScenario, fails: Callable[[AnyScenario], bool], tries: int = 400) -> AnyScenario:
    """
    Remove as many events as possible from a scenario that fails, so that it still fails.

    Args:
        scenario: The scenario.
        fails: Plays a scenario, and returns whether it fails in the same way.
        tries: The most calls of ``fails``; larger groups of events are tried first, then single events.
    """
    events = list(scenario.events)
    size = len(events) // 2
    while size and tries:
        start = 0
        while start < len(events) and tries:
            shorter = _with(scenario, events[:start] + events[start + size :])
            tries -= 1
            if fails(shorter):
                events = list(shorter.events)
            else:
                start += size
        size //= 2
    return _with(scenario, events)


def _with(scenario: AnyScenario, events: list[Event]) -> AnyScenario:
    changed: Any = replace(scenario, events=tuple(events))  # type: ignore[type-var]
    return changed  # type: ignore[no-any-return]
