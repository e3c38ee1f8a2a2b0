"""
What must not happen to offsets that brokers write (the store ``broker-v0``).

A broker checks nothing, so the rules are about what it is asked for. What it writes late may step an offset back,
overwrite an operator's offset, or be of a log that is gone: ``docs/ownership.rst`` says so. It is never beyond what was
processed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.model import TopicPartition

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.ledger import Ledger
    from tests.sim.world import World

__all__ = ["BrokerRules", "UNDER_WAY_S"]

#: How long a request may be under way, in seconds.
UNDER_WAY_S = 2.0


@dataclass(frozen=True, slots=True)
class Request:
    """
    A consumer's request to store an offset.

    ``claim`` is the czxid of the owner znode at that moment (0: there was none), ``zxid`` the newest one, ``created``
    the topic's creation zxid. ``is_unaware``: somebody else had set the offset right before, and the consumer could not
    have heard of it.
    """

    consumer: Consumer
    claim: int
    zxid: int
    created: int
    is_unaware: bool


class BrokerRules:
    """Checks the requests to store offsets, and what brokers make of them."""

    def __init__(self, world: World, ledger: Ledger, violation: Callable[[str], Exception]) -> None:
        self._world = world
        self._ledger = ledger
        self._violation = violation
        #: The newest request for each offset of a partition.
        self._requests: dict[tuple[TopicPartition, int], Request] = {}
        #: The offset of each partition that each consumer requested last.
        self._last: dict[tuple[Consumer, TopicPartition], int] = {}
        self._newest: dict[TopicPartition, Request] = {}
        #: Partitions whose offset was last written for a claim that is over, or after a later request was made.
        self._late: set[TopicPartition] = set()

    def requested(self, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        """A consumer requests brokers to store offsets: it may commit them, as of this moment."""
        for partition, offset in sorted(offsets.items()):
            what = f"{consumer.name} requests brokers to store {offset} of {partition}"
            if not consumer.gate_is_open:
                raise self._violation(f"{what}, and its gate is shut")
            if not self._ledger.claims(consumer, partition):
                raise self._violation(f"{what}, and its claim is not there")
            topic = self._world.ensemble.tree.znodes.get(topic_path(partition.topic))
            created = 0 if topic is None else topic.czxid
            known, is_mistaken = self._ledger.known(consumer, partition), self._ledger.may_mistake(partition)
            is_unaware = known is None or is_mistaken or consumer.created(partition) < created
            if known is not None and offset > known and not is_mistaken:
                raise self._violation(f"{what}, processed is {known}")
            is_old = self._ledger.is_set(partition) and not self._is_recent(partition)
            # Where an operator set the very offset that the consumer requested last, brokers may have stored it twice.
            is_told = is_old and not self.may_have_requested(consumer, partition, self._ledger.stored(partition))
            if is_unaware and is_told and not is_mistaken:
                raise self._violation(f"{what}, and an operator set it to {self._ledger.stored(partition)} long ago")
            request = Request(consumer, self._claim(partition), self._ledger.zxid, created, is_unaware)
            self._requests[partition, offset] = self._newest[partition] = request
            self._last[consumer, partition] = offset

    def _claim(self, partition: TopicPartition) -> int:
        owner = self._world.ensemble.tree.znodes.get(self._world.layout.owner(partition))
        return 0 if owner is None else owner.czxid

    def _is_recent(self, partition: TopicPartition) -> bool:
        """Whether what a consumer does not know may still be on its way to it."""
        return self._world.timeline.now_s < self._ledger.epoch_began(partition)[1] + UNDER_WAY_S

    def may_have_requested(self, consumer: Consumer, partition: TopicPartition, offset: int | None) -> bool:
        """Whether this is what a consumer requested last."""
        return self._last.get((consumer, partition)) == offset

    def may_leave(self, consumer: Consumer, partition: TopicPartition, finished: int, *, by_itself: bool) -> bool:
        """
        Whether a consumer may give up a partition although something else than what it has finished is stored.

        More may be stored, where that was processed under an earlier claim. Less may be stored, where a write is late,
        or was requested and is not there yet, or where the consumer itself has replaced garbage.
        """
        stored = self._ledger.stored(partition)
        if stored is not None and stored > finished:
            return stored <= self._ledger.processed(partition)
        return by_itself or self._last.get((consumer, partition)) == finished or partition in self._late

    def written(self, partition: TopicPartition, offset: int) -> None:
        """A broker stores an offset: one that was requested, and that was processed in the present log."""
        ledger = self._ledger
        request = self._requests.get((partition, offset))
        if request is None:
            raise self._violation(f"a broker stores {offset} of {partition}, which no member requested")
        is_outdated = request.created < ledger.created(partition)[0] or request.zxid < ledger.epoch_began(partition)[0]
        is_late = request is not self._newest[partition] or request.claim != self._claim(partition)
        (self._late.add if is_outdated or is_late else self._late.discard)(partition)
        if is_outdated or request.is_unaware:
            # What stood there was of another log, or an operator's.
            ledger.overwritten(request.consumer, partition, offset)
        elif offset > ledger.processed(partition):
            raise self._violation(
                f"a broker stores {offset} of {partition}, processed is {ledger.processed(partition)}"
            )
