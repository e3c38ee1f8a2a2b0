"""Brokers and ZooKeeper at IPv6 addresses and behind names: names of two addresses, of which one does not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeAlias

import pytest

from kiel_groups import GroupedConsumer, Producer, SingleConsumer
from kiel_groups.embedded import Cluster

pytestmark = pytest.mark.integration

Unique: TypeAlias = Callable[[str], str]
NAME = "brokers.test"


def has_ipv6() -> bool:
    """Return whether the kernel has an IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def ipv6_cluster() -> Iterator[Cluster]:
    """Run ZooKeeper on all addresses, and a broker on ::1 only, which it also registers."""
    if not has_ipv6():
        pytest.skip("the kernel has no IPv6 loopback address")
    with pytest.MonkeyPatch.context() as patch:
        # Java prefers this over the option by which the embedded servers have IPv4 addresses only.
        patch.setenv("_JAVA_OPTIONS", "-Djava.net.preferIPv4Stack=false")
        with Cluster(
            broker_overrides={
                "host.name": "::1",
                "advertised.host.name": "::1",
                "zookeeper.session.timeout.ms": 10_000,
            },
            zookeeper_overrides={"clientPortAddress": "::"},
        ) as cluster:
            yield cluster


async def test_ipv6_addresses(ipv6_cluster: Cluster, unique: Unique) -> None:
    """Producer, member and single consumer work with addresses in brackets, and follow those that brokers register."""
    topic, broker = unique("topic"), f"[::1]:{ipv6_cluster.kafka[0].port}"
    await ipv6_cluster.create_topic(topic, 2)
    async with Producer([broker]) as producer:
        await asyncio.gather(*(producer.produce(topic, b"%d" % n, partition=n % 2) for n in range(20)))
    expected = {b"%d" % n for n in range(20)}
    zookeeper = f"[::1]:{ipv6_cluster.zookeeper.port}"
    async with (
        SingleConsumer([broker]) as single,
        GroupedConsumer([broker], unique("group"), [zookeeper]) as member,
        asyncio.timeout(30),
    ):
        await single.subscribe(topic, start=SingleConsumer.BEGINNING)
        assert {(await anext(single)).value for _ in range(20)} == expected
        await member.subscribe(topic)
        records = aiter(member)
        assert {(await anext(records)).value for _ in range(20)} == expected
        await member.commit()


def resolve_to(patch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have ``NAME`` resolve to these addresses, in this order."""
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        hosts = addresses if host == NAME else (host,)
        return [found for each in hosts for found in original(each, port, *args, **kwargs)]

    patch.setattr(socket, "getaddrinfo", getaddrinfo)


def silent_listener(port: int) -> socket.socket:
    """Listen at 127.0.0.2, and answer no connection: the queue of the listener is full."""
    listener = socket.create_server(("127.0.0.2", port), backlog=0)
    for _ in range(8):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.2", port))
        _fillers.append(filler)
    return listener


_fillers: list[socket.socket] = []


@pytest.mark.parametrize(
    "addresses",
    [("127.0.0.1",), ("::1", "127.0.0.1"), ("127.0.0.1", "::1"), ("127.0.0.3", "127.0.0.1")],
    ids=["one address", "IPv6 refuses", "IPv6 refuses, and is last", "another IPv4 address refuses"],
)
async def test_a_name_of_several_addresses(
    cluster_39: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    """The first address that accepts connections is used, whatever comes before it."""
    if "::1" in addresses and not has_ipv6():
        pytest.skip("the kernel has no IPv6 loopback address")
    resolve_to(monkeypatch, *addresses)
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    brokers = [f"{NAME}:{cluster_39.kafka[0].port}"]
    async with asyncio.timeout(30), Producer(brokers) as producer, SingleConsumer(brokers) as consumer:
        await producer.produce(topic, b"found")
        await consumer.subscribe(topic, start=SingleConsumer.BEGINNING)
        assert (await anext(consumer)).value == b"found"


async def test_a_name_whose_first_address_is_silent(cluster_39: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that drops packets costs a part of a second, and not the time for connecting."""
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    port = cluster_39.kafka[0].port
    with closing(silent_listener(port)):
        try:
            async with asyncio.timeout(30), SingleConsumer([f"{NAME}:{port}"], connect_timeout_ms=60_000) as consumer:
                assert await consumer.topics() is not None
        finally:
            while _fillers:
                _fillers.pop().close()
