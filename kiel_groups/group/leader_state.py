"""
The state machine of a leader: when it plans (debounce), and how it publishes a plan.

Rules
  1. Only an elected leader plans. A deposed leader drops its plan at once. A term is the time from an election of this
     candidate to its deposition. Effects and their answers carry the number of the term, and the leader ignores an
     answer from an earlier term.
  2. Changes are debounced: the leader plans after a quiet time without changes, at the latest at the bound after the
     first change. The first plan of a group's first leader waits for the initial delay. Urgent changes bypass these
     waits.
  3. Only one plan is in progress. Changes that arrive meanwhile cause the next plan, after the current plan has ended.
  4. The leader sends a write of a publication after the previous write was answered with ``Done``. A refused write
     means that another leader was elected or another process wrote: the plan is void, and the leader reads all inputs
     again. The same applies to a write whose outcome is unknown.
  5. A plan that changes nothing is not published, unless an operator has asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from kiel_groups.config import DebounceConfig
from kiel_groups.group.planner import Publication
from kiel_groups.group.znodes.transactions import Answer, Done, Operation

#: Seconds between a plan that failed, or that could not be published, and the next attempt.
REPLAN_PAUSE_S = 0.5


class LeaderPhase(Enum):
    """The phases of a leader: not elected, waiting for a change, waiting for more changes, planning, and publishing."""

    #: Entry: the start, or another candidate leads. Duty: none. Exit: elected.
    NONE = "none"
    #: Entry: the last plan is done, and no input changed since. Duty: none. Exit: an input of the plan changes.
    WATCHING = "watching"
    #: Entry: an input changed. Duty: wait for more changes. Exit: the deadline.
    SETTLING = "settling"
    #: Entry: the deadline passed. Duty: read all inputs, run the allocator. Exit: the plan.
    PLANNING = "planning"
    #: Entry: the plan is a change. Duty: create the folders, then send one write at a time. Exit: the last answer.
    PUBLISHING = "publishing"


#: The legal changes of a leader's phase by one event. After a plan, changes that arrived meanwhile settle at once.
MOVES: Mapping[LeaderPhase, frozenset[LeaderPhase]] = {
    LeaderPhase.NONE: frozenset({LeaderPhase.SETTLING}),
    LeaderPhase.WATCHING: frozenset({LeaderPhase.SETTLING, LeaderPhase.NONE}),
    LeaderPhase.SETTLING: frozenset({LeaderPhase.PLANNING, LeaderPhase.NONE}),
    LeaderPhase.PLANNING: frozenset(
        {LeaderPhase.PUBLISHING, LeaderPhase.WATCHING, LeaderPhase.SETTLING, LeaderPhase.NONE}
    ),
    LeaderPhase.PUBLISHING: frozenset({LeaderPhase.WATCHING, LeaderPhase.SETTLING, LeaderPhase.NONE}),
}


@dataclass(frozen=True, slots=True)
class LeaderState:
    """
    The state of a leader's term and of its plan.

    ``term`` counts the elections of this candidate. ``candidate`` is the path of the candidate's election znode. While
    the leader collects changes, ``due_s`` is the time of the next plan, ``bound_s`` is the latest time to which changes
    postpone that plan, and ``since_s`` is the time of the first change. These times are on the driver's clock.
    ``causes`` are the reasons for the plan, in order. Causes that arrive during a plan belong to the next plan.
    ``written`` is the number of writes of the publication that have succeeded.
    """

    debounce: DebounceConfig
    term: int = 0
    phase: LeaderPhase = LeaderPhase.NONE
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
    This candidate was elected, or still leads after a pause. ``candidate`` is the path of the candidate's znode.

    ``succeeds`` is true if another candidate was ahead before. Then the members have joined, and the leader skips the
    initial delay.
    """

    candidate: str
    now_s: float
    succeeds: bool = False


@dataclass(frozen=True, slots=True)
class Deposed:
    """This candidate is no longer the leader."""


@dataclass(frozen=True, slots=True)
class Changed:
    """An input of the plan changed. ``cause`` names the change. Urgent changes bypass the debounce."""

    cause: str
    now_s: float
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class DebounceChanged:
    """The group's debounce was changed."""

    debounce: DebounceConfig


@dataclass(frozen=True, slots=True)
class Tick:
    """The clock has reached ``now_s``. A plan whose time has come begins."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Planned:
    """
    Planning has ended. ``publication`` is None if there is nothing to publish, or if planning has failed (``failed``).
    """

    term: int
    publication: Publication | None
    now_s: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """The folders of the publication exist, or could not be created (``failed``)."""

    term: int
    now_s: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """A write of the publication was answered."""

    term: int
    answer: Answer
    now_s: float


Event: TypeAlias = Elected | Deposed | Changed | DebounceChanged | Tick | Planned | Prepared | Written


@dataclass(frozen=True, slots=True)
class MakePlan:
    """
    Verify the leadership, read the inputs and run the allocator; answer with Planned.

    ``since_s`` is the time at which the first change was seen.
    """

    term: int
    candidate: str
    cause: str
    since_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Create the persistent znodes ``folders`` that are missing; answer with Prepared."""

    term: int
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Execute one transaction; answer with Written."""

    term: int
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """A plan was published. The driver logs and counts it."""

    generation: int
    moved: int


Effect: TypeAlias = MakePlan | Prepare | Write | Published


def step(leader: LeaderState, event: Event) -> tuple[LeaderState, tuple[Effect, ...]]:
    """Return the state after an event, and the effects that the driver must carry out. Any event is permitted."""
    after, effects = _next(leader, event)
    assert after.phase is leader.phase or after.phase in MOVES[leader.phase], (leader.phase, after.phase, event)
    return after, effects


def _next(leader: LeaderState, event: Event) -> tuple[LeaderState, tuple[Effect, ...]]:
    match event:
        case Deposed():
            return LeaderState(leader.debounce, leader.term), ()
        case Elected(candidate, now_s, succeeds):
            return _elected(leader, candidate, now_s, succeeds=succeeds), ()
        case Changed(cause, now_s, urgent) if leader.phase is not LeaderPhase.NONE:
            changed = _changed(leader, cause, now_s)
            return (replace(changed, due_s=now_s) if urgent and changed.due_s is not None else changed), ()
        case DebounceChanged(debounce):
            return replace(leader, debounce=debounce), ()
        case Tick(now_s) if leader.phase is LeaderPhase.SETTLING and leader.due_s is not None and now_s >= leader.due_s:
            return _plan(leader)
        case Planned(term) if leader.phase is LeaderPhase.PLANNING and term == leader.term:
            return _planned(leader, event)
        case Prepared(term, now_s, failed) if leader.phase is LeaderPhase.PUBLISHING and term == leader.term:
            assert leader.publication is not None
            if failed:
                return _replan_later(leader, "retry", now_s), ()
            return leader, (Write(term, leader.publication.writes[0]),)
        case Written(term, answer, now_s) if leader.phase is LeaderPhase.PUBLISHING and term == leader.term:
            assert leader.publication is not None
            return _written(leader, leader.publication, answer, now_s)
    return leader, ()


def _plan(leader: LeaderState) -> tuple[LeaderState, tuple[Effect, ...]]:
    assert leader.candidate is not None
    cause = ", ".join(dict.fromkeys(leader.causes))
    planning = replace(leader, phase=LeaderPhase.PLANNING, due_s=None, causes=())
    return planning, (MakePlan(leader.term, leader.candidate, cause, leader.since_s),)


def _planned(leader: LeaderState, planned: Planned) -> tuple[LeaderState, tuple[Effect, ...]]:
    publication = planned.publication
    if planned.failed:
        return _replan_later(leader, "retry", planned.now_s), ()
    if publication is None:
        return _finish(leader, planned.now_s), ()
    publishing = replace(leader, phase=LeaderPhase.PUBLISHING, publication=publication)
    return publishing, (Prepare(leader.term, publication.folders),)


def _elected(leader: LeaderState, candidate: str, now_s: float, *, succeeds: bool) -> LeaderState:
    """
    Start a term, or record a change if this candidate leads already.

    The first leader of a group waits for ``initial_delay_ms``. A successor waits for the debounce.
    """
    if leader.phase is not LeaderPhase.NONE and leader.candidate == candidate:
        return _changed(leader, "leader resumed", now_s)
    debounce = leader.debounce
    due_s = now_s + (min(debounce.quiet_ms, debounce.bound_ms) if succeeds else debounce.initial_delay_ms) / 1000
    return LeaderState(
        leader.debounce,
        leader.term + 1,
        phase=LeaderPhase.SETTLING,
        candidate=candidate,
        due_s=due_s,
        bound_s=now_s + debounce.bound_ms / 1000,
        since_s=now_s,
        causes=("leader change" if succeeds else "first plan",),
    )


def _changed(leader: LeaderState, cause: str, now_s: float) -> LeaderState:
    """
    Record a change. The change starts the debounce, or extends it up to the bound.

    The leader keeps a change during planning or publishing until the plan ends.
    """
    causes = (*leader.causes, cause)
    if leader.phase in (LeaderPhase.PLANNING, LeaderPhase.PUBLISHING):
        return replace(leader, causes=causes)
    quiet_s = now_s + leader.debounce.quiet_ms / 1000
    if leader.phase is LeaderPhase.SETTLING and leader.due_s is not None:
        # Changes extend the wait up to the bound, and never shorten it: the initial delay of a first leader stays.
        return replace(leader, causes=causes, due_s=max(leader.due_s, min(quiet_s, leader.bound_s)))
    bound_s = now_s + leader.debounce.bound_ms / 1000
    return replace(
        leader, phase=LeaderPhase.SETTLING, causes=causes, due_s=min(quiet_s, bound_s), bound_s=bound_s, since_s=now_s
    )


def _finish(leader: LeaderState, now_s: float) -> LeaderState:
    """End a plan: return to watching, or to settling if an input changed meanwhile."""
    idle = replace(leader, phase=LeaderPhase.WATCHING, publication=None, written=0, causes=())
    for cause in leader.causes:
        idle = _changed(idle, cause, now_s)
    return idle


def _replan_later(leader: LeaderState, cause: str, now_s: float) -> LeaderState:
    """End a plan that could not be made, prepared or published, and schedule a new plan after ``REPLAN_PAUSE_S``."""
    settling = _changed(_finish(leader, now_s), cause, now_s)
    return replace(settling, due_s=now_s + REPLAN_PAUSE_S)


def _written(
    leader: LeaderState, publication: Publication, answer: Answer, now_s: float
) -> tuple[LeaderState, tuple[Effect, ...]]:
    """Process the answer to a write. After Done, send the next write or finish. Otherwise, plan again later."""
    if not isinstance(answer, Done):
        return _replan_later(leader, "publication interrupted", now_s), ()
    written = leader.written + 1
    if written == len(publication.writes):
        return _finish(leader, now_s), (Published(publication.generation, publication.moved),)
    return replace(leader, written=written), (Write(leader.term, publication.writes[written]),)
