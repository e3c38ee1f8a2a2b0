"""The commands ``kiel-groups mirror`` between Kafka 0.8.2.2 and 3.9.1."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import Producer as TargetProducer
from confluent_kafka import TopicPartition as TargetPartition
from confluent_kafka.admin import AdminClient

from kiel_groups import GroupedConsumer, Producer
from kiel_groups.cli.terminal import mirror_run
from kiel_groups.cli.terminal.mirror_report import MirrorProgress
from kiel_groups.embedded import Cluster
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.mirror.mirror_view import follow_mirror, read_mirror
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.topics import source_topics
from kiel_groups.mirror.values import FORWARD, STOPPED, checkpoints_topic
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from tests.helpers.closed_sessions import close_sessions_below
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.commands import Running, kiel_groups, kiel_groups_here
from tests.helpers.java_tools import consume_some
from tests.helpers.mirrored_pair import PARTITIONS, Pair, after, contents, copied, expected, key_of, value_of
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, until_state, worker_on

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mirror")]


@pytest.fixture
def pair(shared_clusters: Callable[..., Cluster], unique: Callable[[str], str]) -> Pair:
    return Pair(shared_clusters("3.9.5", "0.8.2.2"), shared_clusters(None, "3.9.1"), unique)


async def test_a_topic_is_turned_round(pair: Pair, unique: Callable[[str], str]) -> None:
    """
    Records that are written on the target after the turn flow to the source, in order, with keys and null values. No
    record that the mirror has written flows back, and none that flowed back is mirrored again. The topic can be turned
    forward, and back again. The status has the lag of each direction, and a verification says which part it compares.
    """
    await pair.create()
    await pair.fill(0, 50)
    config, workers = pair.config(refresh_interval_ms="200", exactly_once="true"), unique("workers")
    clusters = ("--from", pair.source.zk_hosts, "--to", ",".join(pair.target.brokers), "--name", pair.name)
    clusters += ("--group", workers)

    async def command(*words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(kiel_groups_here, "mirror", *words, *clusters)
        return done.returncode, done.stdout + done.stderr

    async def reverse(*options: str) -> tuple[int, str]:
        return await command("reverse", pair.topic, "--settle", "0.3", *options)

    def lag() -> int | None:
        """Return the lag of the mirror if all of it is copied back, and is known."""
        document = json.loads(kiel_groups_here("mirror", "status", "--json", *clusters).stdout)
        is_back = {each["direction"] for each in document["partitions"]} == {"back"}
        return document["lag"] if is_back else None

    async def until_turned(*options: str) -> None:
        """Turn the topic when the mirror has stored its last positions."""

        async def is_turned() -> bool:
            status, text = await reverse("--yes", *options)
            assert status == 0 or " are left; stop the producers of the " in text, text
            assert "has not copied back" not in text
            return status == 0

        await eventually(is_turned, f"the turn with {options}", 60.0)

    async with worker_on(pair.source, workers) as worker:
        await ask(worker.url, "POST", "/connectors", {"name": pair.name, "config": config})
        await pair.mirrored(50)
        # A command that was killed in the middle has left the topic stopped.
        target = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})
        copy = f"copy.{pair.topic}"
        await asyncio.to_thread(target.change_claims, lambda claims: {copy: claims[copy]._replace(direction=STOPPED)})
        await asyncio.to_thread(offsets_are_moved_once, pair, partial(kiel_groups_here, "mirror"), clusters)
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

        # The last offsets are those of aborted records, and of markers.
        await eventually(lambda: asyncio.to_thread(lambda: lag() == 0), "everything is copied back", 60.0)
        status, text = await command("verify")
        assert status == 0
        assert re.search("records before its turn round: .*:1 .source offsets 0 to 59, target", text)
        assert re.search(r"records since its turn round, which are copied back: .*:1 .source offsets 60 to \d+, ", text)
        assert "180 of 180 records of the source are equal; copied back: 90 of 90" in text
        # Records in an open transaction may still be committed, and then they are copied back.
        await until_turned("--forward", "--dry-run")
        lags = list[int | None]()
        done = list[subprocess.CompletedProcess[str]]()
        words = ("reverse", pair.topic, "--forward", "--settle", "0", "--yes", *clusters)
        refused = partial(kiel_groups_here, "mirror", *words)
        await asyncio.to_thread(pair.produce, 90, 95, lambda: (lags.append(lag()), done.append(refused())))
        assert (lags[0] or 0) >= 5 * PARTITIONS
        assert re.search(r"\d+ records of .* are left; .* an open transaction", done[0].stderr), done
        for records in await pair.originals(95):
            assert records == expected(0, 95)

        await until_turned("--forward")
        await pair.fill(95, 100)
        for messages in await pair.mirrored(100):
            assert contents(messages) == expected(0, 100)
        status, text = await command("verify")
        assert (status, "complete; 15 of 15 records of the source are equal" in text) == (0, True), text
        assert re.search("only records since its last turn forward are .*:1 .source offsets 95 to 99, target", text)
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
    # A mirror that no process runs still knows what it has not copied back.
    assert (await asyncio.to_thread(lag) or 0) > 0
    for messages in await pair.mirrored(105):
        assert contents(messages)[:105] == expected(0, 105)
    found = await asyncio.to_thread(source_topics, ",".join(pair.target.brokers), [copy], target.latest_claims)
    assert f"{copy} of the source is itself the mirror of {pair.topic} of" in found.problems[copy]


def offsets_are_moved_once(
    pair: Pair, mirror: Callable[..., subprocess.CompletedProcess[str]], clusters: Sequence[str]
) -> None:
    """An offset behind the marker of a transaction is that of the end of the transaction."""
    group, admin = f"{pair.name}-group", AdminClient({"bootstrap.servers": ",".join(pair.target.brokers)})
    with zookeeper(pair.source) as client:
        client.create(f"{GroupLayout(group).topic_offsets(pair.topic)}/1", b"50", makepath=True)

    def moved() -> Any:
        done = mirror("offsets", group, "--json", *clusters)
        assert done.returncode == 0, done
        return json.loads(done.stdout)["offsets"][0]

    target = moved()["target"]
    behind = TargetPartition(f"copy.{pair.topic}", 1, target + 1)
    request = [ConsumerGroupTopicPartitions(group, [behind])]
    admin.alter_consumer_group_offsets(request)[group].result(10)
    assert [moved()[name] for name in ("before", "target", "set", "remark")] == [target + 1, target + 1, False, None]


async def test_one_command_mirrors_topics(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A start ends when it has caught up, and the next one has nothing to do. A start continues exactly where a process
    was killed, and mirrors partitions that the source gets meanwhile. Processes with other settings, and topics that do
    not exist, are refused. A start that waits for a topic fails when the topic is stopped or deleted.
    """
    await pair.create()
    await pair.fill(0, 300)
    place = ["--from", pair.source.zk_hosts, "--name", pair.name]
    words = ["start", *place, "--to", ",".join(pair.target.brokers), "--topic-format", "copy.${topic}"]
    words += ["--topics", pair.topic, "--session-timeout-ms", "10000", "--set", "refresh.interval.ms=1000"]
    copy, topics = f"copy.{pair.topic}", ZooKeeperTopics(pair.source.zk_hosts)
    target = TargetCluster({"bootstrap.servers": ",".join(pair.target.brokers)})

    async def last_line() -> str:
        ended = await asyncio.to_thread(kiel_groups, "mirror", *words, "--exactly-once", "--until-caught-up")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    async def here(*more: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(kiel_groups_here, "mirror", *more)

    pattern = r"mirrored 900 records \(.* kB\) of 1 topic in .* s, .* records/s; 0 records behind\n"
    assert re.fullmatch(pattern, await last_line())
    pattern = r"mirrored nothing new of 1 topic in .* s, after 900 records of earlier runs; 0 records behind\n"
    assert re.fullmatch(pattern, await last_line())
    with Running(["-m", "kiel_groups", "mirror", *words, "--exactly-once"]) as running:
        await pair.fill(300, 400)
        await pair.mirrored(400)
        await asyncio.to_thread(topics.grow, pair.topic, PARTITIONS + 1)

        async def has_grown() -> bool:
            assert running.process.poll() is None, running.errors
            return (await asyncio.to_thread(target.partitions))[copy] > PARTITIONS

        # Then brokers of the source know the partition, too.
        await eventually(has_grown, "the growth of the target topic", 60.0)
        async with Producer(pair.source.brokers) as producer:
            values = [value_of(number) for number in range(7)]
            await producer.produce_many(pair.topic, values, [*map(key_of, range(7))], PARTITIONS)

        async def position() -> int | None:
            assert running.process.poll() is None, running.errors
            view = await asyncio.to_thread(read_mirror, pair.source.zk_hosts, pair.name, pair.name, timeout_s=10)
            return next((each.position for each in view.partitions if each.partition.partition == PARTITIONS), None)

        await eventually(position, "the records of the new partition", 60.0)
        assert contents(await asyncio.to_thread(pair.read, copy, PARTITIONS)) == expected(0, 7)
        refused = await here(*words)
        assert refused.returncode == 2
        assert "runs in another process with other settings (exactly.once)" in refused.stderr
        running.process.kill()
    with zookeeper(pair.source) as client:
        close_sessions_below(client, GroupLayout(pair.name).root)
    refused = await here(*words, "--topics", "none")
    assert (refused.returncode, refused.stderr) == (2, "error: --topics: the source has no topic 'none'\n")
    await pair.fill(400, 500)
    assert (await last_line()).endswith(" records of earlier runs; 0 records behind\n")
    assert [contents(messages) for messages in await pair.mirrored(500)] == [expected(0, 500)] * PARTITIONS
    shown, document = await here("status", *place), await here("status", *place, "--json")
    assert (shown.returncode, document.returncode) == (0, 0)
    assert "exactly once, in 0 processes\n1,507 records " in shown.stdout
    found = [(each["position"], each["lag"], each["checkpoint"]) for each in json.loads(document.stdout)["partitions"]]
    assert found == [*[(500, 0, 500)] * PARTITIONS, (7, 0, 7)]

    # The source gets a partition while no process runs, so no task has it.
    await asyncio.to_thread(topics.grow, pair.topic, PARTITIONS + 2)

    async def is_known() -> bool:
        found = await asyncio.to_thread(source_topics, ",".join(pair.source.brokers), [pair.topic], None)
        return found.partitions[pair.topic] == PARTITIONS + 2

    await eventually(is_known, "the broker knows the partition that ZooKeeper has")
    async with Producer(pair.source.brokers) as producer:
        await producer.produce(pair.topic, b"new", partition=PARTITIONS + 1)
    found = json.loads((await here("status", *place, "--json")).stdout)
    assert ([each["task"] for each in found["partitions"] if each["lag"]], found["lag"]) == ([None], 1)

    # A start that waits for records which no worker copies, for as long as their topic may come.
    runs = list[mirror_run.MirrorRun]()
    monkeypatch.setattr(mirror_run.MirrorRun, "run", lambda self: runs.append(self) or 0)
    monkeypatch.setattr(mirror_run, "_STILL_S", 0.5)
    await pair.fill(500, 501)
    assert (await here(*words, "--exactly-once", "--until-caught-up")).returncode == 0

    def turn(direction: str) -> None:
        target.change_claims(lambda claims: {copy: claims[copy]._replace(direction=direction)})

    async def follow() -> None:
        run = runs[0]
        views = follow_mirror(pair.source.zk_hosts, pair.name, pair.name, timeout_s=10)
        await run._follow(cast("Any", SimpleNamespace(url="")), MirrorProgress(run.first, run.logs), str, views)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.0):
            await follow()
    await asyncio.to_thread(turn, STOPPED)
    with pytest.raises(KielGroupsError, match=f"any more with {pair.topic}: the topic {pair.topic} is stopped while"):
        await follow()
    await asyncio.to_thread(turn, FORWARD)
    await asyncio.to_thread(topics.delete, pair.topic)
    with pytest.raises(KielGroupsError, match=f"cannot catch up any more with {pair.topic}: .*{pair.topic}"):
        await follow()


async def test_groups_are_moved_and_the_copies_verified(pair: Pair) -> None:
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
        done = await asyncio.to_thread(kiel_groups_here, "mirror", *words, *place)
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

        await eventually(lambda: asyncio.to_thread(is_complete), f"the records {rest}, not {read}", 60.0)
        status, _, errors = await command("offsets", java)
    assert (status, errors.startswith(f"error: group {java} has members on the target: moved-")) == (1, True)

    status, out, _ = await command("verify")
    assert status == 0
    assert out.splitlines()[0] == f"mirror {pair.name}: complete; 900 of 900 records of the source are equal"
    assert "3 partitions, 900 equal; 150 doubled" in out

    await pair.fill(300, 301)
    producer = TargetProducer({"bootstrap.servers": ",".join(pair.target.brokers), "enable.idempotence": True})
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
