"""A mirror from Kafka 0.8.2.2 to 3.9.1 and 4.1.0: every record, in order, once where that is asked for."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import Producer as TargetProducer
from confluent_kafka import TopicPartition as TargetPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tornado.httpclient import AsyncHTTPClient

from kiel_groups import GroupedConsumer, Producer, SingleConsumer
from kiel_groups.clients.produce.partitioners import murmur2_partitioner
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.mirror.checkpoints import Checkpoint
from kiel_groups.mirror.connector import MirrorConnector, MirrorTask, source_topics
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import STOPPED, MirroredTopic, checkpoints_topic
from kiel_groups.mirror.writer import TargetWriter
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.workers.plugins.connector_checks import task_settings
from tests.helpers.browser import served
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.commands import Running, kiel_groups, kiel_groups_here
from tests.helpers.connector_contexts import RecordingConnectorContext, RecordingTaskContext, typed
from tests.helpers.java_tools import consume_some
from tests.helpers.metrics_page import exposed, names_in_files
from tests.helpers.servers import LATE_KAFKAS
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, until_state, worker_on

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mirror")]

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

    def produce(self, first: int, last: int) -> None:
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


@pytest.fixture
def pair(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster], unique: Callable[[str], str]) -> Pair:
    """Return both clusters. The parameter of a test names the release of the target, by default 3.9.1."""
    target = shared_clusters(None, getattr(request, "param", "3.9.1"))
    return Pair(shared_clusters("3.9.5", "0.8.2.2"), target, unique)


async def test_a_worker_mirrors_topics(
    pair: Pair, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Partitions, keys, nulls, order and settings are kept; timestamps and headers are added. After a restart, the mirror
    continues. A second mirror of the same target topic is refused.
    """
    monkeypatch.setattr("kiel_groups.workers.execution.work_supervisor._METRICS_S", 0.5)
    pair.topics += [unique("more")]
    await pair.create(**{"retention.ms": "7200000", "max.message.bytes": "2000"})
    await pair.fill(0, 500)
    config = pair.config(timestamp_field="at", headers_source="true", tasks_max="2")
    workers = unique("workers")
    async with worker_on(pair.source, workers) as worker:
        await ask(worker.url, "POST", "/connectors", {"name": pair.name, "config": config})
        await until_state(worker.url, pair.name, "RUNNING", "RUNNING", "RUNNING")
        await pair.mirrored(500)
        await ask(worker.url, "POST", f"/connectors/{pair.name}/restart?includeTasks=true&onlyFailed=false")
        await pair.fill(500, 600)
        found = await pair.mirrored(600)
        await metrics_are_shown(pair, worker.url, workers)
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


async def metrics_are_shown(pair: Pair, worker_url: str, workers: str) -> None:
    """The worker and the service expose the metrics of the page, and the console shows the topics."""
    own = await exposed(worker_url.rstrip("/"), "kiel_mirror_records_per_second")
    async with served(pair.source, interval_s=1) as url:
        names_in_files(await exposed(url, *(name for name in own if name.startswith("kiel_mirror_"))), of_mirrors=True)

        async def answer(path: str) -> str:
            return (await AsyncHTTPClient().fetch(f"{url}{path}")).body.decode()

        async def total(name: str) -> float:
            rows = re.findall(
                rf'^kiel_mirror_{name}{{.*connector="{pair.name}".*}} (\S+)$', await answer("/metrics"), re.M
            )
            return sum(map(float, rows))

        async def is_complete() -> bool:
            return await total("partitions") == PARTITIONS * len(pair.topics) and not await total("lag_records")

        await eventually(is_complete, "both tasks have caught up")
        assert await total("records_total") > 0
        page = await answer(f"/clusters/main/groups/{workers}/connectors")
        assert "Running: all records are mirrored; " in page
        assert f'>{pair.topic}</th><td data-name="to">copy.{pair.topic}</td>' in page


async def test_a_topic_is_turned_round(
    pair: Pair, unique: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Records that are written on the target after the turn flow to the source, in order, with keys and null values. No
    record that the mirror has written flows back, and none that flowed back is mirrored again. The topic can be turned
    forward, and back again.
    """
    await pair.create()
    await pair.fill(0, 50)
    config, workers = pair.config(refresh_interval_ms="200", exactly_once="true"), unique("workers")
    clusters = ("--from", pair.source.zk_hosts, "--to", ",".join(pair.target.brokers), "--name", pair.name)
    clusters += ("--group", workers)

    async def command(*words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(kiel_groups_here, capsys, "mirror", *words, *clusters)
        return done.returncode, done.stdout + done.stderr

    async def reverse(*options: str) -> tuple[int, str]:
        return await command("reverse", pair.topic, "--settle", "0.3", *options)

    async def until_turned(*options: str) -> None:
        """Turn the topic when the mirror has stored its last positions."""

        async def is_turned() -> bool:
            status, text = await reverse("--yes", *options)
            assert status == 0 or " are left; stop the producers of the " in text, text
            return status == 0

        await eventually(is_turned, f"the turn with {options}", 60.0)

    async with worker_on(pair.source, workers) as worker:
        await ask(worker.url, "POST", "/connectors", {"name": pair.name, "config": config})
        await pair.mirrored(50)
        # A command that was killed in the middle has left the topic stopped.
        target = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})
        copy = f"copy.{pair.topic}"
        await asyncio.to_thread(target.change_claims, lambda claims: {copy: claims[copy]._replace(direction=STOPPED)})
        await pair.fill(50, 60)
        status, text = await reverse("--yes")
        assert (status, "has not copied everything: 10 records of" in text) == (1, True), text
        await pair.mirrored(60)
        status, text = await reverse("--dry-run", "--json")
        (plan,) = json.loads(text)["topics"]
        assert (status, plan["direction"], plan["partitions"][1]["source_end"]) == (0, "forward", 60)
        status, text = await reverse("--yes")
        assert status == 0, text
        assert f"{pair.topic}: turned round" in text

        await asyncio.to_thread(pair.produce, 60, 80)
        for records in await pair.originals(80):
            assert records == expected(0, 80)
        await ask(worker.url, "POST", f"/connectors/{pair.name}/restart?includeTasks=true&onlyFailed=false")
        await asyncio.to_thread(pair.produce, 80, 90)
        for records in await pair.originals(90):
            assert records == expected(0, 90)
        status, text = await reverse("--yes")
        assert (status, "all these topics are turned round already" in text) == (0, True)

        await until_turned("--forward")
        await pair.fill(90, 100)
        for messages in await pair.mirrored(100):
            assert contents(messages) == expected(0, 100)
        status, text = await command("verify")
        assert (status, "complete; 30 of 30 records of the source are equal" in text) == (0, True), text
        await until_turned()
        await asyncio.to_thread(pair.produce, 100, 105)
        for records in await pair.originals(105):
            assert records == expected(0, 105)

        # By default, brokers of 0.8 take 1,000,012 bytes, and those of 3.9.1 take 1,048,588.
        large = TargetProducer({"bootstrap.servers": ",".join(pair.target.brokers), "message.max.bytes": 2_000_000})
        large.produce(copy, b"x" * 1_030_000, b"large", 2)
        large.flush()
        failed = await until_state(worker.url, pair.name, "RUNNING", "FAILED")
        assert "; the largest one has 1,030,000 bytes and offset" in failed["tasks"][0]["trace"]
    for messages in await pair.mirrored(105):
        assert contents(messages)[:105] == expected(0, 105)
    with pytest.raises(ConfigError, match=f"{copy} of the source is itself the mirror of {pair.topic} of"):
        await asyncio.to_thread(source_topics, ",".join(pair.target.brokers), [copy])


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

        # A record without a key is not legal in a compacted topic.
        compacted = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        alter = ConfigResource(ResourceType.TOPIC, copy, incremental_configs=[compacted])
        admin.incremental_alter_configs([alter])[alter].result(10)
        asyncio.run(pair.fill(200, 201))
        text = (
            rf"store the record at offset 20[01] of {pair.topic}:\d: the topic is compacted, and the record has no key"
        )
        with pair.task(context, **config) as task, pytest.raises(KielGroupsError, match=text):
            copied(task, 202)
        with pair.task(context, **config, dead_letter_topic=dead) as task:
            copied(task, 201)

    await asyncio.to_thread(run)
    cluster = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})
    settings = await asyncio.to_thread(cluster.settings, [dead])
    assert settings[dead]["max.message.bytes"] == "100000000"
    letter, *keyless = await asyncio.to_thread(pair.read, dead, 0)
    assert (letter.key(), letter.value()) == (b"large", b"x" * 5_000)
    assert contents(keyless) == expected(200, 201) * PARTITIONS
    assert dict(letter.headers() or ())["kiel.source.offset"] == b"100"
    for partition in range(PARTITIONS):
        found = contents(await asyncio.to_thread(pair.read, copy, partition))
        assert found[-200:] == expected(0, 200)
        assert exactly_once == "false" or len(found) == 200


async def test_a_mirror_begins_where_a_bulk_copy_has_ended(pair: Pair) -> None:
    """
    Records that another program has copied are not mirrored, and offsets are translated from there on. That holds for a
    partition that gets no further record, too.
    """
    await pair.create()
    await pair.fill(0, 20)
    copier = TargetProducer({"bootstrap.servers": ",".join(pair.target.brokers)})
    admin = AdminClient({"bootstrap.servers": ",".join(pair.target.brokers)})
    copy = f"copy.{pair.topic}"
    admin.create_topics([NewTopic(copy, PARTITIONS, 1)])[copy].result(10)
    for number in range(20):
        for partition in range(PARTITIONS):
            copier.produce(copy, value_of(number), key_of(number), partition)
    assert copier.flush(10) == 0
    starts, beyond = (json.dumps({pair.topic: {str(number): at for number in range(PARTITIONS)}}) for at in (20, 21))

    def run() -> None:
        with pytest.raises(ConfigError, match="expected at most 20, where its log"), pair.task(start_offsets=beyond):
            pass
        with pair.task(start_offsets=starts) as task:
            assert [each.source_offset["offset"] for each in task.poll()] == [20] * PARTITIONS
            asyncio.run(pair.fill(20, 30))
            copied(task, 30)

    await asyncio.to_thread(run)
    for partition in range(PARTITIONS):
        assert contents(await asyncio.to_thread(pair.read, copy, partition)) == expected(0, 30)
    mirrored = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)}).mirrored(pair.name)
    assert [mirrored[TopicPartition(pair.topic, number)].checkpoints[0] for number in range(PARTITIONS)] == [
        Checkpoint(20, {number: 20}) for number in range(PARTITIONS)
    ]


class KilledError(Exception):
    """Ends a writer between the records and the commit of a transaction, as a SIGKILL would."""


@pytest.mark.parametrize("pair", LATE_KAFKAS, indirect=True)
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
            while not task.poll():
                pass
            monkeypatch.setattr(TargetWriter, "_commit", killed)
            with pytest.raises(KilledError):
                copied(task, 300)
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


async def test_our_clients_name_brokers_of_kafka_4(
    shared_clusters: Callable[..., Cluster], unique: Callable[[str], str]
) -> None:
    """They do not try for long, nor say only that the connection broke."""
    brokers, topic = shared_clusters(None, "4.1.0").brokers, unique("late")
    admin = AdminClient({"bootstrap.servers": ",".join(brokers)})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    text = "no longer support the requests of Kafka 0.8, as those of Kafka 4"
    async with Producer(brokers) as producer:
        with pytest.raises(KielGroupsError, match=text):
            await producer.produce(topic, b"x")
    async with SingleConsumer(brokers) as consumer:
        with pytest.raises(ConfigError, match=text):
            await consumer.subscribe(topic, SingleConsumer.BEGINNING)


async def test_more_partitions_on_the_target(pair: Pair) -> None:
    """
    A record with a key goes where Java's hash says, in its order, and one without keeps its partition. The checkpoint
    has the end of each partition. A setting that asks for fewer partitions than the source has is refused.
    """
    await pair.create()
    numbers = range(60)
    async with Producer(pair.source.brokers) as producer:
        await producer.produce_many(pair.topic, [b"%d" % number for number in numbers], [*map(key_of, numbers)], 1)

    def run() -> None:
        refused = pytest.raises(ConfigError, match=r"target\.partitions: 2 given; expected at least 3")
        with refused, pair.task(target_partitions="2"):
            pass
        with pair.task(target_partitions="x2") as task:
            while not task.poll():
                pass

    await asyncio.to_thread(run)
    found = [[int(value) for _, value in contents(pair.read(f"copy.{pair.topic}", number))] for number in range(6)]
    keyed = [[number for number in each if key_of(number)] for each in found]
    wanted = [(number, murmur2_partitioner(key, range(6))) for number in numbers if (key := key_of(number))]
    assert keyed == [[number for number, partition in wanted if partition == each] for each in range(6)]
    assert [len(each) - len(keys) for each, keys in zip(found, keyed, strict=True)] == [0, 12, 0, 0, 0, 0]
    values = [message.value() for number in range(2) for message in pair.read(checkpoints_topic(pair.name), number)]
    ends = {str(number): len(each) for number, each in enumerate(found)}
    assert json.loads(values[-1] or b"") == {"source": 60, "target": None, "targets": ends}


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


async def test_of_two_mirrors_one_claims_a_topic(pair: Pair) -> None:
    """
    Two mirrors that claim a topic at the same time never both have it: one of them fails, also if it tries again.
    Mirrors that claim different topics at the same time fence each other, and all succeed.
    """
    target = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})
    names = [f"{pair.name}-{number}" for number in range(2)]
    topics = [MirroredTopic(pair.topic, f"copy.{pair.topic}", 1, {})]

    def claim(name: str) -> str:
        try:
            target.create_checkpoints(name, 1, 1)
            return target.claim(name, "old:9092", topics)[topics[0].target].mirror
        except KielGroupsError as error:
            return str(error)

    outcomes = await asyncio.gather(*(asyncio.to_thread(claim, name) for name in names))
    outcomes += [await asyncio.to_thread(claim, name) for name in names]
    assert len({outcome for outcome in outcomes if outcome in names}) == 1, outcomes
    assert any("a topic has one mirror" in outcome for outcome in outcomes)
    others = [MirroredTopic(f"{pair.topic}.{number}", f"copy.{pair.topic}.{number}", 1, {}) for number in range(3)]
    await asyncio.gather(*(asyncio.to_thread(target.claim, names[0], "old:9092", [topic]) for topic in others))
    assert {topic.target for topic in others} <= target.claims().keys()


async def test_topics_that_were_created_again_fail_the_mirror(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A topic of the target that has lost what was mirrored fails its task. A topic of the source whose offsets have
    started over fails the connector, although it has records at the position of the mirror.
    """
    await pair.create()
    await pair.fill(0, 10)
    monkeypatch.setattr("kiel_groups.mirror.writer._SETTLED_S", 0.2)
    copy = f"copy.{pair.topic}"
    admin = AdminClient({"bootstrap.servers": ",".join(pair.target.brokers)})
    topics = ZooKeeperTopics(pair.source.zk_hosts)

    def run() -> None:
        with pair.task() as task:
            context = after(pair, copied(task, 10))
            admin.delete_topics([copy])[copy].result(10)
            admin.create_topics([NewTopic(copy, PARTITIONS, 1)])[copy].result(10)
            asyncio.run(pair.fill(10, 15))
            with pytest.raises(KielGroupsError, match="the topic was deleted and created again"):
                copied(task, 15)
        for exactly_once in ("false", "true"):
            with (
                pytest.raises(KielGroupsError, match="the topic was deleted and created again"),
                pair.task(context, exactly_once=exactly_once),
            ):
                pass
        topics.delete(pair.topic)
        topics.create(pair.topic, PARTITIONS)
        asyncio.run(pair.fill(0, 30))
        with (
            pytest.raises(ConfigError, match=f"the source topic {pair.topic} was deleted and created again"),
            pair.task(),
        ):
            pass

    await asyncio.to_thread(run)


async def test_one_command_mirrors_topics(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """
    A start ends when it has caught up, and the next one has nothing to do. A start continues exactly where a process
    was killed. Processes with other settings, and topics that do not exist, are refused.
    """
    await pair.create()
    await pair.fill(0, 300)
    place = ["--from", pair.source.zk_hosts, "--name", pair.name]
    words = ["start", *place, "--to", ",".join(pair.target.brokers), "--topic-format", "copy.${topic}"]
    words += ["--topics", pair.topic, "--session-timeout-ms", "4000"]

    async def last_line() -> str:
        ended = await asyncio.to_thread(kiel_groups, "mirror", *words, "--exactly-once", "--until-caught-up")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    async def here(*more: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(kiel_groups_here, capsys, "mirror", *more)

    pattern = r"mirrored 900 records \(.* kB\) of 1 topic in .* s, .* records/s; 0 records behind\n"
    assert re.fullmatch(pattern, await last_line())
    pattern = r"mirrored nothing new of 1 topic in .* s, after 900 records of earlier runs; 0 records behind\n"
    assert re.fullmatch(pattern, await last_line())
    with Running(["-m", "kiel_groups", "mirror", *words, "--exactly-once"]) as running:
        await pair.fill(300, 400)
        await pair.mirrored(400)
        refused = await here(*words)
        assert refused.returncode == 2
        assert "runs in another process with other settings (exactly.once)" in refused.stderr
        running.process.kill()
    refused = await here(*words, "--topics", "none")
    assert (refused.returncode, refused.stderr) == (2, "error: --topics: the source has no topic 'none'\n")
    await pair.fill(400, 500)
    assert (await last_line()).endswith(" records of earlier runs; 0 records behind\n")
    assert [contents(messages) for messages in await pair.mirrored(500)] == [expected(0, 500)] * PARTITIONS
    shown, document = await here("status", *place), await here("status", *place, "--json")
    assert (shown.returncode, document.returncode) == (0, 0)
    assert "exactly once, in 0 processes\n1,500 records " in shown.stdout
    found = [(each["position"], each["lag"], each["checkpoint"]) for each in json.loads(document.stdout)["partitions"]]
    assert found == [(500, 0, 500)] * PARTITIONS


async def test_groups_are_moved_and_the_copies_verified(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """
    The offsets of a group of ours, and of Java's high-level consumer, are moved to the target, where another consumer
    misses no record. A verification explains what was written again, and names what is damaged, missing or foreign.
    """
    await pair.create()
    await pair.fill(0, 300)
    group, java, copy = f"{pair.name}-ours", f"{pair.name}-java", f"copy.{pair.topic}"
    async with GroupedConsumer(pair.source.brokers, group, pair.source.zk_hosts, autocommit=False) as consumer:
        await consumer.subscribe(pair.topic)
        while sum([len(each) for each in (await consumer.getmany(timeout_ms=5_000, max_records=250)).values()]) < 250:
            pass
        await consumer.commit()
    await asyncio.to_thread(consume_some, pair.source.zk_hosts, java, pair.topic, 440)
    with zookeeper(pair.source) as client:
        ours, javas = (stored_offsets(client, each, pair.topic) for each in (group, java))
    assert sum(javas.values()) == 440

    def mirror() -> None:
        with pair.task(batch_records="100") as task:
            copied(task, 300)
        # Killed before its last positions were stored.
        with pair.task(after(pair, {TopicPartition(pair.topic, number): 250 for number in range(PARTITIONS)})) as task:
            copied(task, 300)

    place = ["--from", pair.source.zk_hosts, "--to", ",".join(pair.target.brokers), "--name", pair.name]

    async def command(*words: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(kiel_groups_here, capsys, "mirror", *words, *place)
        return done.returncode, done.stdout, done.stderr

    await asyncio.to_thread(mirror)
    status, out, errors = await command("offsets", group, java, "--json")
    assert (status, errors.count("3 offsets set at")) == (0, 2)
    starts = {}
    for line in out.splitlines():
        found = json.loads(line)
        starts[found["group"]] = {each["partition"]: each["target"] for each in found["offsets"]}
        assert all(each["set"] and 0 <= each["again"] <= 100 for each in found["offsets"])
    rest: dict[int, Any] = {}
    for number in range(PARTITIONS):
        log = contents(await asyncio.to_thread(pair.read, copy, number))
        assert log == expected(0, 300) + expected(250, 300)
        for name, offset in ((group, ours[number]), (java, javas[number])):
            assert offset == 300 or starts[name][number] <= (offset if offset < 250 else offset + 50)
        rest[number] = log[starts[java][number] :]
    assert (await command("offsets", group))[2].startswith(f"info: group {group}: its offsets are at ")

    config = {"bootstrap.servers": ",".join(pair.target.brokers), "group.id": java, "client.id": "moved"}
    with closing(Consumer(config)) as moved:
        moved.subscribe([copy])
        read: dict[int, Any] = {number: [] for number in rest}

        def is_complete() -> bool:
            for message in moved.consume(1_000, 0.2):
                read[message.partition()] += contents([message])
            return read == rest

        await eventually(lambda: asyncio.to_thread(is_complete), f"the records {rest}, not {read}", 20.0)
        status, _, errors = await command("offsets", java)
    assert (status, errors.startswith(f"error: group {java} has members on the target: moved-")) == (1, True)

    status, out, _ = await command("verify")
    assert status == 0
    assert out.splitlines()[0] == f"mirror {pair.name}: complete; 900 of 900 records of the source are equal"
    assert "3 partitions, 900 equal; 150 doubled" in out

    await pair.fill(300, 301)
    producer = TargetProducer({"bootstrap.servers": ",".join(pair.target.brokers)})
    producer.produce(copy, b"damaged", b"key", 0)
    producer.produce(copy, value_of(300), key_of(300), 2)
    producer.produce(copy, b"foreign", b"key", 2)
    for number in range(PARTITIONS):
        key, value = [pair.topic, number, 0], {"source": 301, "target": 350}
        producer.produce(checkpoints_topic(pair.name), json.dumps(value), json.dumps(key), 0)
    producer.flush()
    status, out, _ = await command("verify", "--json")
    found = json.loads(out)
    unexplained = {
        each["partition"]: [
            (difference["kind"], difference["source"], difference["target"])
            for difference in each["differences"]
            if not difference["explained"]
        ]
        for each in found["partitions"]
    }
    assert (status, found["complete"]) == (1, False)
    damaged, next_one = {"from": 300, "to": 301}, {"from": 350, "to": 351}
    assert unexplained == {
        0: [("changed", damaged, next_one)],
        1: [("missing", damaged, None)],
        2: [("not of the source", None, {"from": 351, "to": 352})],
    }
    status, out, _ = await command("verify", "--topics", pair.topic)
    assert "changed: 1 record, source offset 300, target offset 350" in out
