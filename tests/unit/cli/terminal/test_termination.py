"""The end of a command by a signal."""

from __future__ import annotations

import signal

import pytest

from kiel_groups.cli.terminal.termination import BlockingTermination

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_requests_the_end_and_the_second_kills(number: int, status: int) -> None:
    """The first signal, SIGINT or SIGTERM, restores the default handlers, so any second signal ends the process."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        ending = BlockingTermination()
        assert (ending.asked.is_set(), ending.status) == (False, None)
        signal.raise_signal(number)
        assert (ending.asked.is_set(), ending.status) == (True, status)
        assert {signal.getsignal(each) for each in before} == {signal.SIG_DFL}
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
