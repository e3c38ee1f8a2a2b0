"""The offsets that applications chose to commit, and the lowest offset that each claim may store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiel_groups.model import TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.sim.history.owners import Owners

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["ChosenCommits"]


class ChosenCommits:
    """
    The commits of chosen offsets that applications have begun, each under one claim, and that are not stored yet.

    A chosen offset is the only one that a commit may store below the stored offset.
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._begun: dict[tuple[TopicPartition, Consumer], list[tuple[int, int]]] = {}
        #: All of them, stored or not: a broker may store an offset late, and several times.
        self._ever: set[tuple[TopicPartition, Consumer, int, int]] = set()
        #: The czxid of the claim, and at most the offset below which it may store nothing: the lowest one at which its
        #: delivery ever started.
        self._floors: dict[tuple[TopicPartition, Consumer], tuple[int, int]] = {}

    def begin(self, consumer: Consumer, partition: TopicPartition, token: int, offset: int) -> None:
        """Record that an application commits an offset, while the claim with the czxid ``token`` is open."""
        self._begun.setdefault((partition, consumer), []).append((token, offset))
        self._ever.add((partition, consumer, token, offset))

    def open(self, consumer: Consumer, partition: TopicPartition, token: int, position: int) -> None:
        """Record that a claim was opened at ``position``, or that its delivery starts there or at a lower offset."""
        known, floor = self._floors.get((partition, consumer), (token, position))
        self._floors[partition, consumer] = (token, min(floor, position) if known == token else position)

    def was_chosen(self, consumer: Consumer, partition: TopicPartition, token: int, offset: int) -> bool:
        """Return whether the application has ever chosen this offset under this claim."""
        return (partition, consumer, token, offset) in self._ever

    def start_at(self, partition: TopicPartition, offset: int) -> None:
        """Record that another writer, a reset or a new log may have every consumer continue at ``offset``."""
        for known, consumer in self._floors:
            if known == partition:
                token, floor = self._floors[known, consumer]
                self._floors[known, consumer] = (token, min(floor, offset))

    def allow(self, entry: Entry, consumer: Consumer, partition: TopicPartition, offset: int) -> bool:
        """Return whether the consumer's application has chosen this offset under its claim, which may store it."""
        claim = self._owners.claim(entry, partition)
        tokens = [token for token, chosen in self._begun.get((partition, consumer), ()) if chosen == offset]
        under_claim = bool(tokens) if claim is None else claim.czxid in tokens
        return under_claim and offset >= self._floors.get((partition, consumer), (0, 0))[1]

    def record_write(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        """Record that an offset is stored: it was chosen once less."""
        begun = self._begun.get((partition, consumer), [])
        for number, (_, chosen) in enumerate(begun):
            if chosen == offset:
                del begun[number]
                return
