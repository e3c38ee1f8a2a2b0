"""Programs in kiel's style that exit without waiting: the member leaves the group, and records are stored."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kiel_groups.clients import SingleConsumer
from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import zookeeper
from tests.helpers.commands import Running
from tests.helpers.kiel_api import offsets, produce

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

#: The arguments of each program: a broker, ZooKeeper, a topic with ten messages, and a group.
HEAD = """
import asyncio, signal, sys
from tornado import gen, ioloop
from kiel_groups.clients import GroupedConsumer, Producer
signal.signal(signal.SIGINT, signal.default_int_handler)
broker, zk, topic, group = sys.argv[1:]
"""

CLOSES_AND_STOPS = """
loop = ioloop.IOLoop.instance()
consumer = GroupedConsumer([broker], group, [zk], autocommit=False)
@gen.coroutine
def run():
    yield consumer.connect()
    count = 0
    while count < 10:
        count += len((yield consumer.consume(topic)))
    yield consumer.commit_offsets()
    consumer.close()
    loop.stop()
loop.add_callback(run)
loop.start()
"""

NEVER_CLOSES = CLOSES_AND_STOPS.replace("    consumer.close()\n", "")

INTERRUPTED_IN_ASYNCIO_RUN = """
consumer = GroupedConsumer([broker], group, [zk], autocommit=False)
async def run():
    await consumer.connect()
    count = 0
    while count < 10:
        count += len(await consumer.consume(topic))
    await consumer.commit_offsets()
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(60)
try:
    asyncio.run(run())
except KeyboardInterrupt:
    consumer.close()
print(dict(consumer.allocation), flush=True)
sys.stdin.read()
"""

PRODUCES_AND_STOPS = """
loop = ioloop.IOLoop.instance()
producer = Producer([broker], batch_size=10)
@gen.coroutine
def run():
    yield producer.connect()
    for n in range(35):
        producer.produce(topic, n)
    loop.stop()
loop.add_callback(run)
loop.start()
"""

CLOSED_LOOP = """
async def run():
    producer = Producer([broker], batch_size=10)
    await producer.connect()
    for n in range(5):
        producer.produce(topic, n)
    return producer
producer = asyncio.run(run())
"""


def start(cluster: Cluster, program: str, topic: str, group: str) -> Running:
    return Running(["-c", HEAD + program, cluster.brokers[0], cluster.zk_hosts, topic, group])


@pytest.mark.parametrize("program", [CLOSES_AND_STOPS, NEVER_CLOSES], ids=["close", "no close"])
async def test_a_program_that_stops_its_loop_leaves_the_group(
    cluster_39: Cluster, unique: Unique, program: str
) -> None:
    """
    No member remains after the exit of a program that stops its loop, with or without an unawaited ``close()`` before
    ``loop.stop()``.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, *range(10))
    with start(cluster_39, program, topic, group) as running, zookeeper(cluster_39) as client:
        assert running.wait() == 0, running.errors
        assert running.errors == []
        assert client.get_children(f"/kiel-groups/{group}/members") == []
    assert await offsets(cluster_39, group, topic) == {0: 10}


async def test_a_ctrl_c_that_ends_asyncio_run_leaves_the_group_at_the_close(
    cluster_39: Cluster, unique: Unique
) -> None:
    """
    After a Ctrl-C has ended ``asyncio.run``, the loop is closed, so ``close()`` closes the session before it returns,
    without a loop.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, *range(10))
    with start(cluster_39, INTERRUPTED_IN_ASYNCIO_RUN, topic, group) as running, zookeeper(cluster_39) as client:
        assert running.wait_for_lines(1) == ["{}"], "it owns no partitions any more"
        assert client.get_children(f"/kiel-groups/{group}/members") == []
        assert running.process.poll() is None


async def test_produced_records_are_sent_when_the_interpreter_ends(cluster_39: Cluster, unique: Unique) -> None:
    """All records are stored in order, although the program neither awaits them nor closes the producer."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    with start(cluster_39, PRODUCES_AND_STOPS, topic, "none") as running:
        assert running.wait() == 0, running.errors
        assert running.errors == []
    async with SingleConsumer(cluster_39.brokers) as consumer:
        await consumer.subscribe(topic, start=consumer.BEGINNING)
        assert [json.loads((await anext(consumer)).value) for _ in range(35)] == list(range(35))


async def test_unsent_records_are_counted_in_the_log(cluster_39: Cluster, unique: Unique) -> None:
    """
    If a loop was closed before all records were sent, it cannot run again, so the number of lost records is logged.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    with start(cluster_39, CLOSED_LOOP, topic, "none") as running:
        assert running.wait() == 0
        assert any("5 records were not sent" in line for line in running.errors), running.errors
