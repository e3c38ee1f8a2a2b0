"""Requests reach the leader or the owner from any worker, over at most two hops."""

from __future__ import annotations

import asyncio
import socket
from typing import Self

import pytest

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.workers.rest.client import WorkerClient
from kiel_groups.workers.values import ConnectorId, TaskId
from tests.helpers.fake_workers import FakeGroup, FakeWorker, serving
from tests.helpers.rest_requests import JSON, ask

pytestmark = pytest.mark.unit

CONFIG = {"connector.class": "FileStreamSource", "name": "a/b", "tasks.max": "3"}
TOKEN = "t0ken-of-all-workers"


def workers(count: int = 3) -> list[FakeWorker]:
    """Return the workers of a group with one connector; the first one leads once they are served."""
    group = FakeGroup()
    group.add("a/b", CONFIG)
    return [FakeWorker(group) for _ in range(count)]


@pytest.mark.parametrize("asked", [0, 1])
async def test_changes_are_done_by_the_leader(asked: int) -> None:
    """A worker that does not lead forwards creations, changes and deletions, and passes the answers on."""
    group = workers()
    leader = group[0]
    async with serving(*group):
        url = group[asked].url
        created = await ask(f"{url}/connectors", "POST", {"name": "x", "config": CONFIG | {"name": "x"}})
        changed = await ask(f"{url}/connectors/a%2Fb/config", "PUT", CONFIG)
        refused = await ask(f"{url}/connectors", "POST", {"name": "x", "config": CONFIG | {"name": "x"}})
        deleted = await ask(f"{url}/connectors/a%2Fb", "DELETE")
    assert [got.status for got in (created, changed, refused, deleted)] == [201, 200, 409, 204]
    assert created.headers["Location"] == "/connectors/x"
    assert refused.document == {"error_code": 409, "message": "connector 'x' already exists"}
    assert leader.group.done == [(leader.url, what) for what in ("put x", "put a/b", "delete a/b")]


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_restarts_are_done_by_the_owner(asked: int) -> None:
    """A worker that knows no owner asks the leader, which asks the owner: two hops at most."""
    group = workers()
    async with serving(*group):
        owner = group[2].url
        group[0].group.owners = {ConnectorId("a/b"): owner, TaskId("a/b", 1): owner}
        restarted = await ask(f"{group[asked].url}/connectors/a%2Fb/restart", "POST")
        task = await ask(f"{group[asked].url}/connectors/a%2Fb/tasks/1/restart", "POST")
        several = await ask(f"{group[asked].url}/connectors/a%2Fb/restart?includeTasks=true", "POST")
    assert [got.status for got in (restarted, task, several)] == [204, 204, 202]
    at_leader = [(group[0].url, f"restart a/b-{number}") for number in (0, 2)]
    at_owner = [(owner, what) for what in ("restart a/b", "restart a/b-1")]
    assert group[0].group.done == [*at_owner, at_owner[0], at_leader[0], at_owner[1], at_leader[1]]


async def test_a_request_is_not_forwarded_in_a_circle() -> None:
    """Workers that each take the other for the leader refuse after two hops."""
    one, other = group = workers(2)
    async with serving(*group):
        one.believed_leader, other.believed_leader = other.url, one.url
        got = await ask(f"{one.url}/connectors/a%2Fb", "DELETE")
    assert (got.status, got.headers["Retry-After"]) == (409, "1")
    assert got.document["message"].startswith("the workers do not agree on the leader")
    assert one.group.done == []


@pytest.mark.parametrize("forward", ["false", "False", "no"])
async def test_a_client_may_forbid_forwarding(forward: str) -> None:
    """With ``forward=false``, a worker that is not the right one refuses, and the leader still works."""
    leader, other = group = workers(2)
    async with serving(*group):
        refused = await ask(f"{other.url}/connectors/a%2Fb?forward={forward}", "DELETE")
        done = await ask(f"{leader.url}/connectors/a%2Fb?forward={forward}", "DELETE")
    assert (refused.status, done.status) == (409, 204)


async def test_a_group_without_a_leader_refuses_changes() -> None:
    """The leader may be unknown for a moment, and work may have no owner."""
    leader, other = group = workers(2)
    async with serving(*group):
        leader.group.owners[TaskId("a/b", 0)] = None
        task = await ask(f"{other.url}/connectors/a%2Fb/tasks/0/restart", "POST")
        leader.group.leader = None
        change = await ask(f"{other.url}/connectors/a%2Fb", "DELETE")
        restart = await ask(f"{other.url}/connectors/a%2Fb/restart", "POST")
    assert [got.status for got in (task, change, restart)] == [409, 409, 409]
    assert task.document["message"].startswith("a/b-0 is not assigned to any worker")


async def test_a_url_may_end_with_a_slash() -> None:
    """A worker recognizes its own URL, and reaches others, in either form."""
    leader, other = group = workers(2)
    async with serving(*group):
        leader.believed_leader = other.believed_leader = f"{leader.url}/"
        got = [await ask(f"{worker.url}/connectors/a%2Fb/config", "PUT", CONFIG) for worker in group]
    assert [each.status for each in got] == [200, 200]


async def test_a_leader_that_does_not_answer_is_named() -> None:
    """The answer is 503 with ``Retry-After``: if the leader has died, the group has another one soon."""
    (worker,) = group = workers(1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        worker.believed_leader = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with serving(*group):
            got = await ask(f"{worker.url}/connectors/a%2Fb", "DELETE")
    assert (got.status, got.headers["Retry-After"]) == (503, "1")
    text = f"the request cannot be forwarded: no worker answers at {worker.believed_leader}: connection refused; "
    assert got.document["message"].startswith(text)


@pytest.mark.parametrize("body", [b"hi", b"[" * 5_000], ids=["text", "nested JSON"])
async def test_a_leader_that_is_no_worker_is_named(body: bytes) -> None:
    """The answer is 502 without ``Retry-After``: another server has the port."""
    (worker,) = group = workers(1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with serving(*group), await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        worker.believed_leader = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
        got = await ask(f"{worker.url}/connectors/a%2Fb", "DELETE")
    assert (got.status, "Retry-After" in got.headers) == (502, False)
    assert got.document["message"].endswith("is not the interface of a worker: its answer 200 is not JSON")


async def test_a_rebalance_of_the_leader_is_passed_on() -> None:
    """Clients see that they may try again."""
    leader, other = group = workers(2)
    leader.rebalancing = True
    async with serving(*group):
        got = await ask(f"{other.url}/connectors/a%2Fb", "DELETE")
    assert (got.status, got.headers["Retry-After"]) == (409, "1")


async def test_workers_give_each_other_the_token() -> None:
    """The second worker asks for the token, too. If it has another one, the client's token is not to blame."""
    leader, other = group = workers(2)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with serving(*group, token=TOKEN):
        done = await ask(f"{other.url}/connectors/a%2Fb", "DELETE", headers=headers)
        stranger = FakeWorker(leader.group)
        async with serving(stranger, token=TOKEN + "!"):
            other.believed_leader = stranger.url
            refused = await ask(f"{other.url}/connectors/a%2Fb", "DELETE", headers=headers)
    assert (done.status, refused.status) == (204, 502)
    assert refused.document["message"].endswith(
        "has another token than this one; give all workers of the group the same token"
    )


class Stranger:
    """A server that is no worker: it keeps what it receives, and answers each request with the same bytes."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}") -> None:
        self._answer = answer
        self.received: list[bytes] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self._answer)
        writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


def redirect_to(url: str) -> bytes:
    return f"HTTP/1.1 307 -\r\nLocation: {url}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.parametrize("suffix", ["", "/", "/connectors", "?", "#"])
async def test_the_token_goes_to_no_url_that_zookeeper_does_not_confirm(suffix: str) -> None:
    """A client of the brokers can join the group with any URL, and lead it; nothing is sent there."""
    leader, other = group = workers(2)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with serving(*group, token=TOKEN), Stranger() as stranger:
        leader.group.registered = {leader.url, other.url}
        other.believed_leader = stranger.url + suffix
        leader.group.owners[TaskId("a/b", 0)] = f"{leader.url.replace('//', f'//{leader.url[7:]}@')}{suffix}"
        got = [
            await ask(f"{other.url}/connectors/a%2Fb/config", "PUT", CONFIG, JSON | headers),
            await ask(f"{other.url}/connectors/a%2Fb/restart", "POST", headers=headers),
            await ask(f"{leader.url}/connectors/a%2Fb/tasks/0/restart", "POST", headers=headers),
        ]
        done = await ask(f"{leader.url}/connectors/a%2Fb", "DELETE", headers=headers)
    assert [(each.status, each.headers["Retry-After"]) for each in got] == [(503, "1")] * 3
    start = f"the request is not forwarded to {stranger.url}{suffix}, which the group names as the URL of a worker: no "
    assert [each.document["message"].startswith(start) for each in got] == [True, True, False]
    assert (stranger.received, done.status) == ([], 204)


async def test_no_redirect_is_followed_with_the_token() -> None:
    """A port that a worker had may belong to another program by now. Neither workers nor the command line follow it."""
    (worker,) = group = workers(1)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with serving(*group, token=TOKEN), Stranger() as thief, Stranger(redirect_to(thief.url)) as former:
        worker.believed_leader = former.url
        got = await ask(f"{worker.url}/connectors/a%2Fb", "DELETE", headers=headers)
        async with WorkerClient(former.url, TOKEN) as client:
            with pytest.raises(ProtocolError, match=rf"it redirects to '{thief.url}/', where the request is not sent"):
                await client.call("GET", "/connectors")
    assert (got.status, "Location" in got.headers) == (502, False)
    assert f"it redirects to '{thief.url}/', where the request is not sent" in got.document["message"]
    assert (len(former.received), thief.received) == (2, [])


async def test_a_listener_reports_that_its_port_is_in_use() -> None:
    """The error names the address, so that users find the other process, and says what to do."""
    (worker,) = group = workers(1)
    async with serving(*group):
        port = int(worker.url.rpartition(":")[2])
        with pytest.raises(
            ConfigError,
            match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use; choose another port, or 0 for one",
        ):
            async with serving(FakeWorker(FakeGroup()), host="127.0.0.1", port=port):
                pass
