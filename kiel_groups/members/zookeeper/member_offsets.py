"""Compose the parts that handle the offsets of one member on one session, for the offset store of its group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kiel_groups.members.offsets.claim_opening import ClaimOpener, NewLogs, StartOffsets
from kiel_groups.members.offsets.kafka_store import GroupStarts, KafkaClaimOpener, KafkaStore, OffsetRenewal
from kiel_groups.members.offsets.owned_offsets import ChosenCommits, NewLogStore, OffsetStore, OwnedOffsets, owner_words
from kiel_groups.members.offsets.topic_incarnations import RecreatedTopics, TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import BrokerCommits, OffsetZnodes, ZooKeeperStore
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.tasks import MemberContext

__all__ = [
    "MemberOffsets",
]


@dataclass(frozen=True, slots=True)
class MemberOffsets:
    """
    The parts that read and write the offsets of one member on one session, and the member's fenced ``writer``.

    ``brokers`` is what waits for brokers that store the commits, or None if the member itself writes them. ``starts``
    and ``renewal`` are None unless the offsets are in Kafka.
    """

    topics: TopicIncarnations
    writer: FencedWriter
    znodes: OffsetZnodes
    brokers: BrokerCommits | KafkaStore | None
    owned: OwnedOffsets
    chosen: ChosenCommits
    opener: ClaimOpener | KafkaClaimOpener
    recreated_topics: RecreatedTopics
    starts: GroupStarts | None = None
    renewal: OffsetRenewal | None = None

    @classmethod
    def compose(cls, context: MemberContext) -> MemberOffsets:
        """Create the parts of a member that has opened its session."""
        topics = TopicIncarnations(context.session, context.tasks, context.tracker)
        writer = FencedWriter(context.session, context.layout.member(context.member_id), topics.catch_up)
        znodes = OffsetZnodes(context, writer)
        if context.tracker.rules.in_kafka:
            return cls._in_kafka(context, topics, writer, znodes)
        brokers = BrokerCommits(context, znodes, writer) if context.tracker.rules.through_brokers else None
        new_logs = NewLogs(context, znodes, topics)
        starts = StartOffsets(context, writer, topics)
        opener = ClaimOpener(context, znodes, brokers, topics, starts, new_logs)
        owned, chosen, recreated = _owned(context, topics, ZooKeeperStore(context, znodes, brokers), new_logs)
        return cls(topics, writer, znodes, brokers, owned, chosen, opener, recreated)

    @classmethod
    def _in_kafka(
        cls, context: MemberContext, topics: TopicIncarnations, writer: FencedWriter, znodes: OffsetZnodes
    ) -> MemberOffsets:
        store = KafkaStore(context, writer, topics)
        starts = GroupStarts(context, writer, topics, znodes, store)
        opener = KafkaClaimOpener(context, store, topics, starts)
        owned, chosen, recreated = _owned(context, topics, store, store)
        renewal = OffsetRenewal(context, owned)
        return cls(topics, writer, znodes, store, owned, chosen, opener, recreated, starts, renewal)

    async def partitions(self) -> list[TopicPartition]:
        """Return the partitions in which the group may have an offset, in ascending order."""
        return await (self.znodes if self.starts is None else self.starts).partitions()


def _owned(
    context: MemberContext, topics: TopicIncarnations, store: OffsetStore, new_logs: NewLogStore
) -> tuple[OwnedOffsets, ChosenCommits, RecreatedTopics]:
    owned = OwnedOffsets(context.group, context.handler, context.tracker, context.metrics, store)
    chosen = ChosenCommits(context.group, context.tracker, owned, partial(owner_words, context))
    return owned, chosen, RecreatedTopics(context, topics, new_logs, owned.writing)
