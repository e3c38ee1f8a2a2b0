"""The seeks and pauses of applications."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiel_groups.model import TopicPartition

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["Seek", "Seeks"]


@dataclass(slots=True, eq=False)
class Seek:
    """
    A seek to ``offset`` under the claim with the czxid ``token``, whose offset is not stored yet.

    ``reached`` is the next offset after all records that were processed since the seek. ``epoch`` identifies the
    deliveries after the seek; it is negative, unlike the epochs of stored offsets.
    """

    token: int
    offset: int
    reached: int
    epoch: int


class Seeks:
    """The seeks of all applications, and the pauses, each with the claim under which it was made."""

    def __init__(self) -> None:
        self._epochs = itertools.count(-2, -1)
        self._seeks: dict[tuple[Consumer, TopicPartition], list[Seek]] = {}
        self._by_epoch: dict[int, Seek] = {}
        self._pauses: dict[tuple[Consumer, TopicPartition], int] = {}

    def record(self, consumer: Consumer, partition: TopicPartition, token: int, offset: int) -> Seek:
        seek = Seek(token, offset, offset, next(self._epochs))
        before = [other for other in self._seeks.get((consumer, partition), []) if other.token == token]
        self._seeks[consumer, partition] = [*before, seek]
        self._by_epoch[seek.epoch] = seek
        return seek

    def newest(self, consumer: Consumer, partition: TopicPartition) -> Seek | None:
        """Return the consumer's newest seek whose offset is not stored, or None."""
        seeks = self._seeks.get((consumer, partition))
        return seeks[-1] if seeks else None

    def is_pending(self, consumer: Consumer, partition: TopicPartition, token: int) -> bool:
        """Return whether the consumer has sought under the claim ``token``, and the offset is not stored."""
        seek = self.newest(consumer, partition)
        return seek is not None and seek.token == token

    def of_epoch(self, epoch: int) -> Seek | None:
        """Return the seek after which records of this epoch were delivered, or None."""
        return self._by_epoch.get(epoch)

    def find(self, consumer: Consumer, partition: TopicPartition, token: int | None, offset: int) -> Seek | None:
        """
        Return the newest seek that allows the consumer to store ``offset`` under a claim, or None.

        ``token`` is the claim's czxid, or None if an operator has deleted it and the consumer may not know.
        """
        for seek in reversed(self._seeks.get((consumer, partition), ())):
            if token in (None, seek.token) and seek.offset <= offset <= seek.reached:
                return seek
        return None

    def is_beyond(self, consumer: Consumer, partition: TopicPartition, token: int | None, offset: int) -> bool:
        """Return whether a seek under a claim (see ``find``), which is not stored, has a larger offset."""
        seeks = self._seeks.get((consumer, partition), ())
        return any(token in (None, seek.token) and offset < seek.offset for seek in seeks)

    def record_stored(self, consumer: Consumer, partition: TopicPartition, stored: Seek) -> None:
        """Record that the offset of a seek is stored. Earlier seeks are void."""
        seeks = self._seeks[consumer, partition]
        del seeks[: seeks.index(stored) + 1]

    def move(self, consumer: Consumer, partition: TopicPartition, position: int) -> None:
        """Record that a reset has moved the consumer to ``position``, before the offset of a seek was stored."""
        if (seek := self.newest(consumer, partition)) is not None:
            seek.offset, seek.reached = min(seek.offset, position), position

    def end(self, consumer: Consumer, partition: TopicPartition) -> None:
        """
        Record that the seeks of a consumer are void, because another offset applies.

        After a loss they are not: a commit that was sent before may still be stored.
        """
        self._seeks.pop((consumer, partition), None)

    def pause(self, consumer: Consumer, partition: TopicPartition, token: int) -> None:
        self._pauses[consumer, partition] = token

    def resume(self, consumer: Consumer, partition: TopicPartition) -> None:
        self._pauses.pop((consumer, partition), None)

    def is_paused(self, consumer: Consumer, partition: TopicPartition, token: int) -> bool:
        """Return whether the application paused a partition under the claim ``token``."""
        return self._pauses.get((consumer, partition)) == token
