"""Requests to the REST interface of a worker, as any HTTP client sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

__all__ = ["JSON", "Got", "ask"]

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
