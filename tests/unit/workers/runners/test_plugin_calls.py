"""Calls of plugins: on the loop or on a thread, one at a time, and what a cancellation does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.errors import KielGroupsError, TaskStoppedError
from kiel_groups.workers.plugins.interfaces import SinkConnector, SinkTask, SourceConnector, SourceTask
from kiel_groups.workers.runners.plugin_calls import Call, PluginCalls, WorkFence
from kiel_groups.workers.runners.runner_interface import Runner
from kiel_groups.workers.runners.sink_task_runner import SinkTaskRunner
from kiel_groups.workers.runners.source_task_runner import ConnectorRunner, SourceTaskRunner
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.counting_connectors import CountingSourceConnector
from tests.helpers.runner_contexts import FakeSession, runner_context
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


def calls(session: FakeSession | None = None, runtime: Runtime | None = None) -> PluginCalls:
    return PluginCalls(runtime or Runtime(), "test", WorkFence(session or FakeSession()))


class NoThreads(Runtime):
    """Starts no thread for a call."""

    def in_thread(self, function: Callable[[], Any], name: str) -> asyncio.Future[Any]:
        raise AssertionError("a thread is started")


async def test_a_plain_method_runs_on_a_thread_and_a_coroutine_function_on_the_loop() -> None:
    """The result or the error is the method's."""
    on_loop = threading.get_ident()

    async def coroutine(number: int) -> tuple[int, int]:
        return number, threading.get_ident()

    def plain(number: int) -> tuple[int, int]:
        return number, threading.get_ident()

    def failing() -> None:
        raise ValueError("no")

    assert await calls().call(coroutine, 1) == (1, on_loop)
    number, thread = await calls().call(plain, 2)
    assert number == 2
    assert thread != on_loop
    with pytest.raises(ValueError, match="no"):
        await calls().call(failing)


async def test_a_plain_method_may_return_something_to_await() -> None:
    """A method that is wrapped, or returns a coroutine, is awaited on the loop."""

    async def work() -> int:
        return threading.get_ident()

    assert await calls().call(lambda: work()) == threading.get_ident()


async def test_methods_of_one_object_never_run_at_the_same_time() -> None:
    """A call waits for the call before it, on whatever thread that runs."""
    plugin, order, release = calls(), list[str](), threading.Event()

    def first() -> None:
        release.wait(10)
        order.append("first")

    async def second() -> None:
        order.append("second")

    running = [asyncio.ensure_future(plugin.call(method)) for method in (first, second)]
    await asyncio.sleep(0)
    assert order == []
    release.set()
    await asyncio.gather(*running)
    assert order == ["first", "second"]


async def test_the_last_call_is_made_although_its_wait_is_cancelled() -> None:
    """It follows the calls before it; later calls are refused."""
    plugin, order, release = calls(), list[str](), asyncio.Event()

    async def busy() -> None:
        await release.wait()
        order.append("busy")

    async def stop() -> None:
        order.append("stop")

    running = asyncio.ensure_future(plugin.call(busy))
    await asyncio.sleep(0)
    last = asyncio.ensure_future(plugin.call_last(stop))
    await asyncio.sleep(0)
    last.cancel()
    with pytest.raises(TaskStoppedError):
        await plugin.call(busy)
    release.set()
    await running
    with pytest.raises(asyncio.CancelledError):
        await last
    assert order == ["busy", "stop"]


async def test_a_cancelled_call_waits_for_its_thread() -> None:
    """The thread may still write to its system, so the call does not end before it."""
    release, started = threading.Event(), threading.Event()

    def stuck() -> None:
        started.set()
        release.wait(10)

    running = asyncio.ensure_future(calls().call(stuck))
    await eventually(started.is_set, "the thread to start")
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=0.05)
    assert not done
    release.set()
    await asyncio.wait({running})
    assert running.cancelled()


class HookRunner(Runner):
    """Runs a plugin of which a client has called a method that hangs on a thread."""

    def __init__(self, hook: Callable[[], None]) -> None:
        super().__init__(runner_context(CountingSourceConnector, {}))
        self._hook = hook

    async def _run_plugin(self) -> None:
        self._client = asyncio.ensure_future(self.calls.call(self._hook))
        await asyncio.Event().wait()

    async def _stop_plugin(self) -> None:
        await self.calls.call(lambda: None)


async def test_a_runner_that_is_cancelled_several_times_waits_for_the_calls_of_its_clients() -> None:
    """Its end releases the claim, so no method may run after it."""
    release, begun = threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        release.wait(10)

    running = asyncio.ensure_future(HookRunner(stuck).run())
    await eventually(begun.is_set, "the call of the hook")
    for _ in range(3):
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=0.02)
        assert not done
    release.set()
    await asyncio.wait({running})
    assert running.cancelled()


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_a_plugin_ends_neither_the_process_nor_the_worker(error: BaseException) -> None:
    """What would end more than the work is an error of the work."""

    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    with pytest.raises(KielGroupsError, match=type(error).__name__):
        await calls().call(plain)
    # Ctrl-C arrives on the loop's thread, and must end the program.
    if not isinstance(error, KeyboardInterrupt):
        with pytest.raises(KielGroupsError, match=type(error).__name__):
            await calls().call(coroutine)


async def test_a_method_that_is_not_overridden_needs_no_thread() -> None:
    """The defaults of the interfaces do nothing."""

    class Task(SourceTask):
        def poll(self) -> Any:
            return ()

    assert await calls(runtime=NoThreads()).call(Task().flush) is None
    assert await calls(runtime=NoThreads()).call(Task().stop) is None
    with pytest.raises(AssertionError, match="a thread is started"):
        await calls(runtime=NoThreads()).call(Task().poll)


class OnThread(SourceTask):
    """A task of plain methods, whose constructor notes where it runs."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def poll(self) -> Any:
        return ()


class OnLoop(OnThread):
    """A task with a coroutine function, whose constructor needs the running loop."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()

    async def flush(self) -> None: ...


class Bare(SourceTask):
    """A task without a constructor."""

    def poll(self) -> Any:
        return ()


async def test_a_constructor_runs_where_the_methods_run() -> None:
    """A plain class may block in it; a class with coroutine functions may create clients that need the loop."""
    on_loop = threading.get_ident()
    assert (await calls().create(OnThread)).thread != on_loop
    created = await calls().create(OnLoop)
    assert (created.thread, created.loop) == (on_loop, asyncio.get_running_loop())
    assert isinstance(await calls(runtime=NoThreads()).create(Bare), Bare)


@pytest.mark.parametrize("base", [OnThread, OnLoop])
@pytest.mark.parametrize(
    ("error", "raised"),
    [(SystemExit(3), KielGroupsError), (asyncio.CancelledError(), KielGroupsError), (ValueError("no"), ValueError)],
)
async def test_a_constructor_ends_neither_the_process_nor_the_worker(
    base: type[OnThread], error: BaseException, raised: type[Exception]
) -> None:
    """Its error is that of the work."""

    class Broken(base):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            raise error

    with pytest.raises(raised, match=str(error) if raised is ValueError else type(error).__name__):
        await calls().create(Broken)


class Constructors:
    """Connector and task classes whose constructors wait for the test, and the methods that were called on them."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.called: list[str] = []
        slow = self

        class Slow:
            def __init__(self) -> None:
                slow.begun.set()
                slow.release.wait(10)

            def start(self, context: object, settings: object) -> None:
                slow.called.append("start")

            def stop(self) -> None:
                slow.called.append("stop")

        class Source(Slow, SourceTask):
            def poll(self) -> Any:
                return ()

        class Sink(Slow, SinkTask):
            def put(self, records: object) -> None: ...

        class SlowSource(Slow, SourceConnector):
            task_class = Source

            def task_configs(self, most: int) -> Any:
                return ()

        class SlowSink(Slow, SinkConnector):
            task_class = Sink

            def task_configs(self, most: int) -> Any:
                return ()

        self.source, self.sink = SlowSource, SlowSink

    def runner(self, kind: type[Runner]) -> Runner:
        """Return a runner of one of the classes."""
        config = {"topics": "t"} if kind is SinkTaskRunner else {}
        task = None if kind is ConnectorRunner else 0
        return kind(runner_context(self.sink if kind is SinkTaskRunner else self.source, config, task=task))


@pytest.mark.parametrize("kind", [ConnectorRunner, SourceTaskRunner, SinkTaskRunner])
async def test_a_slow_constructor_leaves_the_event_loop_free(kind: type[Runner]) -> None:
    """The worker's heartbeats and its other work continue; ``start`` follows, and a stop ends the run in order."""
    slow = Constructors()
    running = asyncio.ensure_future(slow.runner(kind).run())
    await eventually(slow.begun.is_set, "the constructor")
    assert not slow.release.is_set()
    slow.release.set()
    await eventually(lambda: slow.called, "the start")
    running.cancel()
    await asyncio.wait({running})
    assert slow.called == ["start", "stop"]


@pytest.mark.parametrize("kind", [ConnectorRunner, SourceTaskRunner, SinkTaskRunner])
async def test_an_object_whose_creation_was_cancelled_is_dropped(kind: type[Runner]) -> None:
    """The run ends after the constructor, because the claim is released then; no method is called."""
    slow = Constructors()
    running = asyncio.ensure_future(slow.runner(kind).run())
    await eventually(slow.begun.is_set, "the constructor")
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=0.05)
    assert not done
    slow.release.set()
    await asyncio.wait({running})
    assert running.cancelled()
    assert slow.called == []


async def test_a_turn_begins_with_an_open_fence_after_the_calls_before() -> None:
    """The session may have ended while a call waited for others, as that of a process that was frozen."""
    session, release, done = FakeSession(), asyncio.Event(), list[str]()
    plugin = calls(session)

    async def wait() -> None:
        await release.wait()

    async def put() -> None:
        done.append("put")

    before = asyncio.ensure_future(plugin.call(wait))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(plugin.call_fenced(put))
    await asyncio.sleep(0)
    session.trusted = False
    release.set()
    await before
    await eventually(lambda: session.was_awaited, "a wait for the session")
    assert done == []
    session.trusted = True
    await waiting
    assert done == ["put"]


async def test_no_call_of_a_turn_begins_on_a_thread_with_a_closed_fence() -> None:
    """The process may be frozen while it starts the thread. The turn is repeated when the fence is open."""
    session, begun, done = FakeSession(), list[str](), list[str]()

    class SlowRuntime(Runtime):
        def in_thread(self, function: Callable[[], Any], name: str) -> asyncio.Future[Any]:
            session.trusted = session.was_awaited
            return super().in_thread(function, name)

    plugin = PluginCalls(SlowRuntime(), "test", WorkFence(session))

    async def put(call: Call) -> None:
        begun.append("put")
        await call(done.append, "put")

    putting = asyncio.ensure_future(plugin.in_turn(put))
    await eventually(lambda: session.was_awaited, "a wait for the session")
    assert (begun, done) == (["put"], [])
    session.trusted = True
    await putting
    assert (begun, done) == (["put", "put"], ["put"])
