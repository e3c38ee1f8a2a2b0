"""SIGTERM sent to the process of a query that is a member."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from kiel_groups.spark.member import default_on_sigterm, on_sigterm

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    """Restore the signal's default handler before the test, and the previous one after it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_leaves_the_group_and_exits() -> None:
    """
    After SIGTERM, the query leaves the group and exits. The exit status is 143, as for a process that SIGTERM ends.
    """
    left = []
    on_sigterm(lambda: left.append(True) or True)  # type: ignore[func-returns-value]
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert left == [True]
    assert ended.value.code == 143


def test_a_leave_in_progress_is_not_interrupted() -> None:
    """
    SIGTERM does not end a process that is already leaving the group, as when Spark has closed the channel of the
    process before.
    """
    on_sigterm(lambda: False)
    signal.raise_signal(signal.SIGTERM)


def test_the_handler_is_removed() -> None:
    """After the last query SIGTERM has its default effect again."""
    on_sigterm(lambda: True)
    default_on_sigterm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_handler_stays() -> None:
    """The application's own handler is neither replaced nor removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    on_sigterm(lambda: True)
    default_on_sigterm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
