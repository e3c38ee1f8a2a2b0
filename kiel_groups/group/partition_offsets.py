"""
Represent the offsets of one partition during one claim, and the decisions about them.

``OffsetTracker`` uses these values. The rules in this module's docstrings are those of ``offset_tracker``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

from kiel_groups.model import FencingToken, TopicPartition

# The reset of a position that its partition's log lacks: retention passed it, or the log was truncated.
#
# A reset is *chosen* when the log's range is known, and *stored* once no older record is buffered or in flight. The
# stored offset never skips an unfinished record that the log still has (decision 0016).


@dataclass(frozen=True, slots=True, eq=False)
class PendingReset:
    """
    A position that was chosen for a partition and is not stored yet.

    ``lost`` is the position that the log lacks. ``start`` and ``end`` are the log's first and next offset at the time
    of the choice. ``position`` is the offset at which the reset policy continues.
    """

    lost: int
    start: int
    end: int
    position: int

    def offset_after(self, done: int) -> int:
        """
        Return the offset to store if all records before the offset ``done`` are finished.

        The records from ``done`` to the lost position must be delivered if the log still has them. If there are such
        records, the reset may move the offset back, but not forward past these records.
        """
        owed = max(done, self.start)
        return min(owed, self.position) if owed < min(self.lost, self.end) else self.position


# The offsets of one partition during one claim, and the decisions about them, as values; see ``offset_tracker``.
#
# All offsets are *next* offsets: the offset of the first record that was not delivered (``position``), not finished
# (``finished``) or not committed (``committed``).


class Phase(Enum):
    """The phase of a partition's offsets. A partition without a phase is not claimed."""

    #: Entry: opening the claim has started. Duty: find or create the offset, and rewrite it. Exit: the start is stored.
    CLAIMED = "claimed"
    #: Entry: the start is stored. Duty: commit what is finished. Exit: a reset, a new log, or the end of the claim.
    OPEN = "open"
    #: Entry: the log lacks the position, and another one is chosen. Duty: store that one. Exit: it is stored or void.
    RESETTING = "resetting"
    #: Entry: the topic was created again. Duty: store the start of the new log. Exit: it is stored.
    OUTDATED = "outdated"


#: The legal changes of a partition's phase; None is a partition that is not claimed. A consumer without a group opens
#: partitions without a claim.
MOVES: Mapping[Phase | None, frozenset[Phase | None]] = {
    None: frozenset({Phase.CLAIMED, Phase.OPEN}),
    Phase.CLAIMED: frozenset({Phase.OPEN, Phase.OUTDATED, None}),
    Phase.OPEN: frozenset({Phase.RESETTING, Phase.OUTDATED, None}),
    Phase.RESETTING: frozenset({Phase.OPEN, Phase.OUTDATED, None}),
    Phase.OUTDATED: frozenset({Phase.OPEN, None}),
}


class StartOrigin(Enum):
    """
    The source of the offset at which a partition's delivery last started. The values are for log lines.
    """

    #: The group's stored offset.
    STORED = "the stored offset"
    #: The reset policy, because the group had no stored offset.
    FIRST = "by auto_offset_reset, without a stored offset"
    #: Another writer stored it.
    ADOPTED = "another writer's offset"
    #: This consumer stored it on an operator's order.
    ORDERED = "an operator's order"
    #: The reset policy, because the log lacked the position.
    RESET = "by auto_offset_reset, the log lacked the position"
    #: The start of the new log of a topic that was created again.
    NEW_LOG = "the start of a new log"
    #: The application.
    SEEK = "by a seek"


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """
    The content of an offset znode: the next offset and the znode's version.

    ``offset`` is None if the znode contains no decimal number. ``mzxid`` is the zxid of the last write, 0 if unknown.
    """

    offset: int | None
    version: int
    mzxid: int = 0


@dataclass(frozen=True, slots=True)
class StartPosition:
    """
    The start position of a claim.

    ``offset`` is the next offset. ``version`` is the version of the offset znode after this member has rewritten it.
    ``token`` is the claim's fencing token: the czxid of the owner znode, or the membership in a group that brokers
    coordinate. The czxid grows with every claim of the partition. ``created`` identifies the topic incarnation that the
    offset belongs to: the topic's creation zxid, 0 if unknown. ``origin`` says how the offset was chosen.
    """

    offset: int
    version: int
    token: FencingToken
    created: int = 0
    origin: StartOrigin = StartOrigin.STORED


class Commit(NamedTuple):
    """A decision to store the next offset ``offset``, if the offset znode has ``version``."""

    offset: int
    version: int

    def has_stored(self, found: StoredOffset) -> bool:
        """
        Return whether this commit of unknown outcome has stored the offset ``found`` (rule 2 of ``offset_tracker``).
        """
        return (found.version, found.offset) == (self.version + 1, self.offset)


class Refusal(Enum):
    """The reasons why an offset that the application chose is not committed (rule 9 of ``offset_tracker``)."""

    #: The partition has no opened claim.
    NOT_OPEN = auto()
    #: The topic was created again, so the offset may belong to the old log.
    OUTDATED = auto()
    #: The offset is before the floor.
    BEFORE_FLOOR = auto()
    #: The offset is beyond the position: records would be skipped that were never delivered.
    BEYOND_POSITION = auto()
    #: The log was truncated, and the offset is beyond its end.
    BEYOND_LOG = auto()
    #: The offset was delivered earlier: before the present claim, or before the start of delivery was moved.
    DELIVERED_EARLIER = auto()


class CommitRange(NamedTuple):
    """
    The offsets from ``first`` to ``last``, included, that the application could commit at some time (rule 9 of
    ``offset_tracker``).
    """

    first: int
    last: int

    def has(self, offset: int) -> bool:
        return self.first <= offset <= self.last

    def union(self, other: CommitRange | None) -> CommitRange:
        """Return the smallest range that includes this range and ``other``."""
        if other is None:
            return self
        return CommitRange(min(self.first, other.first), max(self.last, other.last))


class ChosenCommits(NamedTuple):
    """
    A decision on offsets that the application chose.

    Without ``refusals``, all ``commits`` are stored. If any offset is refused, no offset is stored, and ``commits`` is
    empty.
    """

    commits: Mapping[TopicPartition, Commit]
    refusals: Mapping[TopicPartition, Refusal]


class Release(NamedTuple):
    """
    A decision on the offset of a partition whose claim ends.

    The release stores ``offset`` if the offset znode has ``version``. If ``offset`` is None, the release only verifies
    the version. If ``version`` is None, the release verifies nothing. ``is_superseded`` is true if another writer has
    changed the offset.
    """

    offset: int | None
    version: int | None
    is_superseded: bool = False


class Finding(Enum):
    """The meaning of a stored offset for the consumer that owns the partition."""

    #: The version is the one that was last seen.
    UNCHANGED = auto()
    #: A commit of this consumer, whose outcome was unknown, has stored the offset.
    OWN = auto()
    #: Another writer has stored the offset, and the consumer continues there.
    ADOPTED = auto()
    #: Another writer has stored data that is not an offset.
    UNREADABLE = auto()
    #: The partition is not open.
    NOT_OPEN = auto()


class DeliveredOffsets(NamedTuple):
    """The position and the finished offset of a partition at one moment."""

    position: int
    finished: int


class Delivery(Protocol):
    """A batch of one partition that is being delivered, record by record."""

    def offsets(self) -> DeliveredOffsets:
        """Return the partition's position and finished offset at this moment."""


@dataclass(slots=True)
class ClaimedPartition:
    """
    The claim of a partition, opened or not.

    ``created`` identifies the topic incarnation to which the claim's offsets belong, by the topic's creation zxid.
    ``newest`` identifies the latest known incarnation.
    """

    created: int
    newest: int

    @property
    def outdated(self) -> bool:
        """Whether the topic has a newer incarnation, so that the claim's offsets must not be stored."""
        return self.created < self.newest

    @property
    def phase(self) -> Phase:
        return Phase.OUTDATED if self.outdated else Phase.CLAIMED


@dataclass(slots=True)
class PartitionOffsets(ClaimedPartition):
    """
    The offsets of one partition during one claim, after the claim was opened.

    ``start`` is the offset at which delivery started last, and ``origin`` says how that offset was chosen. ``sent`` has
    the offsets of commits against ``version`` whose outcome is unknown: the commit is in flight, or its caller was
    interrupted. ``requested`` is the offset that brokers were last asked to store. ``unreadable`` is true if the stored
    data at ``version`` is not an offset. ``adopted`` is the version at which another writer's offset was last adopted.
    If the log lacks the position, ``reset`` is set until the new position is stored.

    ``floor`` is the lowest offset that the application may commit. The start of the claim sets the floor, and later
    another writer, a reset or a new log may set it. A seek of the application may lower the floor. ``seek_mark`` is a
    new object after each seek of the application and in each new log: a seek that waits for a look-up is void if the
    mark has changed.

    ``position`` and ``finished`` change with each record. So while the consumer delivers a batch, the two fields are
    not written, but read from that delivery (decision 0025). To set ``position`` or ``finished`` ends the reading from
    that delivery.
    """

    token: FencingToken
    start: int
    origin: StartOrigin
    _position: int
    _finished: int
    committed: int
    version: int
    sent: set[int] = field(default_factory=set)
    requested: int | None = None
    unreadable: bool = False
    adopted: int | None = None
    reset: PendingReset | None = None
    floor: int = 0
    seek_mark: object = field(default_factory=object, compare=False, repr=False)
    _delivery: Delivery | None = field(default=None, compare=False, repr=False)

    @property
    def position(self) -> int:
        """The offset of the first record that was not delivered."""
        return self._position if self._delivery is None else self._delivery.offsets().position

    @position.setter
    def position(self, offset: int) -> None:
        self.end_delivery()
        self._position = offset

    @property
    def finished(self) -> int:
        """The offset of the first record that is not finished."""
        return self._finished if self._delivery is None else self._delivery.offsets().finished

    @finished.setter
    def finished(self, offset: int) -> None:
        self.end_delivery()
        self._finished = offset

    def begin_delivery(self, delivery: Delivery) -> None:
        """Read the position and the finished offset from a delivery, until ``end_delivery`` or another delivery."""
        self.end_delivery()
        self._delivery = delivery

    def end_delivery(self) -> None:
        """Keep the present position and finished offset. Later steps of the delivery no longer change them."""
        if self._delivery is not None:
            self._position, self._finished = self._delivery.offsets()
            self._delivery = None

    def is_delivered_by(self, delivery: Delivery) -> bool:
        """Return whether the offsets are read from this delivery."""
        return self._delivery is delivery

    @property
    def phase(self) -> Phase:
        if self.outdated:
            return Phase.OUTDATED
        return Phase.OPEN if self.reset is None else Phase.RESETTING

    @property
    def uncommitted(self) -> bool:
        """Whether a commit has an offset to store (rules 1, 4, 5 and 6 of ``offset_tracker``)."""
        finished = self.finished
        beyond_log = self.reset is not None and finished > self.reset.end
        # A seek back to the committed offset is stored, too, if the outcome of a commit before it is unknown.
        may_differ = finished != self.committed or any(offset != finished for offset in self.sent)
        return not self.outdated and not beyond_log and (self.unreadable or may_differ)

    def reset_offset(self, *, autocommit: bool) -> int | None:
        """
        Return the offset that the chosen reset stores, or None if there is no reset.

        Without ``autocommit``, the reset does not skip records that the application has not committed.
        """
        return None if self.reset is None else self.reset.offset_after(self.finished if autocommit else self.committed)

    def refusal_of(self, offset: int) -> Refusal | None:
        """
        Return why the application may not commit ``offset``, or None if the application may commit it (rule 9 of
        ``offset_tracker``).
        """
        if self.outdated:
            return Refusal.OUTDATED
        if offset < self.floor:
            return Refusal.BEFORE_FLOOR
        if offset > self.position:
            return Refusal.BEYOND_POSITION
        if self.reset is not None and offset > self.reset.end:
            return Refusal.BEYOND_LOG
        return None

    def wrote(self, stored: StoredOffset) -> bool:
        """
        Return whether a commit of this consumer with an unknown outcome has stored the offset (rule 2 of
        ``offset_tracker``).
        """
        return any(Commit(offset, self.version).has_stored(stored) for offset in self.sent)

    def knows(self, stored: StoredOffset) -> bool:
        """
        Return whether this consumer found the stored offset when it claimed the partition, or wrote that offset itself.

        An adopted offset is excluded: another writer may have set it for a new incarnation of the topic before this
        consumer learned of that incarnation. The offset must then survive the restart in the new log.
        """
        return stored.version == self.version != self.adopted or self.wrote(stored)

    def judge(self, stored: StoredOffset) -> Finding:
        """Return what a stored offset means (rules 2 to 4 of ``offset_tracker``)."""
        if stored.version == self.version:
            return Finding.UNCHANGED
        if stored.offset is None:
            return Finding.UNREADABLE
        if self.wrote(stored) or stored.offset == self.requested:
            return Finding.OWN
        return Finding.ADOPTED
