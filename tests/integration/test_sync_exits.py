"""An exit on the event loop of a blocking consumer ends its session, although the process lives on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, sync
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError
from tests.helpers.cluster_data import members, produce
from tests.helpers.waiting import eventually_blocking

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
Ask = Callable[[sync.GroupedConsumer], object]

EXITS = pytest.mark.parametrize("error", [SystemExit("its own"), KeyboardInterrupt()], ids=["exit", "ctrl-c"])


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of two partitions with four records."""
    name = unique("topic")
    asyncio.run(cluster_39.create_topic(name, 2))
    asyncio.run(produce(cluster_39, name, 4))
    return name


def exiting(cluster: Cluster, group: str, error: BaseException) -> sync.GroupedConsumer:
    """Return a consumer whose deserializer raises ``error``."""

    def leave(_: bytes) -> Any:
        raise error

    return sync.GroupedConsumer(cluster.brokers, group, cluster.zk_hosts, deserializer=leave)


def take_all(cluster: Cluster, group: str, topic: str) -> list[bytes]:
    """Return the four records of the topic, as another consumer of the group gets them."""
    with sync.GroupedConsumer(cluster.brokers, group, cluster.zk_hosts) as other:
        other.subscribe(topic)
        return sorted(record.value for _, record in zip(range(4), other, strict=False))


@EXITS
@pytest.mark.parametrize(
    "ask", [lambda consumer: next(iter(consumer)), lambda consumer: consumer.getone()], ids=["loop", "getone"]
)
def test_another_consumer_gets_the_partitions_after_an_exit(
    cluster_39: Cluster, topic: str, unique: Unique, error: BaseException, ask: Ask
) -> None:
    """
    The session ends with the event loop, without a close: its heartbeats, on a thread of their own, would keep it for
    as long as the process lives. The exit, or an error that it has caused, reaches the program after that.
    """
    group = unique("group")
    consumer = exiting(cluster_39, group, error)
    consumer.connect()
    consumer.subscribe(topic)
    with pytest.raises((type(error), ClosedError)) as raised:
        ask(consumer)
    assert error in (raised.value, raised.value.__cause__)
    assert members(cluster_39, group) == []
    assert take_all(cluster_39, group, topic) == [b"0", b"1", b"2", b"3"]
    with pytest.raises(ClosedError, match="its event loop was ended by"):
        consumer.getone()
    consumer.close()
    consumer.close()
    assert consumer.closing


@EXITS
def test_the_block_of_a_consumer_ends_with_an_exit(
    cluster_39: Cluster, topic: str, unique: Unique, error: BaseException
) -> None:
    """The exit leaves the block, and no thread of the consumer remains."""
    group, before = unique("group"), set(threading.enumerate())

    def program() -> None:
        with exiting(cluster_39, group, error) as consumer:
            consumer.subscribe(topic)
            for _ in consumer:
                raise AssertionError("a record was delivered")

    with pytest.raises(type(error)):
        program()
    assert members(cluster_39, group) == []
    eventually_blocking(
        lambda: not [each for each in set(threading.enumerate()) - before if "kiel-groups" in each.name],
        "its threads have ended",
    )


def test_the_session_of_an_event_loop_that_was_closed_ends(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """A program has left ``asyncio.run`` without a close, and does something else. Its heartbeat notices that."""
    group = unique("group")

    async def forgets_the_close() -> GroupedConsumer:
        consumer = GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts, heartbeat_interval_ms=100)
        await consumer.connect()
        await consumer.subscribe(topic)
        await consumer.getone()
        return consumer

    consumer = asyncio.run(forgets_the_close())
    eventually_blocking(lambda: members(cluster_39, group) == [], "the session has ended")
    assert take_all(cluster_39, group, topic) == [b"0", b"1", b"2", b"3"]
    assert not consumer.closing
