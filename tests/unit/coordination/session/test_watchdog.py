"""The watchdog: who does not get on is told to hurry, and then given up; on time that a test moves by hand."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.coordination.session.watchdog import Watchdog
from kiel_groups.coordination.zookeeper.daemon_threads import Ticker
from kiel_groups.coordination.zookeeper.runtime import Ticking, replaced
from kiel_groups.errors import ConfigError
from kiel_groups.listeners import Stall
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from tests.helpers.manual_runtime import ManualRuntime

pytestmark = pytest.mark.unit

PARTITIONS = frozenset({TopicPartition("t", 3), TopicPartition("t", 1)})


@pytest.fixture
def machine() -> Iterator[ManualRuntime]:
    """Time passes when the test says so."""
    manual = ManualRuntime()
    with replaced(manual):
        yield manual


class Watched:
    """An application under a watchdog; ``works`` is what it is busy with."""

    def __init__(
        self,
        machine: ManualRuntime,
        *,
        work_ms: int = 0,
        loop_ms: int = 0,
        hurry: Callable[[Stall], None] | None = None,
    ) -> None:
        self.machine = machine
        self.works: list[Work] = []
        self.hurried: list[Stall] = []
        self.given_up: list[str] = []
        self.metrics = Metrics()
        config = GroupConfig(group="g", max_poll_interval_ms=work_ms, loop_stall_ms=loop_ms)
        hurry = hurry or self.hurried.append
        self.watchdog = Watchdog(config, lambda: self.works, hurry, self.given_up.append, self.metrics)
        self.watchdog.start()

    def busy(self, token: object = "a", kind: str = "processing") -> None:
        self.works = [Work(token, kind, PARTITIONS)]  # type: ignore[arg-type]


async def test_work_that_takes_too_long_is_hurried_and_then_given_up(machine: ManualRuntime) -> None:
    """At half of its time the hook is told, once; when it is over, the session is given up, once."""
    watched = Watched(machine, work_ms=10_000)
    watched.busy()
    machine.pass_s(4.9)
    assert not watched.hurried
    machine.pass_s(2)
    assert [(stall.kind, stall.partitions, stall.limit_s) for stall in watched.hurried] == [
        ("processing", PARTITIONS, 10)
    ]
    assert watched.hurried[0].elapsed_s == pytest.approx(5)
    machine.pass_s(3)
    assert not watched.given_up
    machine.pass_s(1.1)
    assert watched.given_up == [
        "watchdog: the application has been busy with the same record or values for 10.0 s of the 10 s that"
        " max_poll_interval_ms allows; t:1 waits for it, and 1 more"
    ]
    machine.pass_s(60)
    assert len(watched.given_up) == len(watched.hurried) == 1
    assert watched.metrics.counter("watchdog_exits", kind="processing") == 1
    assert watched.metrics.counter("stalls", kind="processing") == 1


async def test_work_that_gets_on_is_left_alone(machine: ManualRuntime) -> None:
    """Another record, or none, begins the time anew, even where the same record comes again later."""
    watched = Watched(machine, work_ms=10_000)
    for token in ["a", "b", None, "a", "b", "a"]:
        watched.busy(token)
        if token is None:
            watched.works = []
        machine.pass_s(8)
    assert not watched.given_up
    assert len(watched.hurried) == 5


async def test_equal_records_are_not_the_same_work(machine: ManualRuntime) -> None:
    """A record that is delivered again is a new piece of work, however equal."""
    watched = Watched(machine, work_ms=10_000)
    for number in range(4):
        watched.busy(TopicPartition("t", number - number))
        machine.pass_s(6)
    assert not watched.given_up


async def test_the_slowest_of_several_works_counts(machine: ManualRuntime) -> None:
    """A hook that hangs is seen beside records that flow."""
    watched = Watched(machine, work_ms=10_000)
    hook = Work("hook", "listener", PARTITIONS)
    for number in range(6):
        watched.works = [Work(f"record {number}", "processing", PARTITIONS), hook]
        machine.pass_s(2)
    assert [stall.kind for stall in watched.hurried] == ["listener"]
    assert "a hook of the listener has been running for 10.0 s" in watched.given_up[0]


async def test_a_blocked_loop_is_hurried_and_given_up(machine: ManualRuntime) -> None:
    """While the loop never turns; time passes without it here, for this coroutine does not yield."""
    watched = Watched(machine, loop_ms=10_000)
    machine.pass_s(9.9)
    assert [(stall.kind, stall.partitions) for stall in watched.hurried] == [("loop", frozenset())]
    assert not watched.given_up
    machine.pass_s(1)
    assert watched.given_up == [
        "watchdog: the event loop has been blocked for 10.0 s of the 10 s that loop_stall_ms allows"
    ]


async def test_a_loop_that_turns_is_left_alone(machine: ManualRuntime) -> None:
    """However seldom, as long as it is in time."""
    watched = Watched(machine, loop_ms=10_000)
    for _ in range(10):
        machine.pass_s(9)
        await asyncio.sleep(0)
    assert not watched.given_up


async def test_the_time_of_a_stopped_process_does_not_count(machine: ManualRuntime) -> None:
    """SIGSTOP and a suspended machine stop the watchdog, too: nobody was slow."""
    watched = Watched(machine, work_ms=10_000, loop_ms=10_000)
    watched.busy()
    for _ in range(2):
        machine.pass_s(1)
        machine.sleep_s(3_600)
    machine.pass_s(0)
    assert not watched.given_up
    assert not watched.hurried


@pytest.mark.parametrize(("work_ms", "loop_ms"), [(0, 0), (0, 10_000), (10_000, 0)])
async def test_a_limit_of_0_is_none(machine: ManualRuntime, work_ms: int, loop_ms: int) -> None:
    """Each by itself; without any there is no thread."""
    watched = Watched(machine, work_ms=work_ms, loop_ms=loop_ms)
    watched.busy()
    machine.pass_s(60)
    assert [stall.kind for stall in watched.hurried] == ["processing"] * bool(work_ms) + ["loop"] * bool(loop_ms)
    assert (machine.tickers[0].due_s is None) == (not work_ms and not loop_ms) or watched.given_up


async def test_a_watchdog_that_was_stopped_tells_nobody(machine: ManualRuntime) -> None:
    """Its session is over."""
    watched = Watched(machine, work_ms=10_000)
    watched.busy()
    machine.pass_s(1)
    watched.watchdog.stop()
    machine.pass_s(60)
    assert not watched.given_up
    assert not watched.hurried
    assert machine.tickers[0].ended


async def test_a_watchdog_that_cannot_look_looks_again(
    machine: ManualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the moment must not leave a member unwatched."""
    watched = Watched(machine, work_ms=10_000)
    watched.works = None  # type: ignore[assignment]
    machine.pass_s(5)
    assert "the watchdog could not check for progress" in caplog.text
    watched.busy()
    machine.pass_s(12)
    assert len(watched.given_up) == 1


class ThreadedRuntime(ManualRuntime):
    """The watchdog itself ticks by hand; what it starts has real threads."""

    def ticker(self, tick: Callable[[], float | None], name: str) -> Ticking:  # type: ignore[override]
        return super().ticker(tick, name) if name == "watchdog" else Ticker(tick, name)


class OwnedPartitions(logging.Handler):
    """A log that takes no line of other threads while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.home = threading.current_thread()
        self.waited_here = False

    def createLock(self) -> None:
        """None: the last line is told on the thread of the test."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        if threading.current_thread() is self.home:
            self.waited_here |= record.levelno < logging.ERROR
        else:
            self.let_go.wait()


@pytest.mark.parametrize("held", ["hook", "log"])
async def test_a_hook_or_a_log_that_hangs_does_not_hold_the_watchdog(held: str) -> None:
    """Both are asked on another thread; the session is given up in time although they never return."""
    home, let_go, called = threading.current_thread(), threading.Event(), threading.Event()
    log, holding = logging.getLogger("kiel_groups.coordination.session.watchdog"), OwnedPartitions()
    there: list[bool] = []

    def hang(_: Stall) -> None:
        there.append(threading.current_thread() is home)
        called.set()
        if not there[-1]:
            let_go.wait()

    try:
        if held == "log":
            log.addHandler(holding)
        with replaced(machine := ThreadedRuntime()):
            watched = Watched(machine, work_ms=10_000, hurry=hang)
            watched.busy()
            machine.pass_s(6)
            if held == "hook":
                assert called.wait(30)
            assert not watched.given_up
            machine.pass_s(6)
        assert len(watched.given_up) == 1
        assert not any(there)
        assert not holding.waited_here
    finally:
        log.removeHandler(holding)
        holding.let_go.set()
        let_go.set()


async def test_the_session_is_given_up_before_it_is_told(
    machine: ManualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """A log whose lock a blocked loop holds must not keep the gate open."""
    watched = Watched(machine, work_ms=10_000)
    told: list[str] = []
    watched.given_up = told
    watched.watchdog._on_stalled = lambda reason: told.append(caplog.text)
    watched.busy()
    machine.pass_s(12)
    assert "session is closed" not in told[0]
    assert "session is closed" in caplog.text


async def test_an_exit_does_not_end_the_watchdog(machine: ManualRuntime) -> None:
    """SystemExit ends a thread without a word; an application's own object may raise it."""
    watched = Watched(machine, work_ms=10_000)

    def leave() -> list[Work]:
        raise SystemExit(1)

    look, watched.watchdog._in_progress = watched.watchdog._in_progress, leave
    machine.pass_s(5)
    watched.watchdog._in_progress = look
    watched.busy()
    machine.pass_s(12)
    assert len(watched.given_up) == 1


@pytest.mark.parametrize("setting", ["max_poll_interval_ms", "loop_stall_ms"])
def test_limits_are_whole_numbers(setting: str) -> None:
    """None of them negative."""
    with pytest.raises(ConfigError, match=f"{setting}: -1 given; expected a whole number of at least 0"):
        GroupConfig(group="g", **{setting: -1})  # type: ignore[arg-type]
