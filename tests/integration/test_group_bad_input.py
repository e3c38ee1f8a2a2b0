"""Mistakes of users and operators: each gives one error that names the mistake, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster, ZooKeeperServer
from kiel_groups.errors import (
    ChrootMissingError,
    ClosedError,
    ConfigError,
    ForeignMemberError,
    GroupConfigError,
    NoBrokersError,
    NoZooKeeperError,
)
from kiel_groups.group.znodes.contents import GroupSettings, GroupState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.ops import zookeeper_client
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@contextmanager
def closed_port() -> Iterator[int]:
    """Reserve a local port without a listener for the duration of the block."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


async def assert_connect_fails(consumer: GroupedConsumer, error: type[Exception], *words: str) -> None:
    """Assert that ``connect`` fails twice, with an error of one line that contains these words."""
    for _ in range(2):
        with pytest.raises(error) as caught:
            await consumer.connect()
        assert "\n" not in str(caught.value)
        for word in words:
            assert word in str(caught.value)
    await consumer.close()


async def test_a_server_without_free_connections_is_named(
    cluster_39: Cluster,
    start_zookeeper: Callable[..., ZooKeeperServer],
    zookeeper_version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where maxClientCnxns is reached, the errors of a member and of the tools say so, not that no server answers."""
    # A server that gets no share of a busy processor may take longer than two seconds to close a connection.
    monkeypatch.setattr("kiel_groups.zookeeper.kazoo_client._CLOSING_S", 30.0)
    server = start_zookeeper(zookeeper_version, overrides={"maxClientCnxns": 1})
    # A session is open only once the server has accepted its connection. A bare connection might be the one too many,
    # since the server may still count that of its own start.
    client = KazooClient(server.hosts, timeout=30)
    await asyncio.to_thread(client.start, 30)
    try:
        words = (f"{server.hosts} closes each connection at once", "maxClientCnxns", "within 2 s")
        consumer = GroupedConsumer(cluster_39.brokers, "g", server.hosts, zk_timeout_ms=2_000)
        await assert_connect_fails(consumer, NoZooKeeperError, *words)
        with pytest.raises(NoZooKeeperError) as caught, zookeeper_client.zookeeper(server.hosts, timeout_s=2.0):
            pytest.fail("a session was opened")
        assert all(word in str(caught.value) for word in words)
    finally:
        client.stop()
        client.close()


async def test_a_missing_zookeeper_is_an_error(cluster_39: Cluster) -> None:
    """The error has the address without an answer, and the time that the consumer waited."""
    with closed_port() as port:
        consumer = GroupedConsumer(cluster_39.brokers, "g", f"127.0.0.1:{port}", zk_timeout_ms=300)
        await assert_connect_fails(consumer, NoZooKeeperError, f"127.0.0.1:{port}", "0.3 s")


async def test_no_chroot(cluster: Cluster) -> None:
    """The error of a member names the missing chroot, which is not created."""
    consumer = GroupedConsumer(cluster.brokers, "g", f"{cluster.zk_hosts}/not/there")
    await assert_connect_fails(consumer, ChrootMissingError, "/not/there", "create it first")
    with zookeeper(cluster) as client:
        assert client.exists("/not") is None


async def test_missing_brokers_are_an_error(cluster_39: Cluster, unique: Unique) -> None:
    """The error names each address, and the consumer has not joined the group."""
    name = unique("group")
    with closed_port() as port:
        consumer = GroupedConsumer([f"127.0.0.1:{port}"], name, cluster_39.zk_hosts)
        await assert_connect_fails(consumer, NoBrokersError, f"127.0.0.1:{port}")
    with zookeeper(cluster_39) as client:
        assert client.exists(GroupLayout(name).root) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group": "a/b"}, "group: 'a/b' is not a legal name"),
        ({"group": ""}, "group: '' is not a legal name"),
        ({"brokers": []}, "brokers: no address given"),
        ({"brokers": ["host:port"]}, "brokers: 'host:port' is not an address"),
        ({"zk_hosts": ["a:1/x", "b:2"]}, "zk_hosts: 'a:1/x,b:2'"),
        ({"auto_offset_reset": "first"}, "auto_offset_reset: 'first' given; expected 'earliest'"),
        ({"max_bytes": 0}, "max_bytes: 0 given"),
        ({"session_timeout_ms": 5}, "session_timeout_ms: 5 given"),
        (
            {"partition_allocator": "stiky"},
            "partition_allocator: there is no allocator 'stiky'; expected one of round_robin,",
        ),
        (
            {"partition_allocator": 3},
            "partition_allocator: 3 given; expected a function, or one of round_robin, sticky",
        ),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], words: str) -> None:
    """The constructor raises an error that names the setting, even outside an event loop."""
    with pytest.raises(ConfigError) as caught:
        GroupedConsumer(**{"brokers": ["b:9092"], "group": "g", "zk_hosts": ["z:2181"], **settings})  # type: ignore[arg-type]
    assert words in str(caught.value)


async def test_an_invalid_topic_is_refused(cluster_39: Cluster, unique: Unique) -> None:
    """``subscribe`` raises for a name that no topic can have."""
    async with GroupedConsumer(cluster_39.brokers, unique("group"), cluster_39.zk_hosts) as consumer:
        with pytest.raises(ConfigError, match="topic: 'a/b' is not a legal name"):
            await consumer.subscribe(["a/b"])


async def test_methods_raise_before_connect_and_after_close(cluster_39: Cluster) -> None:
    """Methods raise ClosedError before ``connect`` and after ``close``."""
    consumer = GroupedConsumer(cluster_39.brokers, "g", cluster_39.zk_hosts)
    with pytest.raises(ClosedError, match="not connected"):
        consumer.__aiter__()
    with pytest.raises(ClosedError, match="not connected"):
        await consumer.commit()
    await consumer.close()
    with pytest.raises(ClosedError, match="was closed"):
        await consumer.connect()


async def test_a_member_that_disagrees_with_its_group(cluster: Cluster, unique: Unique) -> None:
    """
    The first member's settings become the group's settings. The error of a member with other settings has both values
    and the path of the znode.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    async with group_of(cluster, name, [topic]) as group:
        await group.join()
        other = GroupedConsumer(cluster.brokers, name, cluster.zk_hosts, auto_offset_reset="latest")
        await assert_connect_fails(
            other, GroupConfigError, "'earliest' there", "'latest' here", GroupLayout(name).config
        )


OURS = GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="earliest")


@pytest.mark.parametrize(
    ("there", "differences"),
    [
        ({"store": "broker-v0"}, "store is 'broker-v0' there and 'zookeeper' here."),
        ({"mode": "eager"}, "mode is 'eager' there and 'cooperative' here."),
        ({"auto_offset_reset": "latest"}, "auto_offset_reset is 'latest' there and 'earliest' here."),
        (
            {"store": "broker-v0", "auto_offset_reset": "none"},
            "store is 'broker-v0' there and 'zookeeper' here; auto_offset_reset is 'none' there and 'earliest' here.",
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
async def test_every_disagreement_is_in_the_error(
    cluster_39: Cluster, unique: Unique, there: dict[str, str], differences: str
) -> None:
    """
    The error has both values of each setting, and says how to change either one. After the change the member can join.
    """
    name = unique("group")
    path = GroupLayout(name).config
    with zookeeper(cluster_39) as client:
        client.create(path, replace(OURS, **there).encode(), makepath=True)
        consumer = GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts)
        remedy = f"Give this member the group's setting, or stop all members and change the znode {path}"
        with pytest.raises(GroupConfigError) as caught:
            await consumer.connect()
        assert str(caught.value) == f"this member disagrees with its group {name}: {differences} {remedy}"
        assert client.exists(GroupLayout(name).members) is None
        client.set(path, OURS.encode())
        await consumer.connect()
        await consumer.close()


async def test_unreadable_settings_are_an_error(cluster_39: Cluster, unique: Unique) -> None:
    """If the group's ``config`` znode contains garbage, members cannot join."""
    name = unique("group")
    with zookeeper(cluster_39) as client:
        client.create(GroupLayout(name).config, b"\xff{", makepath=True)
    consumer = GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts)
    await assert_connect_fails(consumer, GroupConfigError, GroupLayout(name).config, "not JSON")


@pytest.mark.parametrize("folder", ["ids", "kiel_members"])
async def test_a_foreign_member_keeps_members_from_joining(cluster_39: Cluster, unique: Unique, folder: str) -> None:
    """A member cannot join while a Java consumer or a member of kiel is in the group."""
    name = unique("group")
    layout = GroupLayout(name)
    with zookeeper(cluster_39) as client:
        client.create(f"{getattr(layout, folder)}/foreign", b"{}", ephemeral=True, makepath=True)
        consumer = GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts)
        await assert_connect_fails(consumer, ForeignMemberError, "foreign", "Stop them first")
        assert client.exists(layout.root) is None


def failing(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
    raise ValueError("no idea")


def duplicating(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
    topic = partitions[0].rpartition(":")[0]
    return {member: {topic: [0, 1, 2, 3]} for member in members}


@pytest.mark.parametrize(
    ("allocator", "words"),
    [(failing, "allocator failing: it raised ValueError: no idea"), (duplicating, "allocator duplicating: ")],
)
async def test_an_allocator_that_fails(
    cluster_39: Cluster,
    unique: Unique,
    caplog: pytest.LogCaptureFixture,
    allocator: Callable[[list[str], list[str]], dict[str, dict[str, list[int]]]],
    words: str,
) -> None:
    """
    If an allocator fails, the leader uses the sticky allocator instead. The log, a metric and the group state contain
    the reason.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    values = await produce(cluster_39, topic, 20)
    async with group_of(cluster_39, name, [topic], partition_allocator=allocator) as group:
        first, _ = await group.join(), await group.join()
        await group.balanced(topic, 4)
        await group.delivered(values)
        with zookeeper(cluster_39) as client:
            layout = GroupLayout(name)
            group_state = GroupState.parse(client.get(layout.group_state)[0], layout.group_state)
        assert group_state.fallback.startswith("sticky used: ")
        assert words in group_state.fallback
        assert first.consumer.metrics.total("allocator_failures") >= 1
        assert any(words in record.message and record.levelname == "ERROR" for record in caplog.records)


async def test_an_allocator_function_decides(cluster_39: Cluster, unique: Unique) -> None:
    """An allocator function makes the plan from members and partitions, and the group state has the function's name."""

    def first_takes_all(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        topic = partitions[0].rpartition(":")[0]
        return {members[0]: {topic: [int(text.rpartition(":")[2]) for text in partitions]}}

    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 12)
    async with group_of(cluster_39, name, [topic], partition_allocator=first_takes_all) as group:
        members = [await group.join(), await group.join()]
        favourite, other = sorted(members, key=lambda member: str(member.consumer.member_id))
        await eventually(lambda: favourite.partitions(topic) == list(range(12)), "the first member owns all partitions")
        await eventually(lambda: other.consumer.settled, "the other member has settled")
        with zookeeper(cluster_39) as client:
            data = json.loads(client.get(GroupLayout(name).group_state)[0])
        assert data["allocator"] == "first_takes_all"


async def test_garbage_in_znodes_does_not_stop_the_group(cluster: Cluster, unique: Unique) -> None:
    """An unreadable member znode gets no partitions. An unreadable assignment revokes none."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic]) as group:
        first = await group.join()
        await group.balanced(topic, 4)
        with zookeeper(cluster) as client:
            client.create(f"{layout.members}/nonsense", b"\x00\xff", ephemeral=True)
            client.set(layout.assignment(str(first.consumer.member_id)), b"nonsense")
            await eventually(lambda: first.consumer.metrics.total("znodes_unreadable") >= 2, "both are noticed")
            assert first.partitions(topic) == [0, 1, 2, 3]
            await group.join()
            await group.balanced(topic, 4)
            values = await produce(cluster, topic, 40)
            await group.delivered(values)


async def test_failures_of_dropped_futures_are_logged(cluster_39: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """If the future of a method fails and the caller has dropped it, the failure is logged."""
    consumer = GroupedConsumer(cluster_39.brokers, "g", cluster_39.zk_hosts)
    consumer.commit()
    await eventually(lambda: "its result was not awaited" in caplog.text, "the failure is logged")
    await asyncio.sleep(0)
    assert "not connected" in caplog.text
