"""Descriptions of single changes, made by the history before it records them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from kiel_groups.model import TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Change, Znode
from tests.sim.history.seeks import Seek

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["CommitRequest", "Delivery", "OffsetWrite", "OwnerDeletion", "PlanWrite", "WriteKind"]


class WriteKind(Enum):
    """The kinds of changes of a stored offset."""

    #: The offset znode is deleted, or its data is no number.
    DAMAGE = auto()
    #: An operator sets the offset.
    OPERATOR = auto()
    #: An owner stores the offset that an operator orders, and deletes the order.
    ORDER = auto()
    #: A broker stores what some member has requested.
    BROKER = auto()
    #: A member stores the first offset of a partition.
    FIRST = auto()
    #: A member stores the start of the log of a topic that was created again.
    NEW_LOG = auto()
    #: An owner stores the offset that the reset policy chooses for a log that does not have its position.
    RESET = auto()
    #: An owner stores an offset after its application has sought, under the same claim.
    SEEK = auto()
    #: An owner stores an offset that its application has chosen, after the processed records and before a seek.
    CHOSEN = auto()
    #: Any other write of a member.
    COMMIT = auto()


@dataclass(frozen=True, slots=True)
class OffsetWrite:
    """
    A change of an offset znode.

    ``writer`` is the member that made the change, or None for operators and brokers. ``before`` is the replaced offset,
    or None if there was none, or if it does not count. All records before ``processed`` were processed. ``repairs``:
    the offset was damaged, or the writer mistakes its version for the version of a deleted znode. ``adopts``: after
    damage the writer continues at an offset that was reached before, or that an operator had set. ``may_reset``: the
    reset policy may choose this offset, and no commit would store it. ``request``: the request that a broker executes,
    or None if no member has requested this offset. ``seek``: the seek that allows this offset.
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
    seek: Seek | None = None

    @property
    def by(self) -> Consumer:
        """The member that made the change."""
        assert self.writer is not None
        return self.writer


@dataclass(frozen=True, slots=True)
class OwnerDeletion:
    """
    The deletion of ``claim``, an owner znode of the current session of ``owner``.

    ``is_release``: a member deleted the owner znode in a transaction, not by the end of its session. ``is_forced``: an
    operator deleted this owner znode, or an earlier owner znode of the same owner, and left the member znode.
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

    ``generation`` and ``state`` are taken from the group state, or None if only assignments are written. ``assigned``
    has the generations of the written assignments.
    """

    generation: int | None
    state: str | None
    assigned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of the record at ``offset`` in ``epoch``, or the opening of a partition at this position."""

    consumer: Consumer
    partition: TopicPartition
    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """
    A consumer's request to brokers to store an offset.

    At the time of the request, ``claim`` is the czxid of the owner znode (0 if there is none), ``zxid`` the newest
    zxid, and ``created`` the czxid of the topic. ``known`` is the processed offset, or None if the consumer does not
    know the offset's current epoch. ``mistakes_version``: the consumer claimed the partition before its offset znode
    was deleted, so the versions of the new znode mislead the consumer. ``is_unaware``: the consumer does not follow the
    newest write of another writer, or the newest incarnation of the topic.
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
