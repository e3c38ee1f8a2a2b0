"""Connecting: addresses that refuse, are silent or answer late, and servers that send what nobody asked for."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any
from unittest.mock import Mock

import pytest

from kiel_groups.clients.net import broker_access
from kiel_groups.clients.net.broker_access import open_socket, open_stream
from kiel_groups.clients.net.connection import AnswerStream, ReceiveBuffers
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.wire.sasl import MOST_SASL_BYTES, SaslError
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

BROKER = HostPort("broker.test", 9092)


class Stream:
    """A stream that only knows its host, and whether it is closed."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Network:
    """Hosts by address: an event to wait for, an error, or None for a host that accepts at once."""

    def __init__(self, patch: pytest.MonkeyPatch, **hosts: asyncio.Event | OSError | None) -> None:
        self.hosts = {name.replace("host", "10.0.0."): kind for name, kind in hosts.items()}
        self.tried: list[str] = []
        self.streams: list[Stream] = []
        patch.setattr(socket, "getaddrinfo", self._getaddrinfo)
        patch.setattr(broker_access, "_connect", lambda host, *_: self._connect(host))
        patch.setattr(broker_access, "_NEXT_ADDRESS_S", 0.01)

    def _getaddrinfo(self, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 9092)) for host in self.hosts]

    async def _connect(self, host: str) -> Stream:
        self.tried.append(host)
        kind = self.hosts[host]
        if isinstance(kind, OSError):
            raise kind
        if kind is not None:
            await kind.wait()
        self.streams.append(Stream(host))
        return self.streams[-1]

    async def open(self, timeout_s: float = 5.0) -> Any:
        """Open a stream to the broker."""
        return await open_stream(
            BROKER, lambda: AnswerStream(ReceiveBuffers()), timeout_s, BrokerConfig(hosts=(BROKER,))
        )


async def test_the_first_address_that_accepts_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are not tried after it."""
    network = Network(monkeypatch, host1=OSError("refused"), host2=None, host3=None)
    assert (await network.open()).host == "10.0.0.2"
    assert network.tried == ["10.0.0.1", "10.0.0.2"]


async def test_a_silent_address_delays_the_next_one_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address is tried beside it; a stream that it opens later is closed."""
    late = asyncio.Event()
    network = Network(monkeypatch, host1=late, host2=None)
    stream = await network.open()
    assert (stream.host, stream.closed) == ("10.0.0.2", False)
    late.set()
    await asyncio.sleep(0)
    assert all(other.closed for other in network.streams if other is not stream)


async def test_a_slow_address_is_used_if_the_others_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not given up when the next one is tried."""
    slow = asyncio.Event()
    network = Network(monkeypatch, host1=slow, host2=OSError("refused"))
    opening = asyncio.ensure_future(network.open())
    await eventually(lambda: network.tried == ["10.0.0.1", "10.0.0.2"], "both are tried")
    slow.set()
    assert (await opening).host == "10.0.0.1"


async def test_the_errors_of_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If all refuse, the last error is raised; if one is silent, the time-out. A broker that refuses the user says more
    than both.
    """
    network = Network(monkeypatch, host1=OSError("one"), host2=OSError("two"))
    with pytest.raises(OSError, match="two"):
        await network.open()
    network = Network(monkeypatch, host1=asyncio.Event(), host2=OSError("two"))
    with pytest.raises(TimeoutError):
        await network.open(timeout_s=0.05)
    for other in (OSError("two"), asyncio.Event()):
        network = Network(monkeypatch, host1=SaslError("it refuses the user"), host2=other)
        with pytest.raises(SaslError, match="it refuses the user"):
            # The addresses are looked up on a thread, which a busy machine may start late.
            await network.open(timeout_s=0.5)


def test_the_addresses_of_a_blocking_connection_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses that drop packets take no longer than the caller allows, and the last one has its turn."""
    Network(monkeypatch, host1=None, host2=None)
    clock, limits = Mock(return_value=100.0), []

    def connect(address: tuple[str, int], limit_s: float) -> None:
        limits.append(limit_s)
        clock.return_value += limit_s
        raise TimeoutError(address[0])

    monkeypatch.setattr(broker_access.time, "monotonic", clock)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(TimeoutError, match=r"10\.0\.0\.2"):
        open_socket(BROKER, BrokerConfig(hosts=(BROKER,)), 6.0)
    assert limits == [3.0, 3.0]


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_broker_that_does_not_answer_sasl_is_named_as_such(blocking: bool) -> None:
    """So does one of 0.9 at a port without SASL."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = HostPort("127.0.0.1", silent.getsockname()[1])
        config = BrokerConfig(
            hosts=(address,), sasl_mechanism="PLAIN", sasl_plain_username="u", sasl_plain_password="p"
        )
        opening: Any = open_stream(address, lambda: AnswerStream(ReceiveBuffers()), 0.1, config)
        if blocking:
            opening.close()
            opening = asyncio.to_thread(open_socket, address, config, 0.1)
        with pytest.raises(SaslError, match=r"it does not answer before SASL begins; .* a broker of 0\.10 or later"):
            await opening


async def test_plain_text_before_tls_is_no_answer() -> None:
    """Somebody between client and broker could otherwise answer in the broker's name."""
    raw, exchange = Mock(**{"is_closing.return_value": False}), broker_access._Exchange()
    exchange.data_received(b"\0\0\0\4")
    async with asyncio.timeout(5.0):
        with pytest.raises(ConnectionResetError, match="it does not speak TLS at this port"):
            await broker_access._encrypted(raw, exchange, ssl.create_default_context(), "broker.test")
    raw.pause_reading.assert_not_called()


def test_a_flood_is_not_kept_during_an_authentication() -> None:
    """A hostile server asks for a slow hash, and sends meanwhile."""
    exchange = broker_access._Exchange()
    for _ in range(100):
        exchange.data_received(bytes(MOST_SASL_BYTES))
    assert len(exchange._received) <= 2 * MOST_SASL_BYTES
