"""
Processes on simulated time. Each has an event loop, simulated threads, and a host with faults.

The processes run the product's code. That code gets its clocks, its threads and kazoo's client from the process's
``SimulatedRuntime``.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

from kazoo.client import KazooClient

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.group.topic_patterns import Answers, Questions
from kiel_groups.zookeeper.runtime import Runtime, Ticking
from tests.fakes.fake_client import Host, fake_client
from tests.fakes.fake_ensemble import FakeEnsemble
from tests.fakes.timeline import Timeline

__all__ = ["ENDLESS", "SimulatedProcess", "SimulatedLoop", "SimulatedRuntime"]

#: The longest time that a thread needs for a short piece of work, in seconds.
MAX_THREAD_S = 0.005
#: After a thaw, the parts of a process wake up one after the other, with at most this delay, in seconds.
MAX_WAKE_DELAY_S = 0.01
#: The milliseconds since 1970 at time 0 of a timeline. The value does not matter.
EPOCH_MS = 1_400_000_000_000

_Result = TypeVar("_Result")
_Ts = TypeVarTuple("_Ts")


class Part(Enum):
    """The parts of a process that run independently."""

    LOOP = auto()
    THREADS = auto()
    NETWORK = auto()


class SimulatedProcess(Host):
    """
    A process with an event loop and threads.

    ``frozen`` stops all parts of the process, as SIGSTOP does. ``blocked_until_s`` stops only its event loop, as an
    application that does not yield does. ``killed`` is final: the simulated operating system has closed the
    connections. ``runtime`` is the runtime of the code that the process runs.
    """

    def __init__(self, ensemble: FakeEnsemble, name: str = "") -> None:
        super().__init__(ensemble)
        self.name = name
        self.frozen = False
        self.killed = False
        self.blocked_until_s = 0.0
        #: Each of these three calls a function with arguments: as the event loop, another thread, or the network would.
        self.run_on_loop: Callable[..., None] = partial(self._run, Part.LOOP)
        self.run_on_thread: Callable[..., None] = partial(self._run, Part.THREADS)
        self.run = partial(self._run, Part.NETWORK)
        self.loop = SimulatedLoop(self)  # type: ignore[abstract]
        self.runtime = SimulatedRuntime(self)
        self._asleep: set[Part] = set()
        self._missed: dict[Part, list[tuple[Callable[..., object], tuple[Any, ...]]]] = {part: [] for part in Part}

    @property
    def runs(self) -> bool:
        """Whether the process is alive, and its event loop is not frozen."""
        return not (self.killed or Part.LOOP in self._asleep)

    def _run(self, part: Part, function: Callable[..., object], *arguments: Any) -> None:
        if self._asleep and part in self._asleep:
            self._missed[part].append((function, arguments))
        elif not self.killed:
            timeline = self.timeline
            before, timeline.running = timeline.running, self
            try:
                function(*arguments)
            finally:
                timeline.running = before

    def start(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Start a task on this process's event loop."""
        return self.call(self.loop.create_task, work)

    def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function as if from the event loop."""
        before, self.timeline.running = self.timeline.running, self
        _set_running_loop(self.loop)
        try:
            return function(*arguments)
        finally:
            _set_running_loop(None)
            self.timeline.running = before

    def freeze(self) -> None:
        """Freeze the process, as SIGSTOP does."""
        self.frozen = True
        self._asleep = set(Part)

    def thaw(self) -> None:
        """Continue the process, as SIGCONT does: its parts wake up in random order, and make the calls they missed."""
        self.frozen = False
        parts = list(Part)
        self.timeline.random.shuffle(parts)
        delay_s = 0.0
        for part in parts:
            self.timeline.after(delay_s, self._wake, part)
            delay_s += self.timeline.random.uniform(0.0, MAX_WAKE_DELAY_S)

    def _wake(self, part: Part) -> None:
        if self.frozen:
            return
        self._asleep.discard(part)
        missed, self._missed[part] = self._missed[part], []
        for function, arguments in missed:
            self._run(part, function, *arguments)

    def block(self, duration_s: float) -> None:
        """Block the event loop for ``duration_s``. Other threads keep running."""
        self.blocked_until_s = max(self.blocked_until_s, self.timeline.now_s + duration_s)

    def unblock(self) -> None:
        """End a ``block`` before its time has passed."""
        if self.timeline.now_s < self.blocked_until_s:
            self.blocked_until_s = self.timeline.now_s
            self.timeline.after(0.0, self.run_on_loop, self.loop.turn)

    def kill(self) -> None:
        """
        Kill the process, as SIGKILL does. None of its code runs any more, but its messages in flight still arrive.
        """
        self.killed = True
        self.runtime.detach()
        self.loop.discard()
        for link in self.links:
            link.close_by_client()


class _Call(partial[object]):
    """Replaces asyncio.Handle. It adds no Python code to creation and call, which are the most frequent operations."""

    _cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


def _described(callback: Any) -> str:
    """
    Return the name of an event loop's callback. For a task, return its coroutine and the line that it has reached.
    """
    if isinstance(callback, asyncio.TimerHandle):
        callback = callback._callback  # type: ignore[attr-defined]
    task = callback if isinstance(callback, asyncio.Task) else getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", type(callback).__name__))
    work: Any = task.get_coro()
    name, where = work.__qualname__, ""
    while inspect.iscoroutine(work) and work.cr_frame is not None:
        file = Path(work.cr_frame.f_code.co_filename)
        if file.parent.name != "asyncio":
            where = f" at {file.name}:{work.cr_frame.f_lineno}"
        work = work.cr_await
    return f"task {name}{where}"


class SimulatedLoop(asyncio.AbstractEventLoop):
    """
    An event loop without selectors and without waiting.

    Callbacks run in the order in which they were scheduled, as asyncio guarantees. A turn takes no simulated time.
    """

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process
        self._timeline: Timeline = process.timeline
        self._ready: deque[_Call] = deque()
        self._turn_is_due = False

    def time(self) -> float:
        return self._timeline.now_s

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        call = _Call((context or contextvars.copy_context()).run, callback, *args)
        if not self.process.killed:
            self._ready.append(call)
            if not self._turn_is_due:
                self._turn_is_due = True
                self._timeline.after(0.0, self.process.run_on_loop, self.turn)
        return call  # type: ignore[return-value]

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._timeline.now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        self._timeline.steps_in_instant += 1
        if self._timeline.steps_in_instant > self._timeline.most_steps:
            # A task that sets timers in a loop, without waiting, never yields to the event loop. So timers are counted
            # here, too.
            self._record(asyncio.current_task(self) or callback)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timeline.at(when, self.process.run_on_loop, self._timer_is_due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the timer stays on the timeline, and is skipped when it is due."""

    def _timer_is_due(self, handle: asyncio.TimerHandle) -> None:
        if handle.cancelled():
            return
        self._ready.append(_Call(self._run_timer, handle))
        if not self._turn_is_due:
            self._turn_is_due = True
            self.turn()

    def _run_timer(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            handle._run()

    def turn(self) -> None:
        """Run all ready callbacks and those that they add. If the process is blocked, run them when the block ends."""
        blocked_until_s = self.process.blocked_until_s
        if self._timeline.now_s < blocked_until_s:
            self._timeline.at(blocked_until_s, self.process.run_on_loop, self.turn)
            return
        ready, timeline = self._ready, self._timeline
        _set_running_loop(self)
        try:
            while ready:
                call = ready.popleft()
                if call._cancelled:
                    continue
                timeline.steps_in_instant += 1
                if timeline.steps_in_instant > timeline.most_steps:
                    self._record(call.args[0])
                try:
                    call()
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"exception": error})
        finally:
            _set_running_loop(None)
            self._turn_is_due = False

    def _record(self, callback: Any) -> None:
        """Record a step of an instant that has too many steps."""
        self._timeline.record(f"{self.process.name or 'a process'}: {_described(callback)}")

    def discard(self) -> None:
        """Drop all callbacks. Close coroutines that have not started, because Python would warn about them."""
        for task in asyncio.all_tasks(self):
            work = task.get_coro()
            if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()
        self._ready.clear()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.process.killed

    #: ``bool()`` returns False. asyncio calls this so often that a Python function would cost time.
    get_debug = staticmethod(bool)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an error that no code handles. Such an error is a bug, unless the process was killed."""
        error = context.get("exception")
        if error is not None and not self.process.killed:
            self._timeline.failures.append(error)


class _Ticker:
    """Replaces ``Ticker``."""

    def __init__(self, process: SimulatedProcess, tick: Callable[[], float | None]) -> None:
        self._process = process
        self._tick = tick
        #: The number of the newest timer. Older timers are ignored.
        self._timer = 0
        self._ended = True

    def start(self) -> None:
        self._ended = False
        self.wake()

    def wake(self) -> None:
        if not self._ended:
            self._set_timer(0.0)

    def _set_timer(self, pause_s: float) -> None:
        self._timer += 1
        self._process.timeline.after(pause_s, self._process.run_on_thread, self._timer_is_due, self._timer)

    def _timer_is_due(self, timer: int) -> None:
        if timer == self._timer:
            pause_s = self._tick()
            self._ended = pause_s is None
            if pause_s is not None:
                self._set_timer(pause_s)


#: The beginning of patterns that real processes refuse because they backtrack for ever.
ENDLESS = "(a|a)*"


def _compare(questions: Questions) -> Answers:
    return {
        pattern: "endless" if pattern.startswith(ENDLESS) else [bool(re.match(pattern, each)) for each in topics]
        for pattern, topics in questions.items()
    }


class SimulatedRuntime(Runtime):
    """The runtime of one simulated process."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self._timeline = process.timeline

    def detach(self) -> None:
        """
        Leave the timeline, because the process was killed.

        Only the ``finally`` blocks of its collected coroutines still run. They must not use the run's randomness.
        """
        self._timeline = Timeline()

    def boot_time_s(self) -> float:
        return self._timeline.now_s

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._timeline.now_s * 1000)

    def unique_name(self) -> str:
        return f"{self._timeline.random.getrandbits(128):032x}"

    def host(self) -> str:
        return self._process.name or "host"

    def pid(self) -> int:
        return 1

    def uniform(self, low: float, high: float) -> float:
        return self._timeline.random.uniform(low, high)

    def in_thread(self, function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
        """Call the function a little later, also if the future is cancelled meanwhile, as a thread does."""
        process = self._process
        future: asyncio.Future[_Result] = process.loop.create_future()

        def run() -> None:
            try:
                complete = partial(_set_result, future, function())
            except Exception as error:
                complete = partial(_set_error, future, error)
            process.loop.call_soon_threadsafe(complete)

        delay_s = self._timeline.random.uniform(0.0, MAX_THREAD_S)
        self._timeline.after(delay_s, process.run_on_thread, run)
        return future

    def compare_topics(self, questions: Questions) -> asyncio.Future[Answers]:
        """Compare topics with patterns, and refuse a pattern that begins with ENDLESS."""
        return self.in_thread(partial(_compare, questions), "patterns")

    def ticker(self, tick: Callable[[], float | None], name: str) -> Ticking:
        return _Ticker(self._process, tick)

    async def check_hosts(self, config: ZooKeeperConfig) -> None:
        """Do nothing, because host names of a fake ensemble need no address."""

    async def no_answer(self, config: ZooKeeperConfig) -> str:
        """Return a text without a reason, because nothing can connect to a fake ensemble."""
        return f"no ZooKeeper answered at {config.hosts}"

    def client(self, config: ZooKeeperConfig, session: tuple[int, bytes] | None = None) -> KazooClient:
        return fake_client(self._process, config.session_timeout_ms, config.chroot, session=session)


def _set_result(future: asyncio.Future[_Result], result: _Result) -> None:
    if not future.done():
        future.set_result(result)


def _set_error(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
