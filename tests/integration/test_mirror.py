"""A mirror from Kafka 0.8.2.2 to 3.9.1 and 4.1.0: every record, in order, once where that is asked for."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import Producer as TargetProducer
from confluent_kafka import TopicPartition as TargetPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tornado.httpclient import AsyncHTTPClient

from kiel_groups import Producer, SingleConsumer
from kiel_groups.clients.produce.partitioners import murmur2_partitioner
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.mirror.back import back_partition
from kiel_groups.mirror.checkpoints import Checkpoint, parse_checkpoints
from kiel_groups.mirror.mirror_view import read_mirror
from kiel_groups.mirror.reversal import PartitionReversal, TopicReversal, turn_round
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.task import MirrorTask
from kiel_groups.mirror.topics import source_topics
from kiel_groups.mirror.values import BACK, FORWARD, MirroredTopic, SourceBatch, checkpoints_topic
from kiel_groups.mirror.writer import TargetWriter
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.sync import Producer as SyncProducer
from kiel_groups.sync import SingleConsumer as SyncConsumer
from tests.helpers.browser import served
from tests.helpers.commands import kiel_groups
from tests.helpers.connector_contexts import RecordingTaskContext
from tests.helpers.metrics_page import exposed, names_in_files
from tests.helpers.mirrored_pair import PARTITIONS, Pair, after, contents, copied, expected, key_of, value_of
from tests.helpers.servers import LATE_KAFKAS
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, until_state, worker_on

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mirror")]

#: The number of the codec in batches of records.
ZSTD = 4


@pytest.fixture
def pair(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster], unique: Callable[[str], str]) -> Pair:
    """Return both clusters. The parameter of a test names the release of the target, by default 3.9.1."""
    target = shared_clusters(None, getattr(request, "param", "3.9.1"))
    return Pair(shared_clusters("3.9.5", "0.8.2.2"), target, unique)


async def test_a_worker_mirrors_topics(
    pair: Pair, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Partitions, keys, nulls, order and settings are kept; timestamps and headers are added. After a pause, the mirror
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
        # A task that stops before it has stored how far it is writes records once more.
        await eventually(
            lambda: asyncio.to_thread(lambda: list(positions(pair).values()) == [500] * 2 * PARTITIONS),
            "all checkpoints are stored",
        )
        await ask(worker.url, "PUT", f"/connectors/{pair.name}/pause")
        await until_state(worker.url, pair.name, "PAUSED", "PAUSED", "PAUSED")
        await pair.fill(500, 600)
        await ask(worker.url, "PUT", f"/connectors/{pair.name}/resume")
        found = await pair.mirrored(600)
        await metrics_are_shown(pair, worker.url, workers)
        second = unique("second")
        await ask(worker.url, "POST", "/connectors", {"name": second, "config": config})
        failed = await until_state(worker.url, second, "FAILED")
        assert f"is the mirror of {pair.topic} by the connector '{pair.name}'" in failed["connector"]["trace"]
        await ask(worker.url, "PUT", f"/connectors/{pair.name}/pause")
        view = await asyncio.to_thread(read_mirror, pair.source.zk_hosts, workers, pair.name, timeout_s=10)
        assert view.is_paused
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


def positions(pair: Pair) -> dict[TopicPartition, int]:
    """Return how far each partition of the source is mirrored, by the checkpoints."""
    target = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})
    found = parse_checkpoints(target.read(checkpoints_topic(pair.name), 0, 1))
    return {partition: each.position for partition, each in found.items()}


async def metrics_are_shown(pair: Pair, worker_url: str, workers: str) -> None:
    """The worker and the service expose the metrics of the page, and the console shows the topics."""
    own = await exposed(worker_url.rstrip("/"), "kiel_mirror_records_per_second")
    async with served(pair.source, interval_s=1) as url:
        found = await exposed(url, *(name for name in own if name.startswith("kiel_mirror_")))
        # A topic that was turned round has one more.
        names_in_files([*found, "kiel_mirror_records_copied_back"], of_mirrors=True)

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


@pytest.mark.parametrize("exactly_once", ["false", "true"], ids=["at least once", "exactly once"])
async def test_a_record_that_the_target_refuses(pair: Pair, unique: Callable[[str], str], exactly_once: str) -> None:
    """
    A record that is too large fails the task with one line, or goes to the dead letters. No other record is lost, and
    no restart of the task writes one again.
    """
    await pair.create()
    copy, dead, stored = f"copy.{pair.topic}", unique("dead"), dict[TopicPartition, int]()
    admin = AdminClient({"bootstrap.servers": ",".join(pair.target.brokers)})
    admin.create_topics([NewTopic(copy, PARTITIONS, 1, config={"max.message.bytes": "1000"})])[copy].result(10)
    await pair.fill(0, 100)
    async with Producer(pair.source.brokers) as producer:
        await producer.produce(pair.topic, b"x" * 5_000, b"large", 1)
    await pair.fill(100, 200)

    config = {"exactly_once": exactly_once, "target_compression_type": "none"}
    longest = TopicPartition(pair.topic, 1)

    def copy_all(task: MirrorTask) -> None:
        while True:
            for each in task.poll():
                stored[TopicPartition(**cast("Any", each.source_partition))] = cast("int", each.source_offset["offset"])

    def run() -> None:
        text = rf"refuses to store the record at offset 100 of {pair.topic}:1: "
        for _ in range(3):
            with pair.task(after(pair, stored), **config) as task, pytest.raises(KielGroupsError, match=text):
                copy_all(task)
        with pair.task(after(pair, stored), **config, dead_letter_topic=dead) as task:
            context = after(pair, copied(task, 200))

            # A record without a key is not legal in a compacted topic. A task follows a changed policy when it starts.
            pair.set(copy, "cleanup.policy", "compact")
            asyncio.run(pair.fill(200, 201))
            changed = r"cleanup\.policy of a topic has changed since the start of the task, and a restart follows it"
            with pytest.raises(KielGroupsError, match=changed):
                copied(task, 201)
        text = rf"store the record at offset 20[01] of {pair.topic}:\d: the topic is compacted, and the record has no"
        with pair.task(context, **config) as task, pytest.raises(KielGroupsError, match=text):
            copied(task, 202)
        with pair.task(context, **config, dead_letter_topic=dead) as task:
            while copied(task, 201)[longest] < 202:
                pass
            pair.set(copy, "cleanup.policy", "delete")
            asyncio.run(pair.fill(200, 201))
            while copied(task, 202)[longest] < 203:
                pass

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
        assert found == expected(0, 201)


async def test_a_mirror_begins_where_a_bulk_copy_has_ended(pair: Pair) -> None:
    """
    Records that another program has copied are not mirrored, and offsets are translated from there on. That holds for a
    partition that gets no further record, too.
    """
    await pair.create()
    await pair.fill(0, 20)
    # Without idempotence, a retry may reorder records.
    copier = TargetProducer({"bootstrap.servers": ",".join(pair.target.brokers), "enable.idempotence": True})
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


async def test_a_target_that_slows_producers_down_by_a_quota(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The log says so once, and no record is lost. However slow the target is, one batch is in flight, which is not larger
    than what the consumer may read ahead.
    """
    most, write, sizes = 20_000, TargetWriter.write, list[int]()
    consumer = partial(SyncConsumer, max_bytes=4_000, fetch_buffer_bytes=most)
    monkeypatch.setattr("kiel_groups.mirror.task.SingleConsumer", consumer)

    def measured(writer: TargetWriter, batches: Sequence[SourceBatch]) -> None:
        assert len(writer._producer) == 0
        sizes.append(sum(batch.size_bytes for batch in batches))
        write(writer, batches)

    monkeypatch.setattr(TargetWriter, "write", measured)
    await pair.create()
    await asyncio.to_thread(pair.limit, pair.name, 9_000)
    more = {"target_compression_type": "none", "target_properties": f"client.id={pair.name}", "partition_sets": "1"}
    line = rf"{pair.name}-0: the target .* slows the mirror down: a quota delays its answers by \d"

    def run() -> int:
        asyncio.run(pair.fill(0, count := 800))
        with pair.task(**more) as task:
            copied(task, count)
            # The quota is that of ten seconds, and a broker may learn of it late.
            while not re.search(line, caplog.text):
                asyncio.run(pair.fill(count, count := count + 200))
                copied(task, count)
        return count

    count = await asyncio.to_thread(run)
    assert len(re.findall(line, caplog.text)) == 1
    assert max(sizes) <= most < sum(sizes) / 2
    for partition in range(PARTITIONS):
        assert contents(await asyncio.to_thread(pair.read, f"copy.{pair.topic}", partition)) == expected(0, count)


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


async def test_more_partitions_on_the_target(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """
    A record with a key goes where Java's hash says, in its order, and one without keeps its partition. The checkpoint
    has the end of each partition, and the log says what becomes of the order. Another codec is chosen, and records have
    the time of mirroring. A setting that asks for fewer partitions than the source has is refused.
    """
    await pair.create()
    numbers = range(60)
    async with Producer(pair.source.brokers, compression="gzip") as producer:
        await producer.produce_many(pair.topic, [b"%d" % number for number in numbers], [*map(key_of, numbers)], 1)

    def run() -> None:
        refused = pytest.raises(ConfigError, match=r"target\.partitions: 2 given; expected at least 3")
        with refused, pair.task(target_partitions="2"):
            pass
        with caplog.at_level("INFO"), pair.task(target_partitions="x2", target_compression_type="zstd") as task:
            while not task.poll():
                pass

    began_ms = time.time_ns() // 1_000_000
    await asyncio.to_thread(run)
    copies = pair.read_all((f"copy.{pair.topic}", number) for number in range(6))
    found = [[int(value) for _, value in contents(each)] for each in copies]
    times_ms = {message.timestamp()[1] for each in copies for message in each}
    assert began_ms <= min(times_ms) <= max(times_ms) <= time.time_ns() // 1_000_000
    keyed = [[number for number in each if key_of(number)] for each in found]
    wanted = [(number, murmur2_partitioner(key, range(6))) for number in numbers if (key := key_of(number))]
    assert keyed == [[number for number, partition in wanted if partition == each] for each in range(6)]
    assert [len(each) - len(keys) for each, keys in zip(found, keyed, strict=True)] == [0, 12, 0, 0, 0, 0]
    values = [message.value() for number in range(2) for message in pair.read(checkpoints_topic(pair.name), number)]
    ends = {str(number): len(each) for number, each in enumerate(found)}
    assert json.loads(values[-1] or b"") == {"source": 60, "target": None, "targets": ends}
    assert f"the keys of {pair.topic} are hashed anew on the target: the order within a key is kept" in caplog.text
    assert set(pair.codecs(f"copy.{pair.topic}")) == {ZSTD}


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
    Mirrors that claim different topics at the same time fence each other, and all succeed. Of two commands that turn a
    topic at the same time, one does.
    """
    target = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})
    names = [f"{pair.name}-{number}" for number in range(2)]
    topics = [MirroredTopic(pair.topic, f"copy.{pair.topic}", 1, {})]

    def claim(name: str) -> str:
        try:
            target.create_checkpoints(name, 1, 1)
            _, problems = target.claim(name, "old:9092", topics)
            return problems.get(pair.topic, name)
        except KielGroupsError as error:
            return str(error)

    outcomes = await asyncio.gather(*(asyncio.to_thread(claim, name) for name in names))
    outcomes += [await asyncio.to_thread(claim, name) for name in names]
    assert len({outcome for outcome in outcomes if outcome in names}) == 1, outcomes
    assert any("a topic has one mirror" in outcome for outcome in outcomes)
    others = [MirroredTopic(f"{pair.topic}.{number}", f"copy.{pair.topic}.{number}", 1, {}) for number in range(3)]
    await asyncio.gather(*(asyncio.to_thread(target.claim, names[0], "old:9092", [topic]) for topic in others))
    assert {topic.target for topic in others} <= target.claims().keys()

    both_stopped = threading.Barrier(2, timeout=60)

    def turn(start: int) -> int | str:
        claim = target.claims()[topics[0].target]
        plan = TopicReversal(topics[0].target, claim, BACK, [PartitionReversal(0, 0, start)])
        try:
            turn_round(target, claim.mirror, [plan], lambda: [plan], both_stopped.wait)
        except KielGroupsError as error:
            return str(error)
        return start

    turned = await asyncio.gather(*(asyncio.to_thread(turn, start) for start in (1, 2)))
    (start,) = [outcome for outcome in turned if isinstance(outcome, int)]
    assert any(f"has changed the direction of the topic {pair.topic} meanwhile" in str(each) for each in turned)
    claim = target.claims()[topics[0].target]
    assert (claim.direction, claim.starts) == (BACK, (start,))


async def test_topics_that_were_created_again(
    pair: Pair, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A topic of the target that has lost what was mirrored or copied back waits, and the status names the way out. So
    does a topic of the source whose offsets have started over. The other topics of the task are copied. The connector
    leaves both out, although they have records at the position of the mirror, and fails without another topic.
    """
    await pair.create()
    await pair.fill(0, 10)
    monkeypatch.setattr("kiel_groups.mirror.writer.SETTLED_S", 0.2)
    copy, other, last = f"copy.{pair.topic}", unique("other"), unique("last")
    admin = AdminClient({"bootstrap.servers": ",".join(pair.target.brokers)})
    topics = ZooKeeperTopics(pair.source.zk_hosts)

    def until(problem: str, task: MirrorTask, context: RecordingTaskContext) -> None:
        while not any(problem in each for each in context.problems):
            task.poll()

    def create(topic: str) -> None:
        topics.create(topic, 1)
        while not source_topics(",".join(pair.source.brokers), [topic], None).partitions:
            pass

    def write(topic: str) -> None:
        with SyncProducer(pair.source.brokers) as producer:
            producer.produce(topic, b"x").result(10)

    def run() -> None:
        create(other)
        context = RecordingTaskContext(connector=pair.name)
        with pair.task(context, exactly_once="true", topics=f"{pair.topic},{other}") as task:
            positions = copied(task, 10)
            admin.delete_topics([copy])[copy].result(10)
            admin.create_topics([NewTopic(copy, PARTITIONS, 1)])[copy].result(10)
            asyncio.run(pair.fill(10, 15))
            until("the topic was deleted and created again", task, context)
            write(other)
            while not task.poll():
                pass
        assert contents(pair.read(f"copy.{other}", 0)) == [(None, b"x")]
        target = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})
        # As if the brokers had no ids at the start: the end of the log is enough while it is short.
        target.change_claims(lambda claims: {copy: claims[copy]._replace(target_id="")})
        for exactly_once in ("false", "true"):
            context = after(pair, positions)
            with pair.task(context, exactly_once=exactly_once) as task:
                until("the topic was deleted and created again", task, context)
        target.change_claims(lambda claims: {copy: claims[copy]._replace(direction=BACK, starts=(10,) * PARTITIONS)})
        parts = [back_partition(TopicPartition(copy, number)) for number in range(PARTITIONS)]
        copied_back = RecordingTaskContext([(each, {"offset": 100}) for each in parts], connector=pair.name)
        with pair.task(copied_back) as task:
            until(f"leave {pair.topic} out of the topics of this mirror", task, copied_back)
        admin.delete_topics([copy])[copy].result(10)
        # To ask for its id does not create a topic.
        while target.topic_ids([copy]):
            pass
        admin.create_topics([NewTopic(copy, PARTITIONS, 1)])[copy].result(10)
        # The new log passes what was copied in either direction.
        pair.produce(0, 200)
        mirrored = [MirroredTopic(pair.topic, copy, PARTITIONS, {})]
        for direction, advice in ((BACK, f"leave {pair.topic} out"), (FORWARD, "mirror it by a connector of another")):
            turned = target.claims()[copy]._replace(direction=direction)
            target.change_claims(lambda _, turned=turned: {copy: turned})
            _, problems = target.check(pair.name, ",".join(pair.source.brokers), 2, mirrored)
            assert "as its id shows: the topic was deleted and created again" in problems[pair.topic]
            with pytest.raises(ConfigError, match=advice), pair.task():
                pass
        words = ["--from", pair.source.zk_hosts, "--to", ",".join(pair.target.brokers), "--topics", pair.topic]
        words += ["--name", f"{pair.name}-2", "--topic-format", "again.${topic}", "--until-caught-up"]
        done = kiel_groups("mirror", "start", *words)
        assert (done.returncode, done.stdout.startswith("mirrored 45 records ")) == (0, True), done.stderr

        # Without ZooKeeper, only the task notices that the topic was created again.
        create(last)
        context = RecordingTaskContext(connector=f"{pair.name}-3")
        pair.name, name = context.connector, pair.name
        more = {"topics": f"{pair.topic},{last}", "source_zookeeper": "", "target_topic_format": "third.${topic}"}
        with pair.task(context, **more) as task:
            copied(task, 15)
            topics.delete(pair.topic)
            topics.create(pair.topic, PARTITIONS)
            until("its log is at 0 again", task, context)
            write(last)
            while not pair.read(f"third.{last}", 0):
                task.poll()
        pair.name = name
        asyncio.run(pair.fill(0, 30))
        with pair.task(topics=f"{pair.topic},{other}") as task:
            assert {partition.topic for partition in task._partitions} == {other}
        with (
            pytest.raises(ConfigError, match=f"the source topic {pair.topic} was deleted and created again"),
            pair.task(),
        ):
            pass

    await asyncio.to_thread(run)
