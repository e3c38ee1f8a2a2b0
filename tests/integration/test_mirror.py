"""A mirror from Kafka 0.8.2.2 to Kafka 3.9.1: every record, in order, once where that is asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as TargetPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from kiel_groups import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.mirror.connector import MirrorConnector, MirrorTask
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import checkpoints_topic
from kiel_groups.mirror.writer import TargetWriter
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.workers.plugins.connector_checks import task_settings
from tests.helpers.connector_contexts import RecordingConnectorContext, RecordingTaskContext, typed
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, until_state, worker_on

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mirror")]

PARTITIONS = 3


class Pair:
    """A cluster of 0.8.2.2 with a topic of three partitions, and the cluster of 3.9.1 that it is mirrored to."""

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

    async def fill(self, first: int, last: int) -> None:
        """Write numbered records to each partition of the source; every third value, and every fifth key, is null."""
        async with Producer(self.source.brokers) as producer:
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
                message = consumer.poll(10.0)
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
        (task_config,) = connector.task_configs(1)
        connector.stop()
        task = MirrorTask()
        try:
            task.start(
                context or RecordingTaskContext(connector=self.name),
                task_settings(MirrorConnector, config, task_config),
            )
            yield task
        finally:
            task.stop()


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


@pytest.fixture
def pair(shared_clusters: Callable[..., Cluster], unique: Callable[[str], str]) -> Pair:
    return Pair(shared_clusters("3.9.5", "0.8.2.2"), shared_clusters(None, "3.9.1"), unique)


async def test_a_worker_mirrors_topics(pair: Pair, unique: Callable[[str], str]) -> None:
    """
    Partitions, keys, nulls, order and settings are kept; timestamps and headers are added. After a restart, the mirror
    continues. A second mirror of the same target topic is refused.
    """
    pair.topics += [unique("more")]
    await pair.create(**{"retention.ms": "7200000", "max.message.bytes": "2000"})
    await pair.fill(0, 500)
    config = pair.config(timestamp_field="at", headers_source="true", tasks_max="2")
    async with worker_on(pair.source, unique("workers")) as worker:
        await ask(worker.url, "POST", "/connectors", {"name": pair.name, "config": config})
        await until_state(worker.url, pair.name, "RUNNING", "RUNNING", "RUNNING")
        await pair.mirrored(500)
        await ask(worker.url, "POST", f"/connectors/{pair.name}/restart?includeTasks=true&onlyFailed=false")
        await pair.fill(500, 600)
        found = await pair.mirrored(600)
        second = unique("second")
        await ask(worker.url, "POST", "/connectors", {"name": second, "config": config})
        failed = await until_state(worker.url, second, "FAILED")
        assert f"is the mirror of {pair.topic} by the connector '{pair.name}'" in failed["connector"]["trace"]
    for number, messages in enumerate(found):
        source = TopicPartition(pair.topics[number // PARTITIONS], number % PARTITIONS)
        assert contents(messages) == expected(0, 600)
        assert messages[7].timestamp()[1] == 1_600_000_000_007
        assert dict(messages[7].headers() or ()) == {
            "kiel.source.partition": str(source).encode(),
            "kiel.source.offset": b"7",
        }
    resource = ConfigResource(ResourceType.TOPIC, f"copy.{pair.topic}")
    admin = AdminClient({"bootstrap.servers": ",".join(pair.target.brokers)})
    settings = admin.describe_configs([resource])[resource].result(10)
    assert [settings[name].value for name in ("retention.ms", "max.message.bytes")] == ["7200000", "2000"]
    checkpoints = [message for number in range(2) for message in pair.read(checkpoints_topic(pair.name), number)]
    ends = {json.loads(message.value())["source"]: json.loads(message.value())["target"] for message in checkpoints}
    assert ends[600] == 600
    assert all(source == target for source, target in ends.items())


@pytest.mark.parametrize("exactly_once", ["false", "true"], ids=["at least once", "exactly once"])
async def test_a_record_that_the_target_refuses(pair: Pair, unique: Callable[[str], str], exactly_once: str) -> None:
    """A record that is too large fails the task with one line, or goes to the dead letters; no other one is lost."""
    await pair.create()
    copy, dead = f"copy.{pair.topic}", unique("dead")
    admin = AdminClient({"bootstrap.servers": ",".join(pair.target.brokers)})
    admin.create_topics([NewTopic(copy, PARTITIONS, 1, config={"max.message.bytes": "1000"})])[copy].result(10)
    await pair.fill(0, 100)
    async with Producer(pair.source.brokers) as producer:
        await producer.produce(pair.topic, b"x" * 5_000, b"large", 1)
    await pair.fill(100, 200)

    config = {"exactly_once": exactly_once, "target_compression_type": "none"}

    def run() -> None:
        with (
            pair.task(**config) as task,
            pytest.raises(KielGroupsError, match=rf"refuses to store the record at offset 100 of {pair.topic}:1: "),
        ):
            copied(task, 200)
        # After a failure, an at-least-once mirror has written records that it writes again.
        with pair.task(**config, dead_letter_topic=dead) as task:
            context = after(pair, copied(task, 200))

        # A record without a key is not legal in a compacted topic. It is not taken for a dead letter.
        compacted = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        alter = ConfigResource(ResourceType.TOPIC, copy, incremental_configs=[compacted])
        admin.incremental_alter_configs([alter])[alter].result(10)
        asyncio.run(pair.fill(200, 201))
        with (
            pair.task(context, **config, dead_letter_topic=dead) as task,
            pytest.raises(KielGroupsError, match="refuses to write: Broker: Broker failed to validate record"),
        ):
            copied(task, 202)

    await asyncio.to_thread(run)
    cluster = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})
    assert await asyncio.to_thread(cluster.largest_messages, [dead]) == 100_000_000
    (letter,) = await asyncio.to_thread(pair.read, dead, 0)
    assert (letter.key(), letter.value()) == (b"large", b"x" * 5_000)
    assert dict(letter.headers() or ())["kiel.source.offset"] == b"100"
    for partition in range(PARTITIONS):
        found = contents(await asyncio.to_thread(pair.read, copy, partition))
        assert found[-200:] == expected(0, 200)
        assert exactly_once == "false" or len(found) == 200


class KilledError(Exception):
    """Ends a writer between the records and the commit of a transaction, as a SIGKILL would."""


async def test_exactly_once_across_a_kill_and_a_frozen_predecessor(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A task that ends between produce and commit leaves nothing, and its successor writes each record once. If the first
    task was only frozen, it is fenced when it continues.
    """
    await pair.create()
    await pair.fill(0, 300)

    commit = TargetWriter._commit

    def killed(_: TargetWriter) -> None:
        raise KilledError

    def frozen(writer: TargetWriter) -> None:
        monkeypatch.setattr(TargetWriter, "_commit", commit)
        with pair.task(exactly_once="true") as successor:
            copied(successor, 300)
        commit(writer)

    def run() -> None:
        with pair.task(exactly_once="true", batch_records="100") as task:
            task.poll()
            monkeypatch.setattr(TargetWriter, "_commit", killed)
            with pytest.raises(KilledError):
                task.poll()
            monkeypatch.setattr(TargetWriter, "_commit", frozen)
            with (
                pair.task(exactly_once="true", batch_records="100") as second,
                pytest.raises(KielGroupsError, match="has fenced this task: another task uses the transactional id"),
            ):
                copied(second, 300)

    await asyncio.to_thread(run)
    for partition in range(PARTITIONS):
        found = await asyncio.to_thread(pair.read, f"copy.{pair.topic}", partition)
        assert contents(found) == expected(0, 300)


async def test_mistakes_are_named(pair: Pair) -> None:
    """
    A missing topic, another number of sets, another source and lost checkpoints are refused before anything is written.
    """
    await pair.create()
    await pair.fill(0, 10)

    def run() -> None:
        with pytest.raises(ConfigError, match="the source has no topic 'missing'"), pair.task(topics="missing"):
            pass
        with pair.task(exactly_once="true") as task:
            positions = copied(task, 10)
        with pytest.raises(ConfigError, match=r"partition\.sets: 3 given; expected 2"), pair.task(partition_sets="3"):
            pass
        # An address that no claim has, as that of another cluster.
        elsewhere = {"source_bootstrap_servers": pair.source.brokers[0].replace("127.0.0.1", "localhost")}
        with pytest.raises(ConfigError, match=f"has mirrored {pair.topic} of"), pair.task(**elsewhere):
            pass
        servers = {"bootstrap.servers": ",".join(pair.target.brokers)}
        trimmed = TargetPartition(f"copy.{pair.topic}", 0, 4)
        admin = AdminClient(servers)
        admin.delete_records([trimmed])[trimmed].result(10)
        assert len(TargetCluster(servers).read(trimmed.topic, 0)) == 6
        pair.name += "-2"
        context = after(pair, positions)
        other = {"target_topic_format": "other.${topic}", "exactly_once": "true"}
        with (
            pytest.raises(KielGroupsError, match=r"the target's last checkpoint of .* is missing"),
            pair.task(context, **other),
        ):
            pass

    await asyncio.to_thread(run)
