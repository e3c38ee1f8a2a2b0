"""
A candidate of the leader election: ZooKeeper's recipe as a level-triggered latch.

Rules
  1. The candidate whose znode is the lowest leads, always; one that will not lead deletes its znode.
  2. A candidate watches only the next lower one, so a death wakes one candidate and not all.
  3. Names carry a uuid: a create whose answer was lost is found again by reading the candidates.
  4. After a pause of the connection nothing is assumed: the candidates are read again, and a leader that still is
     the lowest leads on, with a fresh plan.
  5. A candidate whose znode was deleted by hand makes a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

__all__ = [
    "Candidate",
    "Standing",
    "Event",
    "Effect",
    "Run",
    "Created",
    "Candidates",
    "PredecessorGone",
    "Resumed",
    "SessionEnded",
    "CreateCandidate",
    "ReadCandidates",
    "WatchPredecessor",
    "BecomeLeader",
    "ResignLeader",
    "sequence",
    "step",
]


#: ZooKeeper pads an int32 to ten.
SEQUENCE_DIGITS = 10


class Standing(Enum):
    #: Not a candidate: before the start and after the end.
    OUT = "out"
    #: Entry: asked to run. Duty: create the znode. Exit: it was created, or may have been.
    CREATING = "creating"
    #: Entry: something changed. Duty: read the candidates. Exit: their names are there.
    READING = "reading"
    #: Entry: somebody is lower. Duty: watch the next lower one. Exit: it is gone.
    FOLLOWING = "following"
    #: Entry: nobody is lower. Duty: lead. Exit: only with the session, or when the znode was deleted by hand.
    LEADING = "leading"


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    ``uuid`` tells this candidate's znode from others, ``name`` is that znode's name once it is known. ``followed`` says
    whether somebody else ever stood before it.
    """

    uuid: str
    standing: Standing = Standing.OUT
    name: str | None = None
    followed: bool = False

    @property
    def leads(self) -> bool:
        return self.standing is Standing.LEADING


@dataclass(frozen=True, slots=True)
class Run:
    """Take part."""


@dataclass(frozen=True, slots=True)
class Created:
    """The create was answered, with the znode's name, or its outcome is unknown (None)."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Candidates:
    """The names of all candidates, as read."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PredecessorGone:
    """The watched candidate is gone, or the watch ended for another reason."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The connection came back with the same session, or it is time to look again."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over, and the znode with it."""


Event: TypeAlias = Run | Created | Candidates | PredecessorGone | Resumed | SessionEnded


@dataclass(frozen=True, slots=True)
class CreateCandidate:
    """Create the znode; answer with Created."""


@dataclass(frozen=True, slots=True)
class ReadCandidates:
    """Read the children; answer with Candidates."""


@dataclass(frozen=True, slots=True)
class WatchPredecessor:
    """Watch one candidate; answer with PredecessorGone, at once when it is not there."""

    name: str


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """Lead, or lead on: plan anew. ``succeeds``: somebody led before, so the group has gathered already."""

    name: str
    succeeds: bool = False


@dataclass(frozen=True, slots=True)
class ResignLeader:
    """Lead no more."""


Effect: TypeAlias = CreateCandidate | ReadCandidates | WatchPredecessor | BecomeLeader | ResignLeader


def sequence(name: str) -> int | None:
    """The number that ZooKeeper appended to a candidate's name, None where there is none."""
    _, dash, digits = name.rpartition("_")
    if not dash or len(digits) > SEQUENCE_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def step(candidate: Candidate, event: Event) -> tuple[Candidate, tuple[Effect, ...]]:
    """What follows from an event: total and deterministic."""
    match event:
        case SessionEnded():
            resign = (ResignLeader(),) if candidate.leads else ()
            return replace(candidate, standing=Standing.OUT, name=None), resign
        case Run() if candidate.standing is Standing.OUT:
            return replace(candidate, standing=Standing.CREATING), (CreateCandidate(),)
        case Created(name) if candidate.standing is Standing.CREATING:
            return replace(candidate, standing=Standing.READING, name=name), (ReadCandidates(),)
        case PredecessorGone() if candidate.standing is Standing.FOLLOWING:
            return replace(candidate, standing=Standing.READING), (ReadCandidates(),)
        case Resumed() if candidate.standing in (Standing.FOLLOWING, Standing.LEADING, Standing.READING):
            # A leader goes on leading while it looks: it stops only when its znode is gone.
            return candidate, (ReadCandidates(),)
        case Candidates(names) if candidate.standing not in (Standing.OUT, Standing.CREATING):
            return _place(candidate, names)
    return candidate, ()


def _place(candidate: Candidate, names: Iterable[str]) -> tuple[Candidate, tuple[Effect, ...]]:
    """Find this candidate among all of them, and the next lower one."""
    resign = (ResignLeader(),) if candidate.leads else ()
    ranked = sorted((number, name) for name in names if (number := sequence(name)) is not None)
    own = next(((number, name) for number, name in ranked if name.startswith(candidate.uuid)), None)
    if own is None:
        return replace(candidate, standing=Standing.CREATING, name=None), (*resign, CreateCandidate())
    lower = [name for number, name in ranked if (number, name) < own]
    if not lower:
        return replace(candidate, standing=Standing.LEADING, name=own[1]), (BecomeLeader(own[1], candidate.followed),)
    return replace(candidate, standing=Standing.FOLLOWING, name=own[1], followed=True), (
        *resign,
        WatchPredecessor(lower[-1]),
    )
