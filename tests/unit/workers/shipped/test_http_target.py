"""Requests to a real server on loopback, and what the answers mean."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tornado.iostream import IOStream
from tornado.tcpclient import TCPClient
from tornado.testing import bind_unused_port

from kiel_groups.workers.shipped.http_sink import Answer, HttpTarget, Meaning, meaning_of, shown_url
from tests.helpers.http_receiver import HttpReceiver, Reply, http_receiver
from tests.helpers.running_time import RunningTimeLoop

pytestmark = pytest.mark.unit

Scene = Callable[[HttpReceiver, HttpTarget], Coroutine[Any, Any, None]]


def play(scene: Scene, timeout_s: float = 10, query: str = "") -> None:
    """Run a scene with a server and a target for it."""

    async def run() -> None:
        async with http_receiver() as receiver:
            target = HttpTarget(receiver.url + query, {"X-Part": "a"}, timeout_s)
            try:
                await scene(receiver, target)
            finally:
                target.close()

    with asyncio.Runner(loop_factory=RunningTimeLoop) as runner:
        runner.run(run())


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        *((status, Meaning.TAKEN) for status in (200, 201, 202, 204)),
        *((status, Meaning.MISDIRECTED) for status in (301, 302, 307, 401, 403, 404, 405, 410, 415, 499)),
        *((status, Meaning.REFUSED) for status in (400, 409, 413, 422)),
        *((status, Meaning.AGAIN) for status in (408, 425, 429, 500, 502, 503, 599)),
    ],
)
def test_a_status_has_a_meaning(status: int, meaning: Meaning) -> None:
    """A status says whether records were taken, are refused, or should be posted again."""
    assert meaning_of(status) is meaning


def test_a_body_is_posted() -> None:
    """The body and the headers arrive, with the query of the URL."""

    async def scene(receiver: HttpReceiver, target: HttpTarget) -> None:
        answer = await target.post(b'[{"a": 1}]')
        assert (answer.meaning, answer.status) == (Meaning.TAKEN, 200)
        assert receiver.requests == [[{"a": 1}]]
        assert receiver.headers[0]["X-Part"] == "a"
        assert receiver.paths == ["/records?key=1"]

    play(scene, query="?key=1")


def test_an_answer_is_described() -> None:
    """The start of the answer is in its text, and a number in Retry-After is a time; a date is none."""

    async def scene(receiver: HttpReceiver, target: HttpTarget) -> None:
        receiver.judge = lambda objects: Reply(503, "too much " + "x" * 5_000_000, {"Retry-After": "7"})
        answer = await target.post(b"[]")
        assert (answer.meaning, answer.status, answer.wait_s) == (Meaning.AGAIN, 503, 7)
        assert answer.text.startswith("503 Service Unavailable: too much xxx")
        assert len(answer.text) < 400
        receiver.judge = lambda objects: Reply(429, "", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
        assert await target.post(b"[]") == Answer(Meaning.AGAIN, 429, "429 Too Many Requests")

    play(scene)


def test_redirects_are_not_followed() -> None:
    """A redirect would turn the request into one without a body, so it is an answer of its own."""

    async def scene(receiver: HttpReceiver, target: HttpTarget) -> None:
        receiver.judge = lambda objects: Reply(302, "", {"Location": "/elsewhere"})
        assert (await target.post(b"[]")).meaning is Meaning.MISDIRECTED
        assert len(receiver.requests) == 1

    play(scene)


def test_a_timeout_is_an_outcome() -> None:
    """A server that does not answer in time may have taken the records or not; the next request works."""

    async def scene(receiver: HttpReceiver, target: HttpTarget) -> None:
        receiver.judge = lambda objects: Reply(200, hangs=True)
        answer = await target.post(b"[]")
        assert (answer.meaning, answer.status) == (Meaning.AGAIN, 0)
        assert "Timeout" in answer.text
        receiver.judge = lambda objects: Reply(200)
        assert (await target.post(b"[]")).meaning is Meaning.TAKEN

    play(scene, timeout_s=0.3)


def test_a_server_that_is_not_there_is_an_outcome() -> None:
    """A refused connection is no error of the program."""

    async def run() -> None:
        socket, port = bind_unused_port()
        socket.close()
        target = HttpTarget(f"http://127.0.0.1:{port}/", {}, 5)
        answer = await target.post(b"[]")
        target.close()
        assert (answer.meaning, answer.status) == (Meaning.AGAIN, 0)
        assert "refused" in answer.text

    asyncio.run(run())


@asynccontextmanager
async def target_at(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[HttpTarget]:
    """Provide a target whose connections a function handles."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, asyncio.timeout(20):
        target = HttpTarget(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", {}, 600)
        yield target
        target.close()


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (b"", "the connection ended before a whole answer"),
        (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "or the answer is malformed"),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "or the answer is malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "or the answer is malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "the connection ended before a whole answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", "the answer cannot be read: "),
    ],
    ids=["nothing", "a body that may not be there", "no reason", "no gzip", "a part", "large headers"],
)
def test_an_answer_that_cannot_be_read_is_an_outcome(reply: bytes, text: str) -> None:
    """A server that closes the connection without an answer, or sends a malformed one, is no error of the program."""

    async def run() -> None:
        async def answer_and_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"[]")
            writer.write(reply)
            await writer.drain()
            writer.close()

        async with target_at(answer_and_end) as target:
            answer = await target.post(b"[]")
        assert (answer.meaning, answer.status) == (Meaning.AGAIN, 0)
        assert text in answer.text

    asyncio.run(run())


async def _cancel_post(target: HttpTarget, begun: asyncio.Event) -> None:
    """Begin a request, and cancel it after an event."""
    posting = asyncio.create_task(target.post(b"[]"))
    await begun.wait()
    posting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posting


def test_a_cancelled_request_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """The server sees the end of the connection long before the timeout, and the log has no error of the request."""

    async def run() -> None:
        has_arrived, has_ended = asyncio.Event(), asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"[]")
            has_arrived.set()
            await reader.read()
            writer.close()
            has_ended.set()

        async with target_at(hang) as target:
            await _cancel_post(target, has_arrived)
            target.close()
            await has_ended.wait()

    asyncio.run(run())
    # An error that nothing has retrieved is logged when its future is deleted.
    gc.collect()
    assert caplog.records == []


def test_a_request_that_is_cancelled_while_it_connects_posts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is made after that ends without a byte."""
    is_connecting, may_connect = asyncio.Event(), asyncio.Event()
    connect = TCPClient.connect

    async def connect_late(*arguments: Any, **options: Any) -> IOStream:
        is_connecting.set()
        await may_connect.wait()
        return await connect(*arguments, **options)

    async def run() -> bytes:
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.set_result(await reader.read())
            writer.close()

        async with target_at(receive) as target:
            await _cancel_post(target, is_connecting)
            may_connect.set()
            return await received

    monkeypatch.setattr(TCPClient, "connect", connect_late)
    assert asyncio.run(run()) == b""


def test_a_url_is_shown_without_its_query() -> None:
    """A query may have a secret, so neither logs nor errors show it."""
    assert shown_url("https://h:8080/a/b?token=s3cret#x") == "https://h:8080/a/b"
