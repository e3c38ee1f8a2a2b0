"""What a SIGTERM does to the process of a query."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from kiel_groups.spark.member.process_exit import default_on_sigterm, on_sigterm

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    """Nobody handles the signal before, nor afterwards."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_it_leaves_and_exits() -> None:
    """With the status that a shell gives to whoever is ended so."""
    left = []
    on_sigterm(lambda: left.append(True) or True)  # type: ignore[func-returns-value]
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert left == [True]
    assert ended.value.code == 143


def test_whoever_is_leaving_is_not_interrupted() -> None:
    """Spark closes its channel, too: what that has begun goes on to its end."""
    on_sigterm(lambda: False)
    signal.raise_signal(signal.SIGTERM)


def test_it_is_undone() -> None:
    """A process that goes on without a query ends as any other."""
    on_sigterm(lambda: True)
    default_on_sigterm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_somebody_elses_handler_stays() -> None:
    """Neither replaced nor undone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    on_sigterm(lambda: True)
    default_on_sigterm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
