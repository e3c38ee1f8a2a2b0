"""Encode single requests, or send them to a broker, without a client that retries or looks up leaders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from kiel_groups.clients.net.connection import Connection
from kiel_groups.config import BrokerConfig, HostPort, parse_hosts
from kiel_groups.metrics import Metrics
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import Writer

__all__ = ["ask", "ask_at", "body_of", "connection_to"]

T = TypeVar("T")


def body_of(request: Request[Any]) -> bytes:
    """Return the bytes of a request without its header."""
    writer = Writer()
    request.write_body(writer)
    return writer.getvalue()


@asynccontextmanager
async def connection_to(address: HostPort) -> AsyncIterator[Connection]:
    """Connect to a broker for an ``async with`` block."""
    connection = Connection(address, BrokerConfig(hosts=(address,)), Metrics())
    try:
        yield connection
    finally:
        connection.close()


async def ask(connection: Connection, request: Request[T]) -> T:
    """Send a request that has an answer, and return the answer."""
    answer = await connection.request(request)
    assert answer is not None
    return answer


async def ask_at(address: str, request: Request[T]) -> T:
    """Send a request on a connection of its own, and return the answer."""
    async with connection_to(parse_hosts(address, 0, "broker")[0]) as connection:
        return await ask(connection, request)
