"""What the history says of one change, before it records it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from kiel_groups.model import TopicPartition
from kiel_groups.testing.fake_ensemble import Entry
from kiel_groups.testing.znode_tree import Change, Znode

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["CommitRequest", "Delivery", "OffsetWrite", "OwnerDeletion", "PlanWrite", "WriteKind"]


class WriteKind(Enum):
    """How an offset comes to be stored."""

    #: The offset znode is deleted, or its data is no number.
    DAMAGE = auto()
    #: An operator sets the offset.
    OPERATOR = auto()
    #: A broker stores what some member has requested.
    BROKER = auto()
    #: A member stores the first offset of a partition.
    FIRST = auto()
    #: A member stores the beginning of the log of a topic that was created again.
    NEW_LOG = auto()
    #: An owner stores what the reset policy chooses for a log that does not have its position.
    RESET = auto()
    #: Any other write of a member.
    COMMIT = auto()


@dataclass(frozen=True, slots=True)
class OffsetWrite:
    """
    A change of an offset znode.

    ``writer`` is the member that made it, None for operators and brokers. ``before`` is the offset that it replaces,
    None where there was none that counts. Everything before ``processed`` was processed. ``repairs``: the offset was
    damaged, or the writer takes its version for another one. ``adopts``: the writer continues after damage at an offset
    that was reached before, or that an operator had set. ``may_reset``: the reset policy may choose this offset, and no
    commit would store it. ``request`` is what a broker was asked for, None if no member asked for this.
    """

    kind: WriteKind
    entry: Entry
    change: Change
    partition: TopicPartition
    writer: Consumer | None = None
    offset: int = -1
    before: int | None = None
    processed: int = 0
    repairs: bool = False
    adopts: bool = False
    may_reset: bool = False
    request: CommitRequest | None = None

    @property
    def by(self) -> Consumer:
        """The member that made it."""
        assert self.writer is not None
        return self.writer


@dataclass(frozen=True, slots=True)
class OwnerDeletion:
    """
    The owner znode ``claim`` of a consumer's present session is deleted.

    ``is_release``: by a member, and not by the end of a session. ``is_forced``: by an operator who has left the member
    znode, now or before.
    """

    entry: Entry
    partition: TopicPartition
    owner: Consumer
    claim: Znode
    is_release: bool
    is_forced: bool


@dataclass(frozen=True, slots=True)
class PlanWrite:
    """
    A member's write of the group state, of assignments, or of both.

    ``generation`` and ``state`` are those of the group state, None where it is not written; ``assigned`` are the
    generations of the assignments.
    """

    generation: int | None
    state: str | None
    assigned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A consumer may deliver, or does deliver, the record ``offset`` of a partition, in an epoch of its offset."""

    consumer: Consumer
    partition: TopicPartition
    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """
    A consumer's request to brokers to store an offset.

    ``claim`` is the czxid of the owner znode at that moment (0: there was none), ``zxid`` the newest one, ``created``
    the topic's creation zxid. ``known`` is how far the partition was processed, None where the consumer does not know
    all that others did to the offset. ``mistakes_version``: the consumer claimed the partition before its offset znode
    was deleted, so the versions of the new one mislead it. ``is_unaware``: another writer had set the offset right
    before, and the consumer could not have been notified.
    """

    consumer: Consumer
    partition: TopicPartition
    offset: int
    claim: int
    zxid: int
    created: int
    known: int | None
    mistakes_version: bool
    is_unaware: bool
