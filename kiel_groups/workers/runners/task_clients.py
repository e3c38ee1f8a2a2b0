"""Create the clients of tasks: a producer for each source task, and a consumer for each sink task."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal, Protocol

from kiel_groups.clients.grouped import GroupedConsumer
from kiel_groups.clients.producer import Producer
from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wording import some
from kiel_groups.workers.runners.broker_probe import all_topics

__all__ = [
    "KafkaClients",
    "SinkConsumer",
    "SourceProducer",
    "TaskClients",
    "missing_topics_text",
    "sink_group",
    "unknown_topics",
]

#: The records of one batch of a source task's producer, and how long a record waits for others, in milliseconds.
_BATCH_RECORDS, _LINGER_MS = 1_000, 20

#: A source task waits for brokers as long as it runs, as one of Kafka Connect does. Its stop is bounded.
_RETRIES = 1_000_000

#: How long the names of all topics are used, and how long they are if one of those that are asked for is not among
#: them, in seconds.
_TOPICS_AGE_S, _MISSING_AGE_S = 15.0, 1.0

#: The characters that names of groups do not have, and how many characters of a name with such characters, and of its
#: digest, its group has: fewer together than the 255 of Kafka's names.
_NOT_IN_GROUPS, _MOST_SHOWN, _DIGEST_CHARACTERS = re.compile("[^a-zA-Z0-9._-]"), 200, 32


class SourceProducer(Protocol):
    """What a source task needs of its producer; ``Producer`` is one."""

    @property
    def is_full(self) -> bool: ...
    def produce(self, topic: str, message: Any, key: Any = None, partition: int | None = None) -> Any: ...
    def drain(self) -> Any: ...
    def flush(self) -> Any: ...
    def close(self, timeout_ms: int | None = None) -> Any: ...


class SinkConsumer(Protocol):
    """What a sink task needs of its consumer; ``GroupedConsumer`` is one."""

    def connect(self) -> Any: ...
    def subscribe(self, topics: Collection[str]) -> Any: ...
    def getmany(self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None) -> Any: ...
    def commit(self, offsets: Mapping[TopicPartition, int]) -> Any: ...
    def close(self) -> Any: ...


class TaskClients(Protocol):
    """Creates the clients of tasks; nothing is connected before the task uses its client."""

    def producer(self) -> SourceProducer:
        """Create a producer, whose records are stored by all in-sync replicas."""

    def consumer(self, group: str, listener: object, on_bad_record: Literal["raise", "skip"]) -> SinkConsumer:
        """Create a consumer that commits only what it is asked to."""

    async def missing_topics(self, topics: Collection[str]) -> list[str]:
        """
        Return those of these topics that no broker knows, sorted.

        Raises:
            NoBrokersError: No broker answers.
        """


class KafkaClients:
    """
    Creates clients of a Kafka cluster.

    Args:
        brokers: ``host`` or ``host:port`` (9092) of some brokers.
        zk_hosts: The ZooKeeper servers that coordinate the groups of sinks; None if brokers coordinate these.
        consumer_settings: Further arguments of ``GroupedConsumer``, such as ``coordination``.
        producer_settings: Further arguments of ``Producer``, such as ``compression``.
    """

    def __init__(
        self,
        brokers: str | Iterable[str],
        zk_hosts: str | Iterable[str] | None = None,
        consumer_settings: Mapping[str, Any] | None = None,
        producer_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._brokers = brokers
        self._zk_hosts = zk_hosts
        self._consumer_settings = dict(consumer_settings or {})
        self._producer_settings = {"batch_size": _BATCH_RECORDS, "linger_ms": _LINGER_MS, "retries": _RETRIES} | dict(
            producer_settings or {}
        )
        self._topics: frozenset[str] = frozenset()
        self._topics_s = -math.inf
        self._asking = asyncio.Lock()

    def producer(self) -> SourceProducer:
        return Producer(self._brokers, **self._producer_settings)

    def consumer(self, group: str, listener: object, on_bad_record: Literal["raise", "skip"]) -> SinkConsumer:
        settings = {"auto_offset_reset": "earliest", **self._consumer_settings}
        settings |= {"autocommit": False, "listener": listener, "on_bad_record": on_bad_record}
        return GroupedConsumer(self._brokers, group, self._zk_hosts, **settings)

    async def missing_topics(self, topics: Collection[str]) -> list[str]:
        # A worker may have a thousand tasks that ask. A topic that was missing may have been created a moment ago.
        loop = asyncio.get_running_loop()
        async with self._asking:
            for oldest_s in (_TOPICS_AGE_S, _MISSING_AGE_S):
                if loop.time() - self._topics_s > oldest_s:
                    self._topics, self._topics_s = await all_topics(self._brokers), loop.time()
                missing = sorted(set(topics) - self._topics)
                if not missing:
                    break
        return missing


def sink_group(connector: str) -> str:
    """
    Return the name of the consumer group of a sink: ``connect-`` and the connector's name.

    Names of groups have fewer characters than names of connectors. The group of a name with others begins with
    ``connect_``, so it is no group of a name without; a digest tells such names apart. All names have legal groups.
    """
    with suppress(ConfigError):
        return check_name(f"connect-{connector}", "group")
    shown, digest = _NOT_IN_GROUPS.sub("_", connector)[:_MOST_SHOWN], sha256(connector.encode()).hexdigest()
    return check_name(f"connect_{shown}_{digest[:_DIGEST_CHARACTERS]}", "group")


async def missing_topics_text(clients: TaskClients, topics: Collection[str]) -> str:
    """Return which of these topics no broker knows, in words, or that no broker answers; ``""`` if all exist."""
    try:
        return unknown_topics(await clients.missing_topics(topics))
    except KielGroupsError as error:
        return str(error)


def unknown_topics(missing: Collection[str]) -> str:
    """Return that no broker knows these topics; ``""`` if there are none."""
    return f"no broker knows {'the topic' if len(missing) == 1 else 'the topics'} {some(missing)}" if missing else ""


def records_of(found: Mapping[TopicPartition, list[Record]]) -> list[Record]:
    """Return the records of all partitions, each partition's in the order of its log."""
    return [record for records in found.values() for record in records]
