"""What happens to a simulated group: a list of events, made from a seed, that can be played, told and shortened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from kiel_groups.config import BROKER_V0, ZOOKEEPER_STORE

__all__ = ["Event", "Story", "FAULTS", "BROKER_FAULTS", "HINT_FAULTS", "make_story", "shorten"]

#: How long things take, in seconds; the session timeout is 10.
SHORT_S, LONG_S = (0.05, 4.0), (6.0, 25.0)


class Event(NamedTuple):
    """
    Something that is done to the group at a moment, in seconds from the beginning.

    ``who`` picks a consumer, a server or a topic (of those that there are, counted round), ``choice`` in [0, 1) one of
    its partitions or so, ``duration_s`` is how long it takes.
    """

    at_s: float
    act: str
    who: int
    choice: float
    duration_s: float


@dataclass(frozen=True)
class Story:
    """Everything that a run is made from; ``seed`` is also that of all delays in it."""

    seed: int
    members: int
    topics: tuple[int, ...]
    reset: str
    #: Its name.
    allocator: str
    is_static: bool
    most_operations: int
    #: None: as often as the product does by itself. Rarer ones cost less of a run's time, and lose more leases.
    heartbeat_interval_ms: int | None
    #: How many ticks of half a second a server without contact goes on for.
    sync_limit: int
    #: Where offsets are stored.
    store: str
    #: How often members look without a hint.
    reconcile_interval_ms: int
    events: tuple[Event, ...]
    #: After how many seconds each of the first partitions of every topic has a leader; the others have one at once.
    leaders_after_s: tuple[float, ...] = ()

    @property
    def faults(self) -> int:
        faults = FAULTS.keys() | BROKER_FAULTS.keys() | HINT_FAULTS.keys() | set(LOG_FAULTS)
        return sum(event.act in faults for event in self.events)


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
    "delete_slice": 1,
    "delete_pointer": 1,
    "delete_candidate": 1,
    "delete_member": 1,
    "recreate_topic": 1,
    "lose_leaders": 3,
}
#: Further faults where brokers write the offsets: so many of them, each with a weight.
BROKER_FAULTS = {"hold_commits": 3, "lose_commit_answers": 1}
MOST_BROKER_FAULTS = 4
#: Further faults where members look without a hint often enough that a story is long enough to tell.
HINT_FAULTS = {"hint_often": 3, "lose_events": 2}
MOST_HINT_FAULTS = 2
#: How often that is, in milliseconds, in how many of the groups; and in the others.
FREQUENT_MS, FREQUENT_SHARE, USUAL_MS = 8_000, 0.25, 30_000
#: What happens to logs, in some of the stories.
LOG_FAULTS = ("retain", "cut_log")
#: What is no fault, and makes partitions move.
CHANGES = {"join": 4, "leave": 3, "subscribe": 3, "grow_topic": 1, "weights": 2}
#: How many of the groups are allocated by whom.
ALLOCATING = {"sticky": 0.55, "round_robin": 0.25, "weighted": 0.2}

EVENTS = 150
LEAST_FAULTS, MOST_FAULTS = 5, 9
#: Seconds between two events, on average.
PACE_S = 0.35
#: How many of the groups have static members.
STATIC_SHARE = 0.3
#: In how many of the groups brokers write the offsets.
BROKER_SHARE = 0.2
#: In how many of the stories logs lose records, and how often at most in one.
LOGS_SHARE = 0.5
MOST_LOG_FAULTS = 6


def make_story(seed: int) -> Story:
    """The story that belongs to a seed."""
    random = Random(seed)
    faults = random.randint(LEAST_FAULTS, MOST_FAULTS)
    changes = random.randint(3, 7)
    store = BROKER_V0 if random.random() < BROKER_SHARE else ZOOKEEPER_STORE
    acts = _draw(random, FAULTS, faults) + _draw(random, CHANGES, changes)
    if store == BROKER_V0:
        acts += _draw(random, BROKER_FAULTS, random.randint(1, MOST_BROKER_FAULTS))
    reconcile_interval_ms = FREQUENT_MS if random.random() < FREQUENT_SHARE else USUAL_MS
    if reconcile_interval_ms == FREQUENT_MS:
        acts += _draw(random, HINT_FAULTS, random.randint(1, MOST_HINT_FAULTS))
    acts += ["work"] * (EVENTS + faults - len(acts))
    random.shuffle(acts)
    at_s, events = 0.0, []
    for act in acts:
        at_s += random.expovariate(1 / PACE_S)
        events.append(_event(random, at_s, act))
    events = sorted([*events, *_log_events(seed, at_s)])
    return Story(
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
    )


def _log_events(seed: int, until_s: float) -> list[Event]:
    """What happens to logs; drawn by themselves: the rest of a story is the same without."""
    random = Random(f"logs of {seed}")
    count = random.randint(2, MOST_LOG_FAULTS) if random.random() < LOGS_SHARE else 0
    return [_event(random, random.uniform(0.1, 1.0) * until_s, random.choice(LOG_FAULTS)) for _ in range(count)]


def _leaders_after_s(random: Random) -> tuple[float, ...]:
    """A third of the groups begins while partitions have no leader, some for a moment, some for long."""
    if random.random() < 2 / 3:
        return ()
    bound_s = random.choice([1.0, 20.0])
    return tuple(round(random.uniform(0.0, bound_s), 3) for _ in range(random.randint(1, 12)))


def _draw(random: Random, weights: dict[str, int], count: int) -> list[str]:
    return random.choices(list(weights), list(weights.values()), k=count)


def _event(random: Random, at_s: float, act: str) -> Event:
    if act == "work":
        duration_s = random.uniform(0.01, 1.0) if random.random() < 0.95 else random.uniform(5.0, 20.0)
    else:
        duration_s = random.uniform(*random.choice([SHORT_S, LONG_S]))
    return Event(round(at_s, 3), act, random.randrange(60), random.random(), round(duration_s, 3))


def shorten(story: Story, fails: Callable[[Story], bool], tries: int = 400) -> Story:
    """
    Leave out events, as many as can be, so that it still fails.

    Larger pieces first, then single ones; at most so many tries.
    """
    events = list(story.events)
    size = len(events) // 2
    while size and tries:
        start = 0
        while start < len(events) and tries:
            shorter = _with(story, events[:start] + events[start + size :])
            tries -= 1
            if fails(shorter):
                events = list(shorter.events)
            else:
                start += size
        size //= 2
    return _with(story, events)


def _with(story: Story, events: list[Event]) -> Story:
    return replace(story, events=tuple(events))
