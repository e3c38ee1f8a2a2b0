"""Compose the parts that handle the offsets of one member on one session."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kiel_groups.coordination.offsets.broker_commits import BrokerCommits
from kiel_groups.coordination.offsets.chosen_commits import ChosenCommits
from kiel_groups.coordination.offsets.claim_opening import ClaimOpener
from kiel_groups.coordination.offsets.new_logs import NewLogs
from kiel_groups.coordination.offsets.offset_znodes import OffsetZnodes
from kiel_groups.coordination.offsets.owned_offsets import OwnedOffsets
from kiel_groups.coordination.offsets.partition_owner import owner_words
from kiel_groups.coordination.offsets.recreated_topics import RecreatedTopics
from kiel_groups.coordination.offsets.start_offsets import StartOffsets
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.offsets.zookeeper_store import ZooKeeperStore
from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.coordination.session.session_context import MemberContext

__all__ = ["MemberOffsets"]


@dataclass(frozen=True, slots=True)
class MemberOffsets:
    """
    The parts that read and write the offsets of one member on one session, and the member's fenced ``writer``.

    ``brokers`` is None if the member itself writes its commits.
    """

    topics: TopicIncarnations
    writer: FencedWriter
    znodes: OffsetZnodes
    brokers: BrokerCommits | None
    owned: OwnedOffsets
    chosen: ChosenCommits
    opener: ClaimOpener
    recreated_topics: RecreatedTopics

    @classmethod
    def compose(cls, context: MemberContext) -> MemberOffsets:
        """Create the parts of a member that has opened its session."""
        topics = TopicIncarnations(context.session, context.tasks, context.tracker)
        writer = FencedWriter(context.session, context.layout.member(context.member_id), topics.catch_up)
        znodes = OffsetZnodes(context, writer)
        brokers = BrokerCommits(context, znodes, writer) if context.tracker.rules.through_brokers else None
        store = ZooKeeperStore(context, znodes, brokers)
        owned = OwnedOffsets(context.group, context.handler, context.tracker, context.metrics, store)
        new_logs = NewLogs(context, znodes, topics)
        starts = StartOffsets(context, writer, topics)
        opener = ClaimOpener(context, znodes, brokers, topics, starts, new_logs)
        recreated_topics = RecreatedTopics(context, topics, new_logs, owned.writing)
        chosen = ChosenCommits(context.group, context.tracker, owned, partial(owner_words, context))
        return cls(topics, writer, znodes, brokers, owned, chosen, opener, recreated_topics)
