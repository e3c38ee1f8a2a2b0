"""
Schedules of faults: a pure function of the seed. A schedule can be stored as JSON and loaded again.

A schedule says when a fault starts relative to the previous fault, not at which second of the run. How long a server
takes to start again depends on the machine; ``run.py`` delays a fault until its target has recovered from the previous
one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import islice
from random import Random
from typing import NoReturn

__all__ = ["KINDS", "REPLICAS", "ZOOKEEPERS", "Domain", "Fault", "Kind", "Schedule", "ScheduleError", "make_schedule"]

#: Format of the JSON file.
VERSION = 1

#: Faults before each rest. A partition may be unowned during a fault, so there must be times without a fault.
FAULTS_BETWEEN_RESTS = 8

#: The number of ZooKeeper servers in a run, and the number of brokers that store a record.
ZOOKEEPERS, REPLICAS = 3, 2

#: The limits of a stored schedule: numbers of processes, and the length of a fault or a session, in seconds.
MOST_MEMBERS, MOST_BROKERS, LONGEST_S = 32, 16, 3_600.0

#: How many characters of a wrong value an error shows.
MOST_SHOWN = 60

#: Seconds between the starts of two faults.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 4.0


class Domain(StrEnum):
    """
    The kind of a fault's target.

    At any time, each member has at most one fault, all brokers together have at most one, and so has the ensemble.
    """

    MEMBER = "member"
    BROKERS = "brokers"
    ENSEMBLE = "ensemble"


@dataclass(frozen=True, slots=True)
class Kind:
    """
    One kind of fault.

    Args:
        name: The name in the schedule, in the report and in ``faults.py``.
        domain: The kind of the target.
        shortest, longest: The range of the duration, as multiples of the members' session timeout.
        weight: How often the kind occurs in each deck of faults.
        excuses: Whether a partition may be unowned during the fault. If a member is only killed or leaves, the other
            members must own its partitions in time, even before its host starts another process.
    """

    name: str
    domain: Domain
    shortest: float
    longest: float
    weight: int = 1
    excuses: bool = True


_ALL = (
    Kind("member-kill", Domain.MEMBER, 0.1, 2.0, weight=4, excuses=False),
    Kind("member-restart", Domain.MEMBER, 0.0, 1.0, weight=2, excuses=False),
    Kind("member-join", Domain.MEMBER, 0.4, 2.0, weight=2, excuses=False),
    Kind("member-stop-short", Domain.MEMBER, 0.2, 0.9, weight=2),
    Kind("member-stop-long", Domain.MEMBER, 1.2, 2.2, weight=3),
    Kind("member-zookeeper-cut", Domain.MEMBER, 0.1, 2.0, weight=2),
    Kind("member-zookeeper-stall", Domain.MEMBER, 0.2, 2.2, weight=3),
    Kind("member-zookeeper-mute", Domain.MEMBER, 0.2, 2.0, weight=2),
    Kind("member-zookeeper-flicker", Domain.MEMBER, 0.5, 2.0, weight=2),
    Kind("member-broker-cut", Domain.MEMBER, 0.1, 1.5),
    Kind("member-broker-stall", Domain.MEMBER, 0.2, 2.0),
    Kind("member-broker-mute", Domain.MEMBER, 0.2, 1.5),
    Kind("member-broker-flicker", Domain.MEMBER, 0.5, 1.5),
    Kind("broker-kill", Domain.BROKERS, 0.0, 0.8, weight=2),
    Kind("broker-restart", Domain.BROKERS, 0.0, 0.5),
    Kind("broker-stop", Domain.BROKERS, 0.3, 2.5, weight=2),
    Kind("broker-without-zookeeper", Domain.BROKERS, 0.5, 2.5, weight=2),
    Kind("zookeeper-kill", Domain.ENSEMBLE, 0.0, 0.8, weight=2),
    Kind("zookeeper-restart", Domain.ENSEMBLE, 0.0, 0.5),
    Kind("zookeeper-stop", Domain.ENSEMBLE, 0.3, 1.8, weight=2),
    Kind("zookeeper-leader-cut", Domain.ENSEMBLE, 0.3, 1.5, weight=2),
    Kind("zookeeper-follower-cut", Domain.ENSEMBLE, 0.3, 1.5),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


class ScheduleError(ValueError):
    """The file is not a schedule that this program can run."""


@dataclass(frozen=True, slots=True)
class Fault:
    """
    One fault of a schedule.

    Args:
        number: The fault's number in the schedule, from 1.
        kind: A key of ``KINDS``.
        target: The number of a member's host, the id of a broker, or 0 for ZooKeeper's leader and 1 or 2 for a
            follower at the start of the fault. ``zookeeper-leader-cut`` and ``zookeeper-follower-cut`` always hit the
            leader and a follower.
        lasts_s: Seconds until the fault ends, when the process is started or resumed, or the network is healed.
        after_s: Least number of seconds between the start of the previous fault and the start of this one.
        rest_s: If more than 0, the fault starts at least this many seconds after all earlier faults have recovered.
    """

    number: int
    kind: str
    target: int
    lasts_s: float
    after_s: float
    rest_s: float = 0.0

    @property
    def exclusive(self) -> str:
        """The name of the target, or group of targets, that can have only one fault at a time."""
        domain = KINDS[self.kind].domain
        return f"{domain} {self.target}" if domain is Domain.MEMBER else str(domain)

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} {self.target} for {self.lasts_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults of one run, and the size of the group and the cluster."""

    seed: int
    session_timeout_s: float
    members: int
    brokers: int
    faults: tuple[Fault, ...]

    def to_json(self) -> str:
        """Return the schedule as it is stored, with a line for each fault."""
        head = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "faults"}
        lines = ",\n  ".join(json.dumps(asdict(fault)) for fault in self.faults)
        return f'{json.dumps({"version": VERSION, **head})[:-1]}, "faults": [\n  {lines}\n]}}\n'

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """
        Return the schedule that ``to_json`` stored.

        Raises:
            ScheduleError: The text is not JSON, has another version, or has a field with a value that no run can have.
        """
        try:
            stored = _Fields("schedule", json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ScheduleError(f"no schedule: {error}") from error
        if (version := stored.take("version")) != VERSION:
            raise ScheduleError(f"schedule.version: {_shown(version)} given; expected version {VERSION}")
        listed = stored.take("faults")
        if not isinstance(listed, list) or not listed:
            raise ScheduleError(f"schedule.faults: {_shown(listed)} given; expected a list of at least one fault")
        seed = stored.whole("seed", -(1 << 63), 1 << 63)
        session_timeout_s = stored.number("session_timeout_s", 1.0, LONGEST_S)
        members, brokers = stored.whole("members", 1, MOST_MEMBERS), stored.whole("brokers", REPLICAS, MOST_BROKERS)
        stored.end()
        faults = (_fault(_Fields(f"faults[{index}]", each), members, brokers) for index, each in enumerate(listed))
        return cls(seed, session_timeout_s, members, brokers, tuple(faults))


class _Fields:
    """Reads each field of one JSON object once. An error names the field, its value and the expected values."""

    def __init__(self, name: str, stored: object) -> None:
        if not isinstance(stored, dict):
            raise ScheduleError(f"{name}: {_shown(stored)} given; expected an object")
        self._name = name
        self._left = dict(stored)

    def take(self, field: str) -> object:
        if field not in self._left:
            raise ScheduleError(f"{self._name}.{field}: missing")
        return self._left.pop(field)

    def whole(self, field: str, least: int, most: int) -> int:
        value = self.take(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self._refuse(field, value, f"a whole number of {least} to {most}")
        return value

    def number(self, field: str, least: float, most: float) -> float:
        value = self.take(field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            self._refuse(field, value, f"a number of {least:g} to {most:g}")
        return value

    def kind(self, field: str) -> Kind:
        value = self.take(field)
        if not isinstance(value, str) or value not in KINDS:
            self._refuse(field, value, f"one of {', '.join(KINDS)}")
        return KINDS[value]

    def end(self) -> None:
        """Raise an error if the object has a field that was not read."""
        if self._left:
            raise ScheduleError(f"{self._name}: no such field: {', '.join(sorted(self._left))}")

    def _refuse(self, field: str, value: object, expected: str) -> NoReturn:
        raise ScheduleError(f"{self._name}.{field}: {_shown(value)} given; expected {expected}")


def _shown(value: object) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"


def _fault(stored: _Fields, members: int, brokers: int) -> Fault:
    kind = stored.kind("kind")
    targets = {Domain.MEMBER: range(members), Domain.BROKERS: range(brokers), Domain.ENSEMBLE: range(ZOOKEEPERS)}
    # The last host is that of the member that joins and leaves.
    legal = range(members, members + 1) if kind.name == "member-join" else targets[kind.domain]
    fault = Fault(
        number=stored.whole("number", 1, 1 << 31),
        kind=kind.name,
        target=stored.whole("target", legal[0], legal[-1]),
        lasts_s=stored.number("lasts_s", 0.0, LONGEST_S),
        after_s=stored.number("after_s", 0.0, LONGEST_S),
        rest_s=stored.number("rest_s", 0.0, LONGEST_S),
    )
    stored.end()
    return fault


def make_schedule(
    seed: int, count: int, *, session_timeout_s: float = 5.0, members: int = 4, brokers: int = 3
) -> Schedule:
    """
    Draw ``count`` faults.

    Kinds are drawn from a shuffled deck, so that a short schedule has many kinds, and a long schedule has each kind as
    often as its weight says. Two faults in a row never hit the same member, except two faults ``member-join``, so that
    the faults can overlap.

    Args:
        seed: The same seed gives the same schedule.
        count: The number of faults.
        session_timeout_s: The session timeout of the members, in seconds; durations are multiples of it.
        members: The number of members, without the one that ``member-join`` adds.
        brokers: The number of brokers.
    """
    random = Random(seed)
    faults: list[Fault] = []
    for number, kind in enumerate(islice(_deck(random), count), start=1):
        target = _target(random, kind, members, brokers, faults[-1] if faults else None)
        rests = number > 1 and number % FAULTS_BETWEEN_RESTS == 1
        faults.append(
            Fault(
                number=number,
                kind=kind.name,
                target=target,
                lasts_s=round(random.uniform(kind.shortest, kind.longest) * session_timeout_s, 2),
                after_s=round(random.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S), 2),
                # Longer than a session timeout and the tolerance together. Otherwise, the checker could never find an
                # unowned partition.
                rest_s=round(2.2 * session_timeout_s, 2) if rests else 0.0,
            )
        )
    return Schedule(seed, session_timeout_s, members, brokers, tuple(faults))


def _deck(random: Random) -> Iterator[Kind]:
    """Yield kinds endlessly, from shuffled decks. Each deck contains every kind as often as its weight says."""
    while True:
        cards = [kind for kind in _ALL for _ in range(kind.weight)]
        random.shuffle(cards)
        yield from cards


def _target(random: Random, kind: Kind, members: int, brokers: int, before: Fault | None) -> int:
    if kind.domain is Domain.BROKERS:
        return random.randrange(brokers)
    if kind.domain is Domain.ENSEMBLE:
        return random.randrange(ZOOKEEPERS)
    if kind.name == "member-join":
        # The host of the member that joins and leaves.
        return members
    return random.choice([host for host in range(members) if before is None or _hits_another(before, host)])


def _hits_another(before: Fault, host: int) -> bool:
    return KINDS[before.kind].domain is not Domain.MEMBER or before.target != host
