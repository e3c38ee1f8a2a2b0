"""Requests to a REST interface, as any HTTP client sends them, and bytes that are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

__all__ = ["JSON", "Got", "address_of", "ask", "send_bytes"]

JSON = {"Content-Type": "application/json"}


class Got(NamedTuple):
    """An answer: its status, its document or None, and its headers."""

    status: int
    document: Any
    headers: Mapping[str, str]


async def ask(url: str, method: str = "GET", body: object = None, headers: Mapping[str, str] | None = None) -> Got:
    """Send a request; a body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    client = AsyncHTTPClient(force_instance=True)
    request = HTTPRequest(
        url,
        method,
        JSON if headers is None else headers,
        data if method in {"POST", "PUT", "PATCH"} else None,
        follow_redirects=False,
        allow_nonstandard_methods=True,
    )
    response = await client.fetch(request, raise_error=False)
    client.close()
    return Got(response.code, json.loads(response.body) if response.body else None, response.headers)


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL."""
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


async def send_bytes(url: str, data: bytes) -> tuple[int, bytes]:
    """Send bytes on a connection of its own, and return the status of the answer and all of it; 0 for none."""
    reader, writer = await asyncio.open_connection(*address_of(url))
    writer.write(data)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1]) if answer else 0, answer
