"""
A leader: when to plan, and how a plan is published.

Rules
  1. Only an elected leader plans; what it began as leader it drops as soon as it leads no more. Questions and answers
     carry the number of its term: an answer to what was asked in an earlier one is ignored.
  2. Changes are collected: a plan is made when none came for the quiet time, at the latest at the bound after the
     first one; the first plan of a group's first leader waits for the initial delay. What is urgent ends the waiting.
  3. One plan at a time. What changes meanwhile makes the next plan, after this one is published.
  4. Each write of a publication goes out when the one before was answered with "done". A refused one means that
     somebody else leads or wrote: the plan is void, and everything is read again. So does an unknown outcome.
  5. A plan that changes nothing is not published.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from kiel_groups.config import DebounceConfig
from kiel_groups.group.leader.planner import Publication
from kiel_groups.group.znodes.transactions import Answer, Done, Operation

__all__ = [
    "LeaderState",
    "Duty",
    "Event",
    "Effect",
    "Elected",
    "Deposed",
    "Changed",
    "Tuned",
    "Tick",
    "Planned",
    "Prepared",
    "Written",
    "MakePlan",
    "Prepare",
    "Write",
    "Published",
    "step",
]

#: How long a leader waits after a plan that could not be made or published, in seconds.
RETRY_S = 0.5


class Duty(Enum):
    #: Not elected. Exit: elected.
    NONE = "none"
    #: Elected, and nothing to do. Exit: something changes.
    WATCHING = "watching"
    #: Entry: something changed. Duty: wait until the changes are over. Exit: the deadline.
    SETTLING = "settling"
    #: Entry: the deadline passed. Duty: read everything, run the allocator. Exit: its plan.
    PLANNING = "planning"
    #: Entry: a plan that changes something. Duty: create the folders, then write, one by one. Exit: the last answer.
    PUBLISHING = "publishing"


@dataclass(frozen=True, slots=True)
class LeaderState:
    """
    ``term`` counts its leaderships. ``due_s`` is when to plan (while settling), ``bound_s`` the latest moment for it,
    both on the driver's clock, as ``since_s``, when the first change was seen. ``causes`` are why, in order; those
    that came during a plan belong to the next one.
    """

    debounce: DebounceConfig
    term: int = 0
    duty: Duty = Duty.NONE
    candidate: str | None = None
    due_s: float | None = None
    bound_s: float = 0.0
    since_s: float = field(default=0.0, compare=False)
    causes: tuple[str, ...] = ()
    publication: Publication | None = None
    written: int = 0


@dataclass(frozen=True, slots=True)
class Elected:
    """
    This candidate leads (or leads on, after a pause); ``candidate`` is the path of its znode. One that ``succeeds``
    another finds a group that has gathered.
    """

    candidate: str
    now_s: float
    succeeds: bool = False


@dataclass(frozen=True, slots=True)
class Deposed:
    """It leads no more."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Something that a plan is made from changed; ``cause`` says what. An urgent one is not waited with."""

    cause: str
    now_s: float
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Tuned:
    """The group has another debounce from now on."""

    debounce: DebounceConfig


@dataclass(frozen=True, slots=True)
class Tick:
    now_s: float


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is made; ``publication`` None: nothing is to be changed. ``failed``: none could be made, try again."""

    term: int
    publication: Publication | None
    now_s: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """The folders exist, or they could not be made."""

    term: int
    now_s: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    term: int
    answer: Answer
    now_s: float


Event: TypeAlias = Elected | Deposed | Changed | Tuned | Tick | Planned | Prepared | Written


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Prove leadership, read, allocate; answer with Planned. ``since_s`` is when the first of its changes was seen."""

    term: int
    candidate: str
    cause: str
    since_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Create these folders where they are missing; answer with Prepared."""

    term: int
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction; answer with Written."""

    term: int
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """For people and metrics."""

    generation: int
    moved: int


Effect: TypeAlias = MakePlan | Prepare | Write | Published


def step(leader: LeaderState, event: Event) -> tuple[LeaderState, tuple[Effect, ...]]:
    """What follows from an event: total and deterministic."""
    match event:
        case Deposed():
            return LeaderState(leader.debounce, leader.term), ()
        case Elected(candidate, now_s, succeeds):
            return _elected(leader, candidate, now_s, succeeds=succeeds), ()
        case Changed(cause, now_s, urgent) if leader.duty is not Duty.NONE:
            changed = _changed(leader, cause, now_s)
            return (replace(changed, due_s=now_s) if urgent and changed.due_s is not None else changed), ()
        case Tuned(debounce):
            return replace(leader, debounce=debounce), ()
        case Tick(now_s) if leader.duty is Duty.SETTLING and leader.due_s is not None and now_s >= leader.due_s:
            return _plan(leader)
        case Planned(term) if leader.duty is Duty.PLANNING and term == leader.term:
            return _planned(leader, event)
        case Prepared(term, now_s, failed) if leader.duty is Duty.PUBLISHING and term == leader.term:
            assert leader.publication is not None
            if failed:
                return _again(leader, "retry", now_s), ()
            return leader, (Write(term, leader.publication.writes[0]),)
        case Written(term, answer, now_s) if leader.duty is Duty.PUBLISHING and term == leader.term:
            assert leader.publication is not None
            return _written(leader, leader.publication, answer, now_s)
    return leader, ()


def _plan(leader: LeaderState) -> tuple[LeaderState, tuple[Effect, ...]]:
    assert leader.candidate is not None
    cause = ", ".join(dict.fromkeys(leader.causes))
    planning = replace(leader, duty=Duty.PLANNING, due_s=None, causes=())
    return planning, (MakePlan(leader.term, leader.candidate, cause, leader.since_s),)


def _planned(leader: LeaderState, planned: Planned) -> tuple[LeaderState, tuple[Effect, ...]]:
    publication = planned.publication
    if planned.failed:
        return _again(leader, "retry", planned.now_s), ()
    if publication is None:
        return _rest(leader, planned.now_s), ()
    publishing = replace(leader, duty=Duty.PUBLISHING, publication=publication, written=0)
    return publishing, (Prepare(leader.term, publication.folders),)


def _elected(leader: LeaderState, candidate: str, now_s: float, *, succeeds: bool) -> LeaderState:
    """A first leader waits for its group to gather; a later one, or one that leads on, plans as after any change."""
    if leader.duty is not Duty.NONE and leader.candidate == candidate:
        return _changed(leader, "leader resumed", now_s)
    debounce = leader.debounce
    due_s = now_s + (min(debounce.quiet_ms, debounce.bound_ms) if succeeds else debounce.initial_delay_ms) / 1000
    return LeaderState(
        leader.debounce,
        leader.term + 1,
        duty=Duty.SETTLING,
        candidate=candidate,
        due_s=due_s,
        # What changes before the first plan must not postpone it beyond the ordinary bound.
        bound_s=max(due_s, now_s + leader.debounce.bound_ms / 1000),
        since_s=now_s,
        causes=("leader change" if succeeds else "first plan",),
    )


def _changed(leader: LeaderState, cause: str, now_s: float) -> LeaderState:
    causes = (*leader.causes, cause)
    if leader.duty in (Duty.PLANNING, Duty.PUBLISHING):
        return replace(leader, causes=causes)
    quiet_s = now_s + leader.debounce.quiet_ms / 1000
    if leader.duty is Duty.SETTLING and leader.due_s is not None:
        return replace(leader, causes=causes, due_s=max(leader.due_s, min(quiet_s, leader.bound_s)))
    bound_s = now_s + leader.debounce.bound_ms / 1000
    return replace(
        leader, duty=Duty.SETTLING, causes=causes, due_s=min(quiet_s, bound_s), bound_s=bound_s, since_s=now_s
    )


def _rest(leader: LeaderState, now_s: float) -> LeaderState:
    """After a plan: go back to watching, or to what changed meanwhile."""
    idle = replace(leader, duty=Duty.WATCHING, publication=None, written=0, due_s=None, causes=())
    for cause in leader.causes:
        idle = _changed(idle, cause, now_s)
    return idle


def _again(leader: LeaderState, cause: str, now_s: float) -> LeaderState:
    """Plan anew after a short while: what was read is not what stands there, or could not be read."""
    settling = _changed(_rest(leader, now_s), cause, now_s)
    due_s = now_s + RETRY_S
    return replace(settling, due_s=due_s, bound_s=max(due_s, settling.bound_s))


def _written(
    leader: LeaderState, publication: Publication, answer: Answer, now_s: float
) -> tuple[LeaderState, tuple[Effect, ...]]:
    if not isinstance(answer, Done):
        return _again(leader, "publication interrupted", now_s), ()
    written = leader.written + 1
    if written == len(publication.writes):
        return _rest(leader, now_s), (Published(publication.generation, publication.moved),)
    return replace(leader, written=written), (Write(leader.term, publication.writes[written]),)
