"""A real HTTP server on loopback that takes posted JSON arrays, and answers what a test tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

__all__ = ["HttpReceiver", "Reply", "http_receiver"]


class Reply(NamedTuple):
    """An answer: its status, body and headers. With ``hangs``, the answer never comes."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = {}
    hangs: bool = False


class HttpReceiver:
    """The server. ``judge`` returns the answer to the objects of a request; by default, they are taken."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.judge: Callable[[list[Any]], Reply] = lambda objects: Reply(200)
        #: The objects of each request, in order, and those that were taken.
        self.requests: list[list[Any]] = []
        self.taken: list[Any] = []
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        #: Set when a request waits for an answer that never comes.
        self.hanging = asyncio.Event()

    @property
    def offsets(self) -> list[list[int]]:
        """The offsets of the records of each request."""
        return [[each["offset"] for each in objects] for objects in self.requests]


class _Handler(RequestHandler):
    def initialize(self, receiver: HttpReceiver) -> None:
        self._receiver = receiver

    async def post(self) -> None:
        receiver = self._receiver
        objects = json.loads(self.request.body)
        receiver.requests.append(objects)
        receiver.headers.append(dict(self.request.headers.get_all()))
        receiver.paths.append(self.request.uri or "")
        reply = receiver.judge(objects)
        if reply.hangs:
            receiver.hanging.set()
            await asyncio.Event().wait()
        if 200 <= reply.status < 300:
            receiver.taken += objects
        self.set_status(reply.status)
        for name, value in reply.headers.items():
            self.set_header(name, value)
        if reply.body:
            self.write(reply.body)


@asynccontextmanager
async def http_receiver() -> AsyncIterator[HttpReceiver]:
    """Run a server during the context."""
    socket, port = bind_unused_port()
    receiver = HttpReceiver(f"http://127.0.0.1:{port}/records")
    server = HTTPServer(Application([(r"/.*", _Handler, {"receiver": receiver})], log_function=lambda handler: None))
    server.add_socket(socket)
    try:
        yield receiver
    finally:
        server.stop()
        async with asyncio.timeout(5):
            await server.close_all_connections()
