"""The watchdog warns about a member without progress, and then closes its session."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from kiel_groups.config import GroupConfig
from kiel_groups.errors import ConfigError
from kiel_groups.listeners import Stall
from kiel_groups.members.partition_handler import Work
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.runtime import Ticker, Ticking
from kiel_groups.zookeeper.watchdog import Watchdog
from tests.helpers.manual_runtime import ManualRuntime

pytestmark = pytest.mark.unit

PARTITIONS = frozenset({TopicPartition("t", 3), TopicPartition("t", 1)})


class Watched:
    """An application with a watchdog. ``works`` lists its work in progress."""

    def __init__(
        self,
        runtime: ManualRuntime,
        *,
        work_ms: int = 0,
        loop_ms: int = 0,
        on_stall: Callable[[Stall], None] | None = None,
    ) -> None:
        self.runtime = runtime
        self.works: list[Work] = []
        self.stalls: list[Stall] = []
        self.given_up: list[str] = []
        self.metrics = Metrics()
        config = GroupConfig(group="g", max_poll_interval_ms=work_ms, loop_stall_ms=loop_ms)
        on_stall = on_stall or self.stalls.append
        self.watchdog = Watchdog(config, lambda: self.works, on_stall, self.given_up.append, self.metrics, runtime)
        self.watchdog.start()

    def busy(self, token: object = "a", kind: str = "processing") -> None:
        self.works = [Work(token, kind, PARTITIONS)]  # type: ignore[arg-type]


async def test_slow_work_is_reported_and_then_ends_the_session(runtime: ManualRuntime) -> None:
    """For slow work, the hook is called once, at half of the limit, and the session is given up once, at the limit."""
    watched = Watched(runtime, work_ms=10_000)
    watched.busy()
    runtime.pass_s(4.9)
    assert not watched.stalls
    runtime.pass_s(2)
    assert [(stall.kind, stall.partitions, stall.limit_s) for stall in watched.stalls] == [
        ("processing", PARTITIONS, 10)
    ]
    assert watched.stalls[0].elapsed_s == pytest.approx(5)
    runtime.pass_s(3)
    assert not watched.given_up
    runtime.pass_s(1.1)
    assert watched.given_up == [
        "watchdog: the application has been busy with the same record or values for 10.0 s of the 10 s that"
        " max_poll_interval_ms allows; t:1 waits for it, and 1 more"
    ]
    runtime.pass_s(60)
    assert len(watched.given_up) == len(watched.stalls) == 1
    assert watched.metrics.counter("watchdog_exits", kind="processing") == 1
    assert watched.metrics.counter("stalls", kind="processing") == 1


async def test_each_new_work_restarts_the_limit(runtime: ManualRuntime) -> None:
    """The limit restarts with each new work, also when the same record is delivered again later."""
    watched = Watched(runtime, work_ms=10_000)
    for token in ["a", "b", None, "a", "b", "a"]:
        watched.busy(token)
        if token is None:
            watched.works = []
        runtime.pass_s(8)
    assert not watched.given_up
    assert len(watched.stalls) == 5


async def test_an_equal_record_is_another_work(runtime: ManualRuntime) -> None:
    """A record that is delivered again counts as new work, although it equals the first one."""
    watched = Watched(runtime, work_ms=10_000)
    for number in range(4):
        watched.busy(TopicPartition("t", number - number))
        runtime.pass_s(6)
    assert not watched.given_up


async def test_the_slowest_work_counts(runtime: ManualRuntime) -> None:
    """The slowest work counts: a hook that hangs is detected although records make progress."""
    watched = Watched(runtime, work_ms=10_000)
    hook = Work("hook", "listener", PARTITIONS)
    for number in range(6):
        watched.works = [Work(f"record {number}", "processing", PARTITIONS), hook]
        runtime.pass_s(2)
    assert [stall.kind for stall in watched.stalls] == ["listener"]
    assert "a hook of the listener has been running for 10.0 s" in watched.given_up[0]


async def test_a_blocked_loop_is_reported_and_ends_the_session(runtime: ManualRuntime) -> None:
    """
    A blocked event loop is reported, and then ends the session. The test does not yield while it advances the time.
    """
    watched = Watched(runtime, loop_ms=10_000)
    runtime.pass_s(9.9)
    assert [(stall.kind, stall.partitions) for stall in watched.stalls] == [("loop", frozenset())]
    assert not watched.given_up
    runtime.pass_s(1)
    assert watched.given_up == [
        "watchdog: the event loop has been blocked for 10.0 s of the 10 s that loop_stall_ms allows"
    ]


async def test_a_loop_that_runs_once_within_the_limit_is_no_stall(runtime: ManualRuntime) -> None:
    """An event loop that runs one iteration within the limit is not stalled."""
    watched = Watched(runtime, loop_ms=10_000)
    for _ in range(10):
        runtime.pass_s(9)
        await asyncio.sleep(0)
    assert not watched.given_up


async def test_the_time_in_which_the_process_is_stopped_does_not_count(runtime: ManualRuntime) -> None:
    """
    The time in which the process or the computer is suspended does not count, because the watchdog is stopped as well.
    """
    watched = Watched(runtime, work_ms=10_000, loop_ms=10_000)
    watched.busy()
    for _ in range(2):
        runtime.pass_s(1)
        runtime.sleep_s(3_600)
    runtime.pass_s(0)
    assert not watched.given_up
    assert not watched.stalls


@pytest.mark.parametrize(("work_ms", "loop_ms"), [(0, 0), (0, 10_000), (10_000, 0)])
async def test_a_limit_of_0_means_no_limit(runtime: ManualRuntime, work_ms: int, loop_ms: int) -> None:
    """A limit of 0 disables that limit. Without any limit, the watchdog does not tick."""
    watched = Watched(runtime, work_ms=work_ms, loop_ms=loop_ms)
    watched.busy()
    runtime.pass_s(60)
    assert [stall.kind for stall in watched.stalls] == ["processing"] * bool(work_ms) + ["loop"] * bool(loop_ms)
    assert (runtime.tickers[0].due_s is None) == (not work_ms and not loop_ms) or watched.given_up


async def test_a_stopped_watchdog_reports_nothing(runtime: ManualRuntime) -> None:
    """A watchdog is stopped when its session has ended, and then reports nothing."""
    watched = Watched(runtime, work_ms=10_000)
    watched.busy()
    runtime.pass_s(1)
    watched.watchdog.stop()
    runtime.pass_s(60)
    assert not watched.given_up
    assert not watched.stalls
    assert runtime.tickers[0].ended


async def test_the_watchdog_continues_after_an_error(runtime: ManualRuntime, caplog: pytest.LogCaptureFixture) -> None:
    """
    The watchdog logs an error in its check and continues, because a temporary error must not leave a member
    unmonitored.
    """
    watched = Watched(runtime, work_ms=10_000)
    watched.works = None  # type: ignore[assignment]
    runtime.pass_s(5)
    assert "the watchdog could not check for progress" in caplog.text
    watched.busy()
    runtime.pass_s(12)
    assert len(watched.given_up) == 1


class ThreadedRuntime(ManualRuntime):
    """A runtime whose test triggers the watchdog's ticks. All other threads are real."""

    def ticker(self, tick: Callable[[], float | None], name: str) -> Ticking:  # type: ignore[override]
        return super().ticker(tick, name) if name == "watchdog" else Ticker(tick, name)


class BlockedLog(logging.Handler):
    """A log handler that blocks other threads until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.test_thread = threading.current_thread()
        self.blocked_test_thread = False

    def createLock(self) -> None:
        """Create no lock: the test's thread logs while another thread is blocked in ``emit``."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        if threading.current_thread() is self.test_thread:
            self.blocked_test_thread |= record.levelno < logging.ERROR
        else:
            self.released.wait()


@pytest.mark.parametrize("hanging", ["hook", "log"])
async def test_a_hook_or_a_log_that_hangs_does_not_block_the_watchdog(hanging: str) -> None:
    """
    A hook or a log call that hangs does not block the watchdog, because both run on another thread. The session is
    given up in time.
    """
    test_thread, released, called = threading.current_thread(), threading.Event(), threading.Event()
    log, blocked_log = logging.getLogger("kiel_groups.zookeeper.watchdog"), BlockedLog()
    on_test_thread: list[bool] = []

    def hang(_: Stall) -> None:
        on_test_thread.append(threading.current_thread() is test_thread)
        called.set()
        if not on_test_thread[-1]:
            released.wait()

    try:
        if hanging == "log":
            log.addHandler(blocked_log)
        runtime = ThreadedRuntime()
        watched = Watched(runtime, work_ms=10_000, on_stall=hang)
        watched.busy()
        runtime.pass_s(6)
        if hanging == "hook":
            assert called.wait(30)
        assert not watched.given_up
        runtime.pass_s(6)
        assert len(watched.given_up) == 1
        assert not any(on_test_thread)
        assert not blocked_log.blocked_test_thread
    finally:
        log.removeHandler(blocked_log)
        blocked_log.released.set()
        released.set()


async def test_the_session_is_given_up_before_it_is_logged(
    runtime: ManualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The session is given up before this is logged. A blocked event loop may hold the log's lock, which must not delay
    the end of the session.
    """
    watched = Watched(runtime, work_ms=10_000)
    logged_before: list[str] = []
    watched.given_up = logged_before
    watched.watchdog._on_stalled = lambda reason: logged_before.append(caplog.text)
    watched.busy()
    runtime.pass_s(12)
    assert "session is closed" not in logged_before[0]
    assert "session is closed" in caplog.text


def test_the_watchdog_of_a_closed_event_loop_ends(runtime: ManualRuntime, caplog: pytest.LogCaptureFixture) -> None:
    """It logged an error at each check, since such a loop accepts no callback. The heartbeat ends the session."""

    async def start() -> Watched:
        return Watched(runtime, loop_ms=10_000)

    watched = asyncio.run(start())
    runtime.pass_s(60)
    assert (watched.given_up, caplog.text, runtime.tickers[0].ended) == ([], "", True)


async def test_an_exit_does_not_end_the_watchdog(runtime: ManualRuntime) -> None:
    """
    If an object of the application raises SystemExit during a check, the watchdog continues. SystemExit would end a
    thread silently.
    """
    watched = Watched(runtime, work_ms=10_000)

    def exiting() -> list[Work]:
        raise SystemExit(1)

    in_progress, watched.watchdog._in_progress = watched.watchdog._in_progress, exiting
    runtime.pass_s(5)
    watched.watchdog._in_progress = in_progress
    watched.busy()
    runtime.pass_s(12)
    assert len(watched.given_up) == 1


@pytest.mark.parametrize("setting", ["max_poll_interval_ms", "loop_stall_ms"])
def test_limits_are_whole_numbers(setting: str) -> None:
    """The settings of the watchdog's limits refuse a negative number."""
    with pytest.raises(ConfigError, match=f"{setting}: -1 given; expected a whole number of at least 0"):
        GroupConfig(group="g", **{setting: -1})  # type: ignore[arg-type]
