"""kiel's ``GroupedConsumer`` from its construction to its close: connections, event loops, attributes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tornado import gen, ioloop

from kiel_groups.clients import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.exc import NoBrokersError
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.kiel_api import consumer_of, produce
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def test_a_dead_bootstrap_host_is_skipped(cluster_39: Cluster, unique: Unique) -> None:
    """A dead host among ``brokers`` is skipped. ``connect`` raises if no host is live."""
    consumer = GroupedConsumer(["127.0.0.1:1", *cluster_39.brokers], unique("group"), [cluster_39.zk_hosts])
    await consumer.connect()
    await consumer.close()
    with pytest.raises(NoBrokersError):
        await GroupedConsumer(["127.0.0.1:1"], unique("group"), [cluster_39.zk_hosts]).connect()


def test_a_close_outside_the_loop_leaves_the_group_before_it_returns(cluster_39: Cluster, unique: Unique) -> None:
    """
    ``close()`` may be called outside the loop, as after a Ctrl-C in ``loop.start()``. When it returns, offsets are
    stored and no member remains.
    """
    topic, group = unique("topic"), unique("group")
    asyncio.run(cluster_39.create_topic(topic, 1))
    asyncio.run(produce(cluster_39, topic, 1, 2))
    consumer = consumer_of(cluster_39, group, autocommit=False)
    loop = ioloop.IOLoop(make_current=False)

    @gen.coroutine
    def run() -> Any:
        yield consumer.connect()
        while True:
            if (yield consumer.consume(topic)):
                consumer.commit_offsets()
                loop.add_callback(_interrupt)

    def _interrupt() -> None:
        raise KeyboardInterrupt

    loop.add_callback(run)
    with pytest.raises(KeyboardInterrupt):
        loop.start()
    left = consumer.close()
    assert left.done()
    assert left.exception() is None
    with zookeeper(cluster_39) as client:
        assert client.get_children(f"/kiel-groups/{group}/members") == []
        assert stored_offsets(client, group, topic) == {0: 2}
    loop.close(all_fds=True)


def test_calls_before_the_loop_take_effect_when_it_runs(cluster_39: Cluster, unique: Unique) -> None:
    """Programs may call methods before ``IOLoop.current().start()``. The calls take effect when the loop runs."""
    topic, group = unique("topic"), unique("group")
    asyncio.run(cluster_39.create_topic(topic, 1))
    asyncio.run(produce(cluster_39, topic, 1))
    loop = ioloop.IOLoop(make_current=True)
    consumer = consumer_of(cluster_39, group, max_wait_time=30_000)
    connecting, asked = consumer.connect(), consumer.consume(topic)
    assert loop.run_sync(lambda: asked) == [1]
    assert connecting.done()
    committing = consumer.commit_offsets()
    loop.run_sync(lambda: committing)
    loop.run_sync(consumer.close)
    loop.close(all_fds=True)
    with zookeeper(cluster_39) as client:
        assert stored_offsets(client, group, topic) == {0: 1}


async def test_a_consumer_has_the_attributes_of_kiels(cluster_39: Cluster, unique: Unique) -> None:
    """The attributes are the settings, and after the join the member id that allocator functions get."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    seen: list[str] = []

    def allocator(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        seen.extend(members)
        return {members[0]: {topic: [0]}}

    consumer = consumer_of(cluster_39, group, autocommit=False, partition_allocator=allocator)
    assert consumer.name.endswith(f":{id(consumer)}")
    assert (consumer.group_name, consumer.autocommit, consumer.closing) == (group, False, False)
    assert consumer.deserializer is json.loads
    await consumer.connect()
    await consumer.consume(topic)
    await eventually(lambda: set(seen) == {consumer.name}, "it is the leader and assigns the partition to itself")
    await consumer.wind_down()
    assert consumer.closing


def test_a_close_before_connect_is_done_at_once(cluster_39: Cluster, unique: Unique) -> None:
    """A consumer that was never used has no group to leave, so its close is done at once, even before any loop runs."""
    assert consumer_of(cluster_39, unique("group")).close().done()
