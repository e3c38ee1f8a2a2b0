"""``doctor`` compares all servers of ZooKeeper, although some of them stop answering meanwhile."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from kiel_groups.config import HostPort
from kiel_groups.ops.doctor import _ask_servers
from kiel_groups.ops.views.cluster_checks import ServerAnswer, check_ensemble, check_server

pytestmark = pytest.mark.unit

#: The connections on which ``doctor`` asks each server on its own: three sessions, and one four-letter command.
_BEFORE_COMPARISON = 4


async def examined(*servers: Callable[[int, int], int | None]) -> list[ServerAnswer]:
    """
    Ask servers of ZooKeeper, and return their answers.

    A server is a function of the number of its connection and of the session that the client wants to continue (0 for
    a new one). It returns the session timeout in milliseconds, 0 to refuse the session, or None to stay silent.
    """
    async with AsyncExitStack() as stack:
        addresses = []
        for granted in servers:
            server = await asyncio.start_server(_served_by(granted), "127.0.0.1")
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            addresses.append(HostPort(*server.sockets[0].getsockname()[:2]))
        return await _ask_servers(addresses, 0.3)


def _served_by(granted: Callable[[int, int], int | None]) -> Callable[..., object]:
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        number = count
        try:
            head = await reader.readexactly(4)
            if head == b"srvr":
                writer.write(b"Zookeeper version: 3.4.6-1\nMode: follower\n")
                return
            request = await reader.readexactly(struct.unpack(">i", head)[0])
            timeout_ms = granted(number, struct.unpack_from(">q", request, 16)[0])
            if timeout_ms is None:
                await reader.read()
                return
            answer = struct.pack(">iiqi16s?", 0, timeout_ms, 7, 16, bytes(16), False)
            writer.write(struct.pack(">i", len(answer)) + answer)
        finally:
            writer.close()

    return serve


def member(_: int, session: int) -> int:
    return 10_000


def stranger(_: int, session: int) -> int:
    return 0 if session else 10_000


def silent_later(number: int, session: int) -> int | None:
    return None if number > _BEFORE_COMPARISON else 10_000


async def test_servers_after_a_silent_one_are_compared() -> None:
    """The silent server has a problem of its own; the stranger behind it is found."""
    answers = await examined(member, silent_later, stranger)
    assert [(each.problem, each.is_stranger) for each in answers] == [
        ("", False),
        ("no answer within 0.3 s", False),
        ("", True),
    ]
    assert [bool(check_server(each).findings) for each in answers] == [False, True, False]
    (finding,) = check_ensemble(answers).findings
    assert f"{answers[2].address}: of another ensemble than {answers[0].address}" in finding.text


async def test_the_next_server_replaces_a_silent_first_one() -> None:
    """The others are compared with it, and the text names it."""
    answers = await examined(silent_later, member, stranger)
    assert [(each.problem, each.is_stranger) for each in answers] == [
        ("no answer within 0.3 s", False),
        ("", False),
        ("", True),
    ]
    assert f"than {answers[1].address}" in check_ensemble(answers).findings[0].text
