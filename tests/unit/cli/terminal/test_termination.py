"""The end of a command by a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from kiel_groups.cli.terminal.termination import BlockingTermination, Termination

pytestmark = pytest.mark.unit

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the handlers of the signals."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_requests_the_end_and_the_second_kills(number: int, status: int) -> None:
    """The first signal, SIGINT or SIGTERM, restores the default handlers, so any second signal ends the process."""
    ending = BlockingTermination()
    assert (ending.asked.is_set(), ending.status) == (False, None)
    signal.raise_signal(number)
    assert (ending.asked.is_set(), ending.status) == (True, status)
    assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_DFL}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_first_signal_cancels_the_task_and_the_second_kills(number: int, status: int) -> None:
    """Python's own handler of SIGINT would wait for tasks that do not end."""

    async def command() -> Termination:
        ending = Termination()
        signal.raise_signal(number)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        return ending

    ending = await asyncio.create_task(command())
    assert ending.status == status
    assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_DFL}
