"""Lines that are sent as records: the report of those that could not be sent, and their time after a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from kiel_groups.cli.terminal.line_sender import LineSender, ranges
from kiel_groups.clients import Producer
from tests.helpers.fake_broker import PRODUCE, FakeBroker
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([3, 4, 5], "3 to 5"),
        ([1, 3, 4, 9], "1, 3 to 4, 9"),
        (list(range(0, 30, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 5 more ranges"),
    ],
)
def test_consecutive_numbers_are_a_range(numbers: list[int], text: str) -> None:
    """The numbers of a million failed lines must fit into one line."""
    assert ranges(numbers) == text


async def test_lines_have_their_time_if_a_signal_comes_after_the_end_of_the_input() -> None:
    """
    Ctrl-C ends all processes of a pipe, so the input may end just before the signal: a request in flight is awaited.
    """

    class Source:
        async def lines(self) -> AsyncIterator[list[bytes]]:
            yield [b"a", b"b"]

    async with FakeBroker({"t": 1}) as broker:
        broker.gates[PRODUCE] = asyncio.Event()
        sender = LineSender(Producer([str(broker.address)]), "t", say=print)
        running = asyncio.create_task(sender.run(cast(Any, Source())))
        await eventually(lambda: broker.count(PRODUCE), "the lines are sent")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)
        broker.gates[PRODUCE].set()
        assert await running == 128 + signal.SIGTERM
        assert (sender.stored, sender.unknown) == (2, 0)
