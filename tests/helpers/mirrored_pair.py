"""A cluster of 0.8.2.2, a later one that its topics are mirrored to, and numbered records."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import Producer as TargetProducer
from confluent_kafka import TopicPartition as TargetPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kiel_groups import Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.mirror.connector import MirrorConnector
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.task import MirrorTask
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.workers.plugins.connector_checks import run_settings
from tests.helpers.connector_contexts import RecordingConnectorContext, RecordingTaskContext, typed
from tests.helpers.waiting import eventually

__all__ = ["PARTITIONS", "Pair", "after", "contents", "copied", "expected", "key_of", "value_of"]

PARTITIONS = 3


class Pair:
    """A cluster of 0.8.2.2 with a topic of three partitions, and the later one that it is mirrored to."""

    def __init__(self, source: Cluster, target: Cluster, unique: Callable[[str], str]) -> None:
        self.source, self.target = source, target
        self.topic, self.name = unique("events"), unique("mirror")
        #: The topics that are mirrored.
        self.topics = [self.topic]

    def config(self, **more: str) -> dict[str, str]:
        return {
            "connector.class": "Mirror",
            "source.bootstrap.servers": ",".join(self.source.brokers),
            "source.zookeeper": self.source.zk_hosts,
            "target.bootstrap.servers": ",".join(self.target.brokers),
            "target.topic.format": "copy.${topic}",
            "topics": ",".join(self.topics),
            "partition.sets": "2",
            **{name.replace("_", "."): text for name, text in more.items()},
        }

    async def create(self, **config: str) -> None:
        topics = ZooKeeperTopics(self.source.zk_hosts)
        for topic in self.topics:
            await asyncio.to_thread(topics.create, topic, PARTITIONS, 1, config)

    async def fill(self, first: int, last: int, **settings: Any) -> None:
        """Write numbered records to each partition of the source; every third value, and every fifth key, is null."""
        async with Producer(self.source.brokers, **settings) as producer:
            for partition in range(PARTITIONS):
                values = [value_of(number) for number in range(first, last)]
                keys = [key_of(number) for number in range(first, last)]
                for topic in self.topics:
                    await producer.produce_many(topic, values, keys, partition)

    async def mirrored(self, count: int) -> list[list[Message]]:
        """Wait until each partition of the targets has a number of committed records, and return all of them."""
        found: list[list[Message]] = []

        def is_complete() -> bool:
            found[:] = self.read_all((f"copy.{topic}", number) for topic in self.topics for number in range(PARTITIONS))
            return all(len(messages) >= count for messages in found)

        await eventually(lambda: asyncio.to_thread(is_complete), f"{count} records of each partition", 60.0)
        return found

    def set(self, topic: str, name: str, text: str) -> None:
        """Change a setting of a topic of the target, and wait until brokers have it."""
        target = TargetCluster({"bootstrap.servers": ",".join(self.target.brokers)})
        entry = ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        target._admin.incremental_alter_configs([change])[change].result(10)
        while target.settings([topic])[topic][name] != text:
            pass

    def limit(self, client_id: str, bytes_per_second: float) -> None:
        """Set a quota of the target for what clients of a name produce. confluent-kafka has no method for that."""

        def string(text: str) -> bytes:
            return struct.pack(">h", len(text)) + text.encode()

        # Version 0 of AlterClientQuotas: an entity of one part, and an operation that is no removal.
        entity = struct.pack(">i", 1) + string("client-id") + string(client_id)
        change = struct.pack(">i", 1) + string("producer_byte_rate") + struct.pack(">d?", bytes_per_second, False)
        request = struct.pack(">hhi", 49, 0, 1) + string("test") + struct.pack(">i", 1) + entity + change + b"\0"
        host, port = self.target.brokers[0].split(":")
        with socket.create_connection((host, int(port)), 30) as connection, connection.makefile("rb") as answers:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = answers.read(*struct.unpack(">i", answers.read(4)))
        # The correlation id, the time of a delay, and for each entity an error.
        assert struct.unpack_from(">iiih", answer) == (1, 0, 1, 0), answer

    def codecs(self, topic: str) -> list[int]:
        """Return the number of the codec of each batch in the log of partition 0 of a topic of the target."""
        (log,) = (self.target.kafka[0].folder / "data" / f"{topic}-0").glob("*.log")
        data, found, at = log.read_bytes(), [], 0
        while at < len(data):
            size, attributes = struct.unpack_from(">8xi9xh", data, at)
            found.append(attributes & 7)
            at += 12 + size
        return found

    def read(self, topic: str, partition: int) -> list[Message]:
        """Return the committed records of a partition of the target."""
        (found,) = self.read_all([(topic, partition)])
        return found

    def read_all(self, partitions: Iterable[tuple[str, int]]) -> list[list[Message]]:
        """Return the committed records of each of some partitions of the target."""
        config = {
            "bootstrap.servers": ",".join(self.target.brokers),
            "group.id": "reader",
            "enable.partition.eof": True,
        }
        found: dict[Any, list[Message]] = {partition: [] for partition in partitions}
        ended = set()
        with closing(Consumer(config)) as consumer:
            consumer.assign([TargetPartition(*partition, 0) for partition in found])
            while len(ended) < len(found):
                message = consumer.poll(30.0)
                assert message is not None
                partition = message.topic(), message.partition()
                if message.error() is None:
                    found[partition].append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF
                    ended.add(partition)
        return list(found.values())

    @contextmanager
    def task(self, context: RecordingTaskContext | None = None, **more: str) -> Iterator[MirrorTask]:
        """Start the only task of a mirror, as a worker would, and stop it at the end."""
        config = {"name": self.name, **self.config(**more)}
        connector = MirrorConnector()
        connector.start(RecordingConnectorContext(config, self.name), typed(MirrorConnector, config))
        try:
            (task_config,) = connector.task_configs(1)
        finally:
            connector.stop()
        task = MirrorTask()
        try:
            task.start(
                context or RecordingTaskContext(connector=self.name),
                run_settings(MirrorConnector, config, task_config).settings,
            )
            yield task
        finally:
            task.stop()

    def produce(self, first: int, last: int, before_commit: Callable[[], object] = lambda: None) -> None:
        """Write numbered records with headers to each partition of the first target topic, and records of no effect."""
        producer = TargetProducer({"bootstrap.servers": ",".join(self.target.brokers), "transactional.id": self.name})
        producer.init_transactions(30)
        for numbers, commit in ((range(1_000, 1_005), False), (range(first, last), True)):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                for number in numbers:
                    producer.produce(
                        f"copy.{self.topic}", value_of(number), key_of(number), partition, headers={"from": b"new"}
                    )
            producer.flush()
            if commit:
                before_commit()
            producer.commit_transaction() if commit else producer.abort_transaction()

    async def originals(self, count: int) -> list[list[tuple[bytes | None, bytes | None]]]:
        """Wait until each partition of the first source topic has a number of records, and return all of them."""
        found: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(PARTITIONS)]
        async with SingleConsumer(self.source.brokers) as consumer:
            await consumer.subscribe(self.topic, SingleConsumer.BEGINNING)

            async def is_complete() -> bool:
                for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                    found[partition.partition] += [(record.key, record.value) for record in records]
                return all(len(records) >= count for records in found)

            await eventually(is_complete, f"{count} records of each partition of the source", 60.0)
        return found


def value_of(number: int) -> bytes | None:
    return None if number % 3 == 0 else json.dumps({"number": number, "at": 1_600_000_000_000 + number}).encode()


def key_of(number: int) -> bytes | None:
    return None if number % 5 == 0 else b"key-%d" % number


def contents(messages: list[Message]) -> list[tuple[Any, Any]]:
    return [(message.key(), message.value()) for message in messages]


def expected(first: int, last: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(key_of(number), value_of(number)) for number in range(first, last)]


def copied(task: MirrorTask, count: int) -> dict[TopicPartition, int]:
    """Poll a task until the checkpoints of all partitions have reached an offset, and return the positions."""
    while True:
        task.poll()
        positions = {each: at for writer in task._writers.values() for each, at in writer.positions().items()}
        if len(positions) == PARTITIONS and min(positions.values()) >= count:
            return positions


def after(pair: Pair, positions: dict[TopicPartition, int]) -> RecordingTaskContext:
    """Return the context of a task that continues at stored source offsets."""
    stored = [(each._asdict(), {"offset": at}) for each, at in positions.items()]
    return RecordingTaskContext(stored, connector=pair.name)
