"""
The state machine of one candidate in the leader election, by ZooKeeper's recipe.

The machine is level-triggered: each decision rests on the names of all present candidates. So a lost watch delays a
decision, but does not change it.

Rules
  1. The candidate whose znode has the lowest sequence number always leads. A candidate that does not want to lead
     deletes its znode.
  2. A candidate watches only the next lower znode, so the end of one candidate wakes only one other candidate.
  3. Znode names carry a uuid: if the answer to a create was lost, reading the candidates finds the znode.
  4. After the connection was suspended, the candidates are read again. A leader whose znode is still the lowest remains
     the leader, with a fresh plan.
  5. If an operator deletes a candidate's znode, the candidate creates a new znode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

#: ZooKeeper pads a sequence number, an int32, to ten digits.
SEQUENCE_DIGITS = 10


class ElectionPhase(Enum):
    """The phases of a candidate in the election, from its start to its leadership."""

    #: Entry: the start, or the end of the session. Duty: none. Exit: the candidate enters the election.
    OUT = "out"
    #: Entry: the candidate has no znode. Duty: create one. Exit: the znode was created, or the outcome is unknown.
    CREATING = "creating"
    #: Entry: the candidates changed. Duty: read their names. Exit: they were read.
    READING = "reading"
    #: Entry: another znode is lower. Duty: watch the next lower znode. Exit: that znode is gone.
    FOLLOWING = "following"
    #: Entry: no znode is lower. Duty: lead. Exit: the session has ended, or the candidate's znode was deleted.
    LEADING = "leading"


#: The legal changes of a candidate's phase. The candidates are read again while a candidate follows or leads, so the
#: answer may show that the candidate's place has changed.
MOVES: Mapping[ElectionPhase, frozenset[ElectionPhase]] = {
    ElectionPhase.OUT: frozenset({ElectionPhase.CREATING}),
    ElectionPhase.CREATING: frozenset({ElectionPhase.READING, ElectionPhase.OUT}),
    ElectionPhase.READING: frozenset(
        {ElectionPhase.FOLLOWING, ElectionPhase.LEADING, ElectionPhase.CREATING, ElectionPhase.OUT}
    ),
    ElectionPhase.FOLLOWING: frozenset(
        {ElectionPhase.READING, ElectionPhase.LEADING, ElectionPhase.CREATING, ElectionPhase.OUT}
    ),
    ElectionPhase.LEADING: frozenset({ElectionPhase.FOLLOWING, ElectionPhase.CREATING, ElectionPhase.OUT}),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    The state of one candidate in the election.

    ``uuid`` identifies this candidate's znode. ``name`` is the name of that znode, or None while the name is unknown.
    ``followed`` is true if another candidate was ahead of this candidate at some time.
    """

    uuid: str
    phase: ElectionPhase = ElectionPhase.OUT
    name: str | None = None
    followed: bool = False

    @property
    def leads(self) -> bool:
        return self.phase is ElectionPhase.LEADING


@dataclass(frozen=True, slots=True)
class EnterElection:
    """The candidate must enter the election."""


@dataclass(frozen=True, slots=True)
class Created:
    """The creation of the candidate's znode ended. ``name`` is the znode's name, or None if the outcome is unknown."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Candidates:
    """The names of all candidates were read."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PredecessorGone:
    """The watched znode is gone, or the watch ended for another reason."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The connection resumed with the same session, or a periodic check is due."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over, so the candidate's znode is gone."""


Event: TypeAlias = EnterElection | Created | Candidates | PredecessorGone | Resumed | SessionEnded


@dataclass(frozen=True, slots=True)
class CreateCandidate:
    """Create the candidate's znode; answer with Created."""


@dataclass(frozen=True, slots=True)
class ReadCandidates:
    """Read the names of all candidates; answer with Candidates."""


@dataclass(frozen=True, slots=True)
class WatchPredecessor:
    """Watch one candidate's znode; answer with PredecessorGone, at once if the znode does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """
    Lead, or continue to lead, with a fresh plan.

    ``succeeds`` is true if another candidate was ahead before. Then the leader need not wait for the first members.
    """

    name: str
    succeeds: bool = False


@dataclass(frozen=True, slots=True)
class ResignLeader:
    """Stop leading."""


Effect: TypeAlias = CreateCandidate | ReadCandidates | WatchPredecessor | BecomeLeader | ResignLeader


def sequence(name: str) -> int | None:
    """Return the sequence number that ZooKeeper appended to a candidate's name, or None for any other name."""
    _, dash, digits = name.rpartition("_")
    if not dash or len(digits) > SEQUENCE_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def step(candidate: Candidate, event: Event) -> tuple[Candidate, tuple[Effect, ...]]:
    """Return the state after an event, and the effects that the driver must carry out. Any event is permitted."""
    after, effects = _next(candidate, event)
    before = candidate.phase
    assert after.phase is before or after.phase in MOVES[before], (before, after.phase, event)
    return after, effects


def _next(candidate: Candidate, event: Event) -> tuple[Candidate, tuple[Effect, ...]]:
    match event:
        case SessionEnded():
            resign = (ResignLeader(),) if candidate.leads else ()
            return replace(candidate, phase=ElectionPhase.OUT, name=None), resign
        case EnterElection() if candidate.phase is ElectionPhase.OUT:
            return replace(candidate, phase=ElectionPhase.CREATING), (CreateCandidate(),)
        case Created(name) if candidate.phase is ElectionPhase.CREATING:
            return replace(candidate, phase=ElectionPhase.READING, name=name), (ReadCandidates(),)
        case PredecessorGone() if candidate.phase is ElectionPhase.FOLLOWING:
            return replace(candidate, phase=ElectionPhase.READING), (ReadCandidates(),)
        case Resumed() if candidate.phase in (ElectionPhase.FOLLOWING, ElectionPhase.LEADING, ElectionPhase.READING):
            # A leader continues to lead while it reads: it stops only if its znode is gone.
            return candidate, (ReadCandidates(),)
        case Candidates(names) if candidate.phase not in (ElectionPhase.OUT, ElectionPhase.CREATING):
            return _place(candidate, names)
    return candidate, ()


def _place(candidate: Candidate, names: Iterable[str]) -> tuple[Candidate, tuple[Effect, ...]]:
    """Decide whether a candidate leads, follows the next lower candidate, or needs a new znode."""
    resign = (ResignLeader(),) if candidate.leads else ()
    ranked = sorted((number, name) for name in names if (number := sequence(name)) is not None)
    # The uuid finds the candidate's znode even if the answer to its creation was lost.
    own = next(((number, name) for number, name in ranked if name.startswith(candidate.uuid)), None)
    if own is None:
        return replace(candidate, phase=ElectionPhase.CREATING, name=None), (*resign, CreateCandidate())
    lower = [name for number, name in ranked if (number, name) < own]
    if not lower:
        return replace(candidate, phase=ElectionPhase.LEADING, name=own[1]), (BecomeLeader(own[1], candidate.followed),)
    return replace(candidate, phase=ElectionPhase.FOLLOWING, name=own[1], followed=True), (
        *resign,
        WatchPredecessor(lower[-1]),
    )
