"""
The state machine of one member's claims: when each partition is claimed, opened, drained, released or lost.

To open a claim is to read its fencing token and the partition's position. Delivery starts after that.

Rules
  1. Safety rests on the owner znodes alone: records are delivered only between a partition's claim and the end of its
     drain.
  2. Steps are level-triggered: whatever the event, the assignment is compared with the phase of every partition. A lost
     watch therefore delays a step, but loses no partition.
  3. No partition waits for another partition: drains, watches and reads are effects. Their outcomes return as events.
  4. An assignment that is absent or unreadable is "unknown": current claims stay, and nothing new is claimed. Only a
     valid assignment revokes; an empty assignment revokes everything.
  5. If another session owns a partition, the member watches the owner znode until the release, however long that takes.
  6. If a partition is no longer assigned when its position has been read, the member releases the claim at once, since
     nothing was delivered. If the partition is assigned again later, the member claims it anew.
  7. A drain that has started runs to its end, even if the partition is assigned again meanwhile.
  8. The member never claims a partition of a topic that it does not subscribe to: the assignment may be garbled, or
     older than the subscription. Existing claims stay until an assignment revokes them: if a member drops a topic, or
     leaves, the next plan revokes its partitions one by one.
  9. The assignment of this member's slot may name another member. A member without claims treats the assignment as
     unknown: this member is a returning instance, and the leader will name it soon. A member with claims was replaced:
     it releases everything and claims no more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from kiel_groups.model import TopicPartition

Partitions: TypeAlias = frozenset[TopicPartition]


class Phase(Enum):
    """The phase of a partition. A partition without a phase is free."""

    #: Entry: assigned, but another session's owner znode exists. Duty: watch that znode. Exit: the znode is gone.
    WAITING = "waiting"
    #: Entry: assigned and believed free. Duty: create the owner znode in a transaction. Exit: its answer.
    CLAIMING = "claiming"
    #: Entry: the owner znode is this session's. Duty: read the fencing token and the position. Exit: both are read.
    OPENING = "opening"
    #: Entry: the position is read. Duty: fetch and deliver. Exit: revoked, leaving, or lost.
    OWNED = "owned"
    #: Entry: revoked. Duty: wait for in-flight records, notify the listener. Exit: both are done.
    DRAINING = "draining"
    #: Entry: nothing is in flight. Duty: commit and delete the owner znode in one transaction. Exit: the znode is gone.
    RELEASING = "releasing"


#: The legal changes of a partition's phase; None is a free partition. One event may cause two: a partition that becomes
#: free is claimed again at once if it is assigned.
MOVES: Mapping[Phase | None, frozenset[Phase | None]] = {
    None: frozenset({Phase.CLAIMING}),
    Phase.WAITING: frozenset({Phase.OPENING, None}),
    Phase.CLAIMING: frozenset({Phase.OPENING, Phase.WAITING, None}),
    Phase.OPENING: frozenset({Phase.OWNED, Phase.RELEASING, None}),
    Phase.OWNED: frozenset({Phase.DRAINING, None}),
    Phase.DRAINING: frozenset({Phase.RELEASING, None}),
    Phase.RELEASING: frozenset({None}),
}


@dataclass(frozen=True, slots=True)
class Claims:
    """
    The phase of every partition of this member.

    ``want`` is the member's assignment, or None while the assignment is unknown. ``topics`` is the member's
    subscription: partitions of other topics are not claimed. ``ended`` is true if the session is over for good.
    ``replaced`` is true if the member leaves because another member has its slot.
    """

    want: Partitions | None = None
    phases: Mapping[TopicPartition, Phase] = field(default_factory=dict)
    leaving: bool = False
    ended: bool = False
    replaced: bool = False
    topics: frozenset[str] = frozenset()

    def in_phase(self, *phases: Phase) -> Partitions:
        """Return the partitions in any of these phases."""
        return frozenset([partition for partition, phase in self.phases.items() if phase in phases])

    def keeps(self, partition: TopicPartition) -> bool:
        """Return whether the claim of this partition must be kept. An unknown assignment revokes nothing."""
        return not self.to_release((partition,))

    def to_release(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return the partitions whose claims must be released, in the given order."""
        if self.leaving or self.ended:
            return tuple(partitions)
        want = self.want
        return () if want is None else [partition for partition in partitions if partition not in want]

    def may_claim(self, partition: TopicPartition) -> bool:
        """Return whether this partition may be claimed: the member subscribes to its topic."""
        return partition.topic in self.topics

    @property
    def settled(self) -> bool:
        """
        Whether the member owns exactly its assignment. The value is False while the assignment is unknown.

        If the member leaves or its session is over, the value says whether no claim is left.
        """
        if self.leaving or self.ended:
            return not self.phases
        owned = self.in_phase(Phase.OWNED)
        return owned == self.want and len(owned) == len(self.phases)


@dataclass(frozen=True, slots=True)
class _OfPartitions:
    """The base class of the events and effects that concern ``partitions``."""

    partitions: Partitions


# Events: what the driver observed.


@dataclass(frozen=True, slots=True)
class AssignmentRead:
    """The assignment was read. ``partitions`` is None if the assignment is absent or unreadable."""

    partitions: Partitions | None


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The member now subscribes to exactly these topics."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The newest assignment of the member's slot names another member."""


class OwnerGone(_OfPartitions):
    """The owner znodes of these partitions no longer exist."""


class Claimed(_OfPartitions):
    """The owner znodes of these partitions belong to this session."""


class Contended(_OfPartitions):
    """These partitions could not be claimed: another session owns them."""


class Opened(_OfPartitions):
    """Positions and fencing tokens of these partitions were read, and the positions were stored again."""


class Drained(_OfPartitions):
    """The application has finished all in-flight records of these partitions, and the listener was notified."""


class Released(_OfPartitions):
    """This member has deleted the owner znodes of these partitions."""


class ClaimGone(_OfPartitions):
    """The owner znodes are gone or belong to another session, although this member did not release them."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The member leaves: it releases everything and claims no more."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over, so all claims have ended."""


Event: TypeAlias = (
    AssignmentRead
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


# Effects: what the driver must do.


class Claim(_OfPartitions):
    """Create the owner znodes; answer with Claimed and Contended."""


class WatchOwner(_OfPartitions):
    """Watch the owner znodes; answer with OwnerGone."""


class Open(_OfPartitions):
    """Read fencing tokens and positions; answer with Opened."""


class Deliver(_OfPartitions):
    """Start fetching and delivering these partitions."""


class Drain(_OfPartitions):
    """Stop fetching, wait for the application, notify the listener; answer with Drained."""


class Release(_OfPartitions):
    """Commit finished offsets and delete the owner znodes, in one transaction; answer with Released or ClaimGone."""


class Lose(_OfPartitions):
    """Stop these partitions at once: no more of their records may be delivered or committed."""


Effect: TypeAlias = Claim | WatchOwner | Open | Deliver | Drain | Release | Lose

_ORDER: tuple[tuple[Phase, Callable[[Partitions], Effect]], ...] = (
    # Releases precede claims: another member may be waiting.
    (Phase.DRAINING, Drain),
    (Phase.RELEASING, Release),
    (Phase.CLAIMING, Claim),
    (Phase.WAITING, WatchOwner),
    (Phase.OPENING, Open),
    (Phase.OWNED, Deliver),
)


def step(claims: Claims, event: Event) -> tuple[Claims, tuple[Effect, ...]]:
    """
    Return the state after an event, and the effects that the driver must carry out. Any event is permitted.

    The step ignores an answer for each partition that is no longer in a phase to which the answer applies.
    """
    if claims.ended:
        return claims, ()
    match event:
        case SessionEnded():
            lost = claims.in_phase(Phase.OWNED, Phase.DRAINING, Phase.RELEASING)
            return replace(claims, phases={}, ended=True), ((Lose(lost),) if lost else ())
        case ClaimGone(partitions):
            return _claim_gone(claims, partitions)
        case AssignmentRead(want):
            return _reconcile(replace(claims, want=want), {})
        case Subscribed(topics):
            after = replace(claims, topics=topics)
            dropped = [p for p in claims.in_phase(Phase.WAITING) if not after.may_claim(p)]
            return _reconcile(after, dict.fromkeys(dropped))
        case Replaced():
            # Rule 9: a member without claims keeps waiting for its own assignment. A member with claims was replaced.
            if claims.leaving or not claims.phases.keys() - claims.in_phase(Phase.WAITING):
                return _reconcile(replace(claims, want=None), {})
            return _reconcile(replace(claims, leaving=True, replaced=True), {})
        case Leave():
            return _reconcile(replace(claims, leaving=True), {})
        case OwnerGone(partitions):
            moves = _moves(claims, partitions, Phase.WAITING, lambda _: None)
        case Claimed(partitions):
            # Waiting partitions count, too: an owner znode of this session is a claim, whichever request found it.
            moves = _moves(claims, partitions, Phase.CLAIMING, lambda _: Phase.OPENING)
            moves |= _moves(claims, partitions, Phase.WAITING, lambda _: Phase.OPENING)
        case Contended(partitions):
            moves = _moves(claims, partitions, Phase.CLAIMING, lambda p: Phase.WAITING if claims.may_claim(p) else None)
        case Opened(partitions):
            moves = _moves(
                claims, partitions, Phase.OPENING, lambda p: Phase.OWNED if claims.keeps(p) else Phase.RELEASING
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
    """
    Return new phases for the given partitions that are in the phase ``source``. ``target`` computes each new phase.
    """
    return {partition: target(partition) for partition in partitions if claims.phases.get(partition) is source}


def _claim_gone(claims: Claims, partitions: Partitions) -> tuple[Claims, tuple[Effect, ...]]:
    """
    Free the given partitions that this member has claimed.

    If any freed partitions were owned, draining or releasing, the first effect is a Lose for these partitions. Effects
    of new claims follow.
    """
    claimed = claims.in_phase(Phase.OPENING, Phase.OWNED, Phase.DRAINING, Phase.RELEASING) & partitions
    lost = claims.in_phase(Phase.OWNED, Phase.DRAINING, Phase.RELEASING) & partitions
    after, effects = _reconcile(claims, dict.fromkeys(claimed))
    return after, ((Lose(lost), *effects) if lost else effects)


def _reconcile(claims: Claims, moves: dict[TopicPartition, Phase | None]) -> tuple[Claims, tuple[Effect, ...]]:
    """Apply the moves, revoke and claim partitions to match the assignment, and return the effects of all changes."""
    phases = dict(claims.phases)
    entered: dict[TopicPartition, Phase] = {}

    def move(partition: TopicPartition, target: Phase | None) -> None:
        assert target in MOVES[phases.get(partition)], (partition, phases.get(partition), target)
        if target is None:
            del phases[partition]
            entered.pop(partition, None)
        else:
            phases[partition] = entered[partition] = target

    for partition, target in moves.items():
        move(partition, target)
    for partition in claims.to_release(phases):
        phase = phases[partition]
        if phase is Phase.OWNED:
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
