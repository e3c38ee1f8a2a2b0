"""The default ports of addresses without a port."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from kiel_groups.clients import GroupedConsumer, Producer, SingleConsumer
from kiel_groups.clients.net import broker_access
from kiel_groups.config import BrokerConfig, HostPort, parse_hosts
from kiel_groups.errors import ConfigError, NoBrokersError, NoZooKeeperError
from tests.helpers.fake_broker import FakeBroker

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("make", [Producer, SingleConsumer, lambda hosts: GroupedConsumer(hosts, "g", ["zoo"])])
async def test_brokers_have_port_9092_by_default(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """A broker's address without a port gets port 9092. If no broker answers, the error names all addresses."""
    connected: list[tuple[str, int]] = []

    async def connect(host: str, address: HostPort, *_: object) -> Any:
        connected.append((host, address.port))
        raise OSError("nothing listens here")

    monkeypatch.setattr(broker_access, "_connect", connect)
    with pytest.raises(NoBrokersError, match=r"kafka-1:9092: .*kafka-2:9093: "):
        await make(["kafka-1", "kafka-2:9093"]).connect()
    assert connected == [("kafka-1", 9092), ("kafka-2", 9093)]


async def test_zookeeper_has_port_2181_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A ZooKeeper server's address without a port gets port 2181. The chroot after the last server applies to all servers,
    and is not part of an address.
    """
    servers = ["127.0.1.1", "127.0.1.2:2182/kafka"]
    connected: set[tuple[str, int]] = set()
    connect = SequentialThreadingHandler.create_connection

    def create_connection(self: SequentialThreadingHandler, address: tuple[str, int], *args: Any, **kwargs: Any) -> Any:
        # A session that an earlier test has abandoned is closed in the background, on a server at 127.0.0.1.
        if not address[0].startswith("127.0.1."):
            return connect(self, address, *args, **kwargs)
        connected.add((address[0], address[1]))
        raise OSError("nothing listens here")

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", create_connection)
    async with FakeBroker({"t": 1}) as broker:
        consumer = GroupedConsumer([str(broker.address)], "g", servers, zk_timeout_ms=1_000)
        with pytest.raises(NoZooKeeperError, match=r"127\.0\.1\.1:2181,127\.0\.1\.2:2182/kafka"):
            await consumer.connect()
    assert connected == {("127.0.1.1", 2181), ("127.0.1.2", 2182)}


ADDRESSES = {
    "kafka-1": ("kafka-1", 9092),
    "10.0.0.1:9093": ("10.0.0.1", 9093),
    "[::1]": ("::1", 9092),
    "[::1]:9093": ("::1", 9093),
    "[2001:db8::10.0.0.1]:1": ("2001:db8::10.0.0.1", 1),
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_is_read(text: str) -> None:
    """Brackets separate an IPv6 address from the port. They are no part of the address, and are written again."""
    (address,) = parse_hosts(text, 9092, "brokers")
    assert address == ADDRESSES[text]
    assert parse_hosts(str(address), 1, "brokers") == (address,)
    assert address == HostPort(*ADDRESSES[text])


@pytest.mark.parametrize("text", ["::1", "::1:9092", "[::1", "::1]:9092", "[::1]9092", "[::1]:", "[]:1", "[::1]:0"])
def test_an_ipv6_address_without_its_brackets_is_refused(text: str) -> None:
    """The error says what is expected."""
    with pytest.raises(ConfigError, match=r"is not an address; expected 'host' or 'host:port'"):
        parse_hosts(text, 9092, "brokers")
    with pytest.raises(ConfigError, match=r"needs brackets, as in '\[::1\]:9092'"):
        parse_hosts("::1", 9092, "brokers")


@pytest.mark.parametrize(
    ("hosts", "limit_s", "connect_ms"),
    [(1, 5.0, 4_000), (2, 5.0, 2_000), (3, 30.0, 8_000), (9, 5.0, 2_000), (1, 0.3, 300)],
)
def test_a_tool_shares_its_time_between_the_brokers(hosts: int, limit_s: float, connect_ms: int) -> None:
    """A broker may pause for some seconds, and has two of them even if a tool knows many brokers."""
    config = BrokerConfig.of_tool([HostPort("kafka", port) for port in range(1, hosts + 1)], limit_s)
    assert (config.connect_timeout_ms, config.request_timeout_ms) == (connect_ms, round(1_000 * limit_s))
