"""Read what ZooKeeper stores about topics, for tools: partitions, replicas, leaders and configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import NoNodeError

from kiel_groups.admin.cluster_admin import Client, partitions_of
from kiel_groups.model import TopicPartition

__all__ = ["PartitionState", "TopicState", "read_topics"]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition, with brokers by their ids; ``leader`` is None while it has no leader, ``isr`` empty if unknown."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    leader: int | None
    isr: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicState:
    """
    One topic; ``partitions`` are in order.

    ``config`` has the settings that override the brokers' defaults. It is None, as is ``is_being_deleted``, if brokers
    were asked, which say neither.
    """

    topic: str
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] | None
    is_being_deleted: bool | None

    @property
    def leaderless(self) -> tuple[int, ...]:
        """The numbers of the partitions without a leader."""
        return tuple(each.topic_partition.partition for each in self.partitions if each.leader is None)

    @property
    def under_replicated(self) -> tuple[int, ...]:
        """The numbers of the partitions with replicas that are not in sync."""
        return tuple(each.topic_partition.partition for each in self.partitions if each.is_under_replicated)


def read_topics(client: Client, names: Iterable[str]) -> list[TopicState]:
    """
    Read topics, in the order given.

    Raises:
        UnknownTopicError: A topic does not exist.
    """
    return [_read_topic(client, name) for name in names]


def _read_topic(client: Client, topic: str) -> TopicState:
    replicas = partitions_of(client, topic)
    # Pipelined: one round trip for all reads.
    config = client.get_async(f"/config/topics/{topic}")
    deletion = client.exists_async(f"/admin/delete_topics/{topic}")
    states = {
        number: client.get_async(f"/brokers/topics/{topic}/partitions/{number}/state") for number in sorted(replicas)
    }
    partitions = []
    for number, read in states.items():
        state = _json_of(read)
        leader, isr = state.get("leader"), state.get("isr")
        partitions.append(
            PartitionState(
                TopicPartition(topic, number),
                tuple(replicas[number]),
                leader if isinstance(leader, int) and leader >= 0 else None,
                tuple(isr if isinstance(isr, list) else ()),
            )
        )
    settings = _json_of(config).get("config")
    shown = settings if isinstance(settings, dict) else {}
    return TopicState(topic, tuple(partitions), shown, deletion.get() is not None)


def _json_of(read: Any) -> dict[str, Any]:
    """Return the JSON object that was read from a znode, or {} if there is no znode (yet) or no object in it."""
    try:
        value = json.loads(read.get()[0])
    except (NoNodeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
