"""
Open claims of a group whose offsets are in Kafka: find where each claimed partition starts, and store that again.

The write tells Kafka that the offset is in use, so that it does not expire, and notes the new claim with it. It fences
nothing: a delayed request of a former owner may replace it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from kiel_groups.coordination.kafka_offsets.group_starts import GroupStarts
from kiel_groups.coordination.kafka_offsets.kafka_store import KafkaStore, NewOffset
from kiel_groups.coordination.offsets.offset_store import Starts
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.errors import KielGroupsError, NoBrokersError, RetriableBrokerError
from kiel_groups.group.member.partition_offsets import StartOrigin, StartPosition
from kiel_groups.model import TopicPartition

__all__ = ["KafkaClaimOpener"]


class KafkaClaimOpener:
    """Opens the claims of one member on its session."""

    def __init__(
        self, context: MemberContext, store: KafkaStore, topics: TopicIncarnations, starts: GroupStarts
    ) -> None:
        self._context = context
        self._session = context.session
        self._tracker = context.tracker
        self._store = store
        self._topics = topics
        self._starts = starts

    async def start(self, partitions: Collection[TopicPartition]) -> Starts:
        """
        Open freshly claimed partitions, and return their start positions.

        A partition starts at the group's offset in Kafka, unless that belongs to a deleted topic of the same name; then
        it starts at the beginning of the new log. Without an offset in Kafka, it starts as ``GroupStarts`` says.
        """
        by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition in sorted(partitions):
            by_topic[partition.topic].append(partition)
        starts = Starts({}, {})
        for topic, listed in by_topic.items():
            opened = await self._open(topic, listed)
            starts.found.update(opened.found)
            starts.failures.update(opened.failures)
        return starts

    async def _open(self, topic: str, partitions: Sequence[TopicPartition]) -> Starts:
        while True:
            await self._topics.catch_up()
            created = self._topics.creation(topic)
            self._tracker.claim(partitions, created)
            may_open = partial(self._may_open, created, {each: self._tracker.claimed(each) for each in partitions})
            claims = await self._claims(partitions)
            starts = await self._find(topic, created, claims)
            new = {p: NewOffset(start.offset, created, claims[p]) for p, start in starts.found.items()}
            outcome = await self._store.store(new, may_open)
            if self._topics.creation(topic) == created:
                found = {partition: start for partition, start in starts.found.items() if may_open(partition)}
                stored = {partition: start for partition, start in found.items() if partition in outcome.stored}
                return Starts(stored, starts.failures | self._not_stored(found.keys() - stored.keys()))

    def _may_open(self, created: int, claimed: Mapping[TopicPartition, object], partition: TopicPartition) -> bool:
        """
        Return whether a claim is still to be opened in the incarnation of its topic that ``created`` identifies.

        Meanwhile, the claim may have been released, and another one been made.
        """
        is_known = self._topics.creation(partition.topic) == created
        return is_known and self._tracker.claimed(partition) is claimed[partition]

    async def _claims(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the numbers of this session's claims among these partitions."""
        layout = self._context.layout
        owners = await self._session.exists_many([layout.owner(partition) for partition in partitions])
        found = zip(partitions, owners, strict=True)
        return {p: owner.czxid for p, owner in found if owner is not None and owner.owner == self._session.id}

    async def _find(self, topic: str, created: int, claims: Mapping[TopicPartition, int]) -> Starts:
        """Find the start positions of claims, in Kafka or by the first offsets of the group."""
        stored, failed = await self._store.stored(claims.keys())
        found: dict[TopicPartition, StartPosition] = {}
        failures = dict(failed)
        outdated = set()
        for partition, (offset, log_of) in stored.items():
            if log_of in (None, created):
                found[partition] = _start(offset, claims[partition], created, StartOrigin.STORED)
            elif log_of is not None and log_of < created:
                outdated.add(partition)
            else:
                failures[partition] = RetriableBrokerError(
                    f"group {self._context.group}: the offset of {partition} belongs to a newer topic than the one that"
                    " ZooKeeper shows to this member"
                )
        missing = claims.keys() - found.keys() - failures.keys()
        if missing:
            first = await self._starts.find(topic, missing, is_new_log=bool(outdated))
            origins = {p: StartOrigin.NEW_LOG if p in outdated else StartOrigin.FIRST for p in missing}
            found |= {p: _start(at, claims[p], created, origins[p]) for p, at in first.found.items()}
            failures |= first.failures
        return Starts(found, failures)

    def _not_stored(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, KielGroupsError]:
        group = self._context.group
        return {
            p: NoBrokersError(f"group {group}: the coordinator has not stored the start of {p}") for p in partitions
        }


def _start(offset: int, claim: int, created: int, origin: StartOrigin) -> StartPosition:
    # Offsets in Kafka have no versions.
    return StartPosition(offset, 0, claim, created, origin)
