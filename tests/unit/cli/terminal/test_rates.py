"""The rates in the summaries of ``consume`` and ``produce``: idle time before and after the records does not count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.cli.terminal import line_sender, record_printer
from kiel_groups.cli.terminal.line_sender import LineSender
from kiel_groups.cli.terminal.record_printer import RecordPrinter

pytestmark = pytest.mark.unit


class Clock:
    """A clock that the fakes advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        for module in (line_sender, record_printer):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))


class Consumer:
    """A consumer whose records come after ``waits_s``, the last one of which precedes the end."""

    def __init__(self, clock: Clock, *waits_s: float) -> None:
        self._clock, self._waits_s = clock, waits_s

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for wait_s in self._waits_s[:-1]:
            self._clock.now_s += wait_s
            yield b"record"
        self._clock.now_s += self._waits_s[-1]

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("waits_s", "rate"),
    [((60.0, 0.5, 0.5, 60.0), 2.0), ((60.0, 0.0, 60.0), 1000.0), ((60.0, 60.0), None), ((60.0,), None)],
)
async def test_printed_records_have_a_rate_from_the_first_to_the_last(
    monkeypatch: pytest.MonkeyPatch, waits_s: tuple[float, ...], rate: float | None
) -> None:
    """A minute before the first and after the last record says nothing about the speed; one record has no rate."""
    clock = Clock(monkeypatch)

    async def write(line: bytes) -> None: ...

    async def subscribe() -> None: ...

    output = SimpleNamespace(write=write, when_reader_goes=lambda callback: None)
    made = RecordPrinter(cast(Any, Consumer(clock, *waits_s)), cast(Any, output), bytes)  # type: ignore[arg-type]
    await made.run(subscribe)
    assert made.rate == rate
    assert made.took_s == pytest.approx(sum(waits_s))


async def test_sent_lines_are_timed_from_the_first_to_the_last_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of a slow pipe may begin late, and the pipe may stay open."""
    clock = Clock(monkeypatch)
    outcomes: list[asyncio.Future[Any]] = []

    def produce(*_: object, **__: object) -> asyncio.Future[Any]:
        outcomes.append(asyncio.get_running_loop().create_future())
        return outcomes[-1]

    async def drain() -> None:
        clock.now_s += 2.0
        for outcome in outcomes:
            outcome.set_result(None)
        await asyncio.sleep(0)

    class Source:
        async def lines(self) -> AsyncIterator[list[bytes]]:
            clock.now_s += 60.0
            yield [b"a", b"b"]
            sender._settle()
            clock.now_s += 60.0

    sender = LineSender(cast(Any, SimpleNamespace(produce=produce, drain=drain, unsent_count=0)), "t", say=print)
    await sender._send(cast(Any, Source()))
    sender._settle()
    assert (sender.stored, sender.took_s) == (2, 2.0)
