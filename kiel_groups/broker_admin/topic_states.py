"""What brokers say about topics, in the values with which ZooKeeper's are described."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kiel_groups.admin.topic_details import PartitionState, TopicState
from kiel_groups.admin.topic_refusals import existing_topics, unknown_topics
from kiel_groups.broker_admin.broker_session import BrokerSession, in_session
from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.metadata_v0 import TopicMetadata

__all__ = ["check_absent", "check_present", "read_topics", "topic_names"]


def topic_names(brokers: str, timeout_s: float) -> list[str]:
    """
    Return the names of all topics, in alphabetical order. The call blocks.

    Raises:
        KielGroupsError: As for ``BrokerSession``, whose arguments it has.
    """

    async def read(session: BrokerSession) -> list[str]:
        return sorted(session.topics)

    return in_session(brokers, timeout_s, read)


def check_absent(session: BrokerSession, names: Collection[str]) -> None:
    """Check that no topic has one of these names. Raise ConfigError for those that exist."""
    if there := [name for name in names if name in session.topics]:
        raise existing_topics(there)


def check_present(session: BrokerSession, names: Collection[str]) -> None:
    """Check that a topic of each of these names exists. Raise UnknownTopicError for those that do not."""
    topics = session.topics
    if missing := [name for name in names if name not in topics]:
        raise unknown_topics(missing, topics, session.place)


def read_topics(session: BrokerSession, names: Iterable[str]) -> list[TopicState]:
    """
    Return topics, in the order given. Their settings, and whether they are being deleted, are unknown.

    Raises:
        UnknownTopicError: A topic does not exist.
    """
    wanted = list(names)
    check_present(session, wanted)
    return [_state(session.topics[name]) for name in wanted]


def _state(topic: TopicMetadata) -> TopicState:
    partitions = tuple(
        PartitionState(
            TopicPartition(topic.topic, each.partition),
            each.replicas,
            each.leader if each.leader >= 0 else None,
            each.isr,
        )
        for each in sorted(topic.partitions, key=lambda each: each.partition)
    )
    return TopicState(topic.topic, partitions, config=None, is_being_deleted=None)
