"""Connections to the REST interface are bounded in number and time, and leave descriptors for the worker's work."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from kiel_groups.rest import server as rest_server
from tests.helpers.commands import Running
from tests.helpers.fake_workers import FakeGroup, FakeWorker, serving
from tests.helpers.rest_requests import address_of, ask
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
#: The headers of a request whose body does not follow.
BUSY = GET + b"Content-Length: 9\r\n\r\n"


@asynccontextmanager
async def opened_to(
    worker: FakeWorker, count: int, data: bytes = b""
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Open connections, and send these bytes on each of them."""
    opened = [await asyncio.open_connection(*address_of(worker.url)) for _ in range(count)]
    try:
        for _, writer in opened:
            writer.write(data)
        yield opened
    finally:
        for _, writer in opened:
            writer.close()


async def test_further_connections_wait_for_others_to_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """None is refused: each is answered when a request ends. The log says so once, not for each of them."""
    monkeypatch.setattr(rest_server, "_MOST_CONNECTIONS", 3)
    worker = FakeWorker(FakeGroup())
    async with serving(worker), opened_to(worker, 3, BUSY) as opened:
        await asyncio.sleep(0.1)
        waiting = [asyncio.ensure_future(ask(worker.url)) for _ in range(5)]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert not done
        opened[1][1].close()
        got = await asyncio.gather(*waiting)
    assert [each.status for each in got] == [200] * 5
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == (
        "the REST interface accepts no connection at the moment: 3 are open, one for each 4 file descriptors that the"
        " process may have, and at most 3; further ones wait"
    )


async def test_idle_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound, the one that has been idle for the longest time is closed for a new one, which is answered soon."""
    monkeypatch.setattr(rest_server, "_MOST_CONNECTIONS", 3)
    worker = FakeWorker(FakeGroup())
    async with serving(worker), opened_to(worker, 1, BUSY) as busy, opened_to(worker, 2) as opened:
        for reader, _ in opened:
            async with opened_to(worker, 1), asyncio.timeout(2):
                assert (await ask(worker.url)).status == 200
                assert await reader.read() == b""
        assert not busy[0][0].at_eof()


async def test_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection, one that was used, and one whose headers come byte by byte are closed after the same time."""
    monkeypatch.setattr(rest_server, "_IDLE_TIMEOUT_S", 0.3)
    worker = FakeWorker(FakeGroup())
    async with serving(worker), opened_to(worker, 3) as opened:
        (unused, _), (used_reader, used), (_, slow) = opened
        used.write(GET + b"\r\n")

        async def send_slowly() -> None:
            for byte in GET + b"X: " + b"y" * 1_000:
                slow.write(bytes([byte]))
                await slow.drain()
                await asyncio.sleep(0.02)

        sending = asyncio.ensure_future(send_slowly())
        got = await asyncio.wait_for(ask(worker.url), 5)
        assert (await unused.read(), (await used_reader.read())[:12]) == (b"", b"HTTP/1.1 200")
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(sending, 5)
    assert got.status == 200


async def test_an_answer_that_the_client_does_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection would never be idle."""
    monkeypatch.setattr(rest_server, "_MOST_CONNECTIONS", 1)
    monkeypatch.setattr(rest_server, "SEND_TIMEOUT_S", 0.2)
    group = FakeGroup()
    group.add("c", {"connector.class": "X", "text": "x" * (16 << 20)})
    worker = FakeWorker(group)
    async with serving(worker):
        with socket.socket() as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.connect(address_of(worker.url))
            greedy.sendall(GET.replace(b"/ ", b"/connectors/c ") + b"\r\n")
            got = await asyncio.wait_for(ask(worker.url), 5)
    assert got.status == 200


@pytest.mark.parametrize("headers", [b"", b"Authorization: Bearer wrong\r\n"])
async def test_a_client_without_access_keeps_no_connection(headers: bytes) -> None:
    """It could keep all of them by a request now and then. A client with the token may send the next request."""
    worker = FakeWorker(FakeGroup())
    token = "t0ken-of-all-workers"
    async with serving(worker, token=token):
        reader, writer = await asyncio.open_connection(*address_of(worker.url))
        writer.write(GET + headers + b"\r\n")
        refused = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        reader, writer = await asyncio.open_connection(*address_of(worker.url))
        for _ in range(2):
            writer.write(GET + f"Authorization: Bearer {token}\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.readuntil(b"}"), 5)
            assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert refused.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nConnection: close\r\n" in refused
    assert refused.endswith(b"'Authorization: Bearer TOKEN'\"}")


#: A worker's process with few descriptors. Its work opens a file again and again. At the end of the input, it says how
#: often that has failed, and how much CPU time it has used.
PROGRAM = """
import asyncio, logging, os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from tests.helpers.fake_workers import FakeGroup, FakeWorker, serving

async def main():
    taken = [open(os.devnull) for _ in range(int(sys.argv[2]))]
    worker, failures = FakeWorker(FakeGroup()), 0
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with serving(worker):
        print(worker.url)
        began_s, rounds = time.process_time(), 0
        while not ended.done():
            try:
                for file in [open(os.devnull) for _ in range(10)]:
                    file.close()
            except OSError:
                failures += 1
            rounds += 1
            await asyncio.sleep(0.01)
        print(failures, time.process_time() - began_s, rounds)

logging.basicConfig(format="%(message)s")
asyncio.run(main())
"""


@pytest.mark.parametrize(("limit", "taken"), [(128, 0), (128, 80)], ids=["by connections", "by the work"])
async def test_hundreds_of_idle_connections_leave_descriptors_to_the_work(limit: int, taken: int) -> None:
    """
    No task fails, and the loop does not try to accept again and again. A client is answered soon; if the work
    uses the descriptors, when others go.
    """
    with Running(["-c", PROGRAM, str(limit), str(taken)], typed=True) as process:
        (url,) = await asyncio.to_thread(process.wait_for_lines, 1)
        host, _, port = url.removeprefix("http://").partition(":")
        with ExitStack() as opened:
            for _ in range(100):
                connection = opened.enter_context(socket.socket())
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
            await eventually(lambda: process.errors, "the warning")
            if taken:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(ask(url), 0.5)
            else:
                assert (await asyncio.wait_for(ask(url), 5)).status == 200
        got = await asyncio.wait_for(ask(url), 10)
        assert process.process.stdin is not None
        process.process.stdin.close()
        assert await asyncio.to_thread(process.wait) == 0
        failures, cpu_s, rounds = map(float, process.lines[1].split())
    assert (got.status, failures) == (200, 0)
    # A loop that tried again and again would use all of the 10 ms.
    assert cpu_s < 0.005 * rounds, f"{cpu_s} s of CPU time in {rounds} rounds"
    (warning,) = process.errors
    reason = (
        "32 are open, one for each 4" if taken == 0 else "the process uses 112 file descriptors, which are nearly all"
    )
    assert warning.startswith(f"the REST interface accepts no connection at the moment: {reason}")


async def test_accepting_pauses_when_the_system_has_no_descriptor_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The socket stays ready meanwhile. Tornado's own server would try again for ever, with a traceback each time."""
    monkeypatch.setattr(rest_server, "_PAUSE_S", 0.2)
    accepted: list[int] = []
    worker = FakeWorker(FakeGroup())

    class Short(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            accepted.append(1)
            if len(accepted) < 3:
                raise OSError(24, os.strerror(24))
            return super().accept()

    made = rest_server.bind_sockets

    def bind(*arguments: object) -> list[socket.socket]:
        return [Short(fileno=each.detach()) for each in made(*arguments)]  # type: ignore[arg-type]

    monkeypatch.setattr(rest_server, "bind_sockets", bind)
    async with serving(worker):
        got = await asyncio.wait_for(ask(worker.url), 5)
    assert (got.status, len(accepted)) == (200, 4)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "the REST interface accepts no connection at the moment: Too many open files"
    ]
