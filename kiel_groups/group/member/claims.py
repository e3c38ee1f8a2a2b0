"""
The claims of one member: each partition is a small state machine of its own.

Rules
  1. Safety is in the owner znodes alone: a partition is handed out only between its claim and the end of its drain.
  2. The machine is level-triggered: it compares what the slice wants with where each partition stands, whatever event
     woke it, so a lost watch costs a delay and never a partition.
  3. No partition waits for another: drains, waits and reads are effects, their outcomes come back as events.
  4. A slice that is absent or unreadable means "unknown": what is held stays, nothing new is claimed. Only a valid
     slice revokes, an empty one revokes everything.
  5. A partition that somebody else owns is waited for by a watch on its owner znode; there is no retry budget.
  6. A claim that is no longer wanted when its position has been read goes straight to its release: nothing of it was
     handed out. If it is wanted again after that, it starts anew, at the claim.
  7. A drain that began runs to its end, whatever the slice says meanwhile.
  8. A partition of a topic that the member does not subscribe to is never claimed, whatever the slice says: it may be
     garbled, or older than the subscription. Partitions that are claimed already stay until a slice revokes them: if a
     member drops a topic, or leaves, the next plan revokes its partitions one by one.
  9. A slice of this member's slot that is for another member: who has nothing takes it for unknown (a returning
     instance is about to get its slice); who has something was replaced, gives everything back and claims no more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from kiel_groups.model import TopicPartition

__all__ = [
    "Claims",
    "Phase",
    "Event",
    "Effect",
    "Wanted",
    "Subscribed",
    "Replaced",
    "OwnerGone",
    "Claimed",
    "Contended",
    "Opened",
    "Drained",
    "Released",
    "ClaimGone",
    "Leave",
    "SessionEnded",
    "Claim",
    "Await",
    "Open",
    "Start",
    "Drain",
    "Release",
    "Lose",
    "step",
]

Partitions: TypeAlias = frozenset[TopicPartition]


class Phase(Enum):
    """Where a partition stands; one that is in no phase is free."""

    #: Entry: wanted, but another session's owner znode stands there. Duty: a watch on it. Exit: it is gone.
    WAITING = "waiting"
    #: Entry: wanted and seen free. Duty: a transaction that creates the owner znode. Exit: its answer.
    CLAIMING = "claiming"
    #: Entry: the owner znode is this session's. Duty: read the fencing token and the position. Exit: both are there.
    OPENING = "opening"
    #: Entry: the position is read. Duty: fetch and hand out. Exit: not wanted any more, leaving, or lost.
    HELD = "held"
    #: Entry: held, and not wanted any more. Duty: finish what the application has, tell the listener. Exit: finished.
    DRAINING = "draining"
    #: Entry: nothing of it is being processed. Duty: commit and delete the owner znode at once. Exit: it is gone.
    RELEASING = "releasing"


#: Every legal move; None is "free".
MOVES: Mapping[Phase | None, frozenset[Phase | None]] = {
    None: frozenset({Phase.CLAIMING}),
    Phase.WAITING: frozenset({Phase.CLAIMING, Phase.OPENING, None}),
    Phase.CLAIMING: frozenset({Phase.OPENING, Phase.WAITING, None}),
    Phase.OPENING: frozenset({Phase.HELD, Phase.RELEASING, None}),
    Phase.HELD: frozenset({Phase.DRAINING, None}),
    Phase.DRAINING: frozenset({Phase.RELEASING, None}),
    Phase.RELEASING: frozenset({None}),
}


@dataclass(frozen=True, slots=True)
class Claims:
    """
    Where every partition of this member stands.

    ``want`` is its slice, None while that is unknown. ``topics`` is its subscription: no other topic is claimed.
    ``ended`` is final: the session is over. ``replaced``: it leaves, because another member has its slot.
    """

    want: Partitions | None = None
    phases: Mapping[TopicPartition, Phase] = field(default_factory=dict)
    leaving: bool = False
    ended: bool = False
    replaced: bool = False
    topics: frozenset[str] = frozenset()

    def in_phase(self, *phases: Phase) -> Partitions:
        """The partitions that stand in one of these phases."""
        return frozenset([partition for partition, phase in self.phases.items() if phase in phases])

    def keeps(self, partition: TopicPartition) -> bool:
        """Whether a claim of this partition is to be kept; an unknown slice takes nothing away."""
        return not self.not_kept((partition,))

    def not_kept(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Those of these whose claims are not to be kept, in their order."""
        if self.leaving or self.ended:
            return tuple(partitions)
        want = self.want
        return () if want is None else [partition for partition in partitions if partition not in want]

    def may_claim(self, partition: TopicPartition) -> bool:
        """Whether a claim of this partition may be made: its topic is subscribed to."""
        return partition.topic in self.topics

    @property
    def settled(self) -> bool:
        """True when what is held is what is wanted; for a leaving member, when nothing is left."""
        if self.leaving or self.ended:
            return not self.phases
        held = self.in_phase(Phase.HELD)
        return held == self.want and len(held) == len(self.phases)


# Events: what the driver saw.


@dataclass(frozen=True, slots=True)
class Wanted:
    """The slice was read; None: it is absent or unreadable."""

    partitions: Partitions | None


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The member subscribes to these topics now, and to no others."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The slice was read, and it is for another member of this slot."""


@dataclass(frozen=True, slots=True)
class OwnerGone:
    """The owner znodes of these were seen to be gone."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Claimed:
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Contended:
    """Not claimed: another session owns them."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Opened:
    """Their positions and tokens are read, and the positions written back."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Drained:
    """The application is done with them."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Released:
    """Their owner znodes are gone, by this member's hand."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class ClaimGone:
    """Their owner znodes are gone, or another's, and this member did not do it."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Leave:
    """Give everything back, claim nothing more."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over, and every claim with it."""


Event: TypeAlias = (
    Wanted
    | Subscribed
    | Replaced
    | OwnerGone
    | Claimed
    | Contended
    | Opened
    | Drained
    | Released
    | ClaimGone
    | Leave
    | SessionEnded
)


# Effects: what the driver is to do.


@dataclass(frozen=True, slots=True)
class Claim:
    """Create the owner znodes; answer with Claimed and Contended."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Await:
    """Watch the owner znodes; answer with OwnerGone."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Open:
    """Read tokens and positions; answer with Opened."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Start:
    """Hand them out from now on."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop fetching, let the application finish, tell the listener; answer with Drained."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Release:
    """Commit what is finished and delete the owner znodes, in one transaction; answer with Released or ClaimGone."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lose:
    """Stop at once; nothing of these may be handed out or committed any more."""

    partitions: Partitions


Effect: TypeAlias = Claim | Await | Open | Start | Drain | Release | Lose

_ORDER: tuple[tuple[Phase, Callable[[Partitions], Effect]], ...] = (
    # What gives back comes before what takes: another member may be waiting.
    (Phase.DRAINING, Drain),
    (Phase.RELEASING, Release),
    (Phase.CLAIMING, Claim),
    (Phase.WAITING, Await),
    (Phase.OPENING, Open),
    (Phase.HELD, Start),
)


def step(claims: Claims, event: Event) -> tuple[Claims, tuple[Effect, ...]]:
    """
    What follows from an event: total and deterministic.

    Answers about partitions that are no longer in the phase that asked are ignored.
    """
    if claims.ended:
        return claims, ()
    match event:
        case SessionEnded():
            lost = claims.in_phase(Phase.HELD, Phase.DRAINING, Phase.RELEASING)
            return replace(claims, phases={}, ended=True), ((Lose(lost),) if lost else ())
        case ClaimGone(partitions):
            return _claim_gone(claims, partitions)
        case Wanted(want):
            return _reconcile(replace(claims, want=want), {})
        case Subscribed(topics):
            after = replace(claims, topics=topics)
            dropped = [p for p in claims.in_phase(Phase.WAITING) if not after.may_claim(p)]
            return _reconcile(after, dict.fromkeys(dropped))
        case Replaced():
            if claims.leaving or not claims.phases.keys() - claims.in_phase(Phase.WAITING):
                return _reconcile(replace(claims, want=None), {})
            return _reconcile(replace(claims, leaving=True, replaced=True), {})
        case Leave():
            return _reconcile(replace(claims, leaving=True), {})
        case OwnerGone(partitions):
            moves = _moves(claims, partitions, Phase.WAITING, lambda _: None)
        case Claimed(partitions):
            # Also of one that was waited for: an owner znode of this session, wherever it is seen, is a claim.
            moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.OPENING)
            moves |= _moves(claims, partitions, Phase.WAITING, lambda _: Phase.OPENING)
        case Contended(partitions):
            moves = _moves(claims, partitions, Phase.CLAIMING, lambda p: Phase.WAITING if claims.may_claim(p) else None)
        case Opened(partitions):
            moves = _moves(
                claims, partitions, Phase.OPENING, lambda p: Phase.HELD if claims.keeps(p) else Phase.RELEASING
            )
        case Drained(partitions):
            moves = _moves(claims, partitions, Phase.DRAINING, lambda _: Phase.RELEASING)
        case Released(partitions):
            moves = _moves(claims, partitions, Phase.RELEASING, lambda _: None)
    return _reconcile(claims, moves)


def _moves(
    claims: Claims,
    partitions: Collection[TopicPartition],
    source: Phase,
    target: Callable[[TopicPartition], Phase | None],
) -> dict[TopicPartition, Phase | None]:
    return {partition: target(partition) for partition in partitions if claims.phases.get(partition) is source}


def _claim_gone(claims: Claims, partitions: Partitions) -> tuple[Claims, tuple[Effect, ...]]:
    owned = claims.in_phase(Phase.OPENING, Phase.HELD, Phase.DRAINING, Phase.RELEASING) & partitions
    lost = claims.in_phase(Phase.HELD, Phase.DRAINING, Phase.RELEASING) & partitions
    after, effects = _reconcile(claims, dict.fromkeys(owned))
    return after, ((Lose(lost), *effects) if lost else effects)


def _reconcile(claims: Claims, moves: dict[TopicPartition, Phase | None]) -> tuple[Claims, tuple[Effect, ...]]:
    """Apply the moves, then those that follow from comparing the slice with where each partition stands."""
    phases = dict(claims.phases)
    entered: dict[TopicPartition, Phase] = {}

    def move(partition: TopicPartition, target: Phase | None) -> None:
        assert target in MOVES[phases.get(partition)], (partition, phases.get(partition), target)
        if target is None:
            phases.pop(partition, None)
            entered.pop(partition, None)
        else:
            phases[partition] = entered[partition] = target

    for partition, target in moves.items():
        move(partition, target)
    for partition in claims.not_kept(phases):
        phase = phases[partition]
        if phase is Phase.HELD:
            move(partition, Phase.DRAINING)
        elif phase is Phase.WAITING:
            move(partition, None)
    if claims.want is not None and not claims.leaving:
        for partition in claims.want - phases.keys():
            if claims.may_claim(partition):
                move(partition, Phase.CLAIMING)
    after = replace(claims, phases=phases)
    if not entered:
        return after, ()
    effects = [
        make(frozenset([partition for partition, phase in entered.items() if phase is wanted]))
        for wanted, make in _ORDER
        if wanted in entered.values()
    ]
    return after, tuple(effects)
