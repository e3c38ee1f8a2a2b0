"""A handler for kazoo's client that needs no threads, and a client that calls watchers in a fixed order."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import Callback

from tests.fakes.timeline import Stuck, Timeline

__all__ = ["FakeHandler", "OrderedWatchersClient", "run_until"]


class _OrderedSet(dict[Any, None]):
    """A set of watchers in the order in which they were added."""

    def add(self, element: Any) -> None:
        self[element] = None


class OrderedWatchersClient(KazooClient):  # type: ignore[misc]
    """A kazoo client whose watchers have the same order in every run. kazoo's own sets order them by memory address."""

    def _reset_watchers(self) -> None:
        super()._reset_watchers()
        self._child_watchers: dict[str, _OrderedSet] = defaultdict(_OrderedSet)
        self._data_watchers: dict[str, _OrderedSet] = defaultdict(_OrderedSet)


class CallbackHost(Protocol):
    """The host of a client, as far as its handler needs it."""

    #: Calls a function with arguments, as soon as the host runs.
    run: Callable[..., object]

    @property
    def timeline(self) -> Timeline:
        """The time of the simulation."""


class FakeAnswer:
    """Replaces kazoo's AsyncResult."""

    __slots__ = ("_callbacks", "_timeline", "exception", "is_set", "value")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._callbacks: list[Callable[[FakeAnswer], object]] = []
        self.value: Any = None
        self.exception: Exception | None = None
        self.is_set = False

    def ready(self) -> bool:
        return self.is_set

    def successful(self) -> bool:
        return self.is_set and self.exception is None

    def set_exception(self, exception: Exception) -> None:
        self.exception = exception
        self.set()

    def set(self, value: Any = None) -> None:
        self.value = value
        self.is_set = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def rawlink(self, callback: Callable[[FakeAnswer], object]) -> None:
        if self.is_set:
            callback(self)
        else:
            self._callbacks.append(callback)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.wait(timeout if block else 0.0)
        if not self.is_set:
            raise KazooTimeoutError
        if self.exception is not None:
            raise self.exception
        return self.value

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def wait(self, timeout: float | None = None) -> bool:
        return run_until(self._timeline, lambda: self.is_set, timeout)


class FakeFlag:
    """Replaces threading.Event."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return run_until(self._timeline, self.is_set, timeout)


def run_until(timeline: Timeline, condition: Callable[[], bool], timeout_s: float | None) -> bool:
    """Advance the time until a condition is true, or until the timeout. Return whether the condition is true."""
    if timeline.stepping:
        return condition()  # A running step cannot advance the time.
    try:
        timeline.run_until(condition, 3600.0 if timeout_s is None else timeout_s)
    except Stuck:
        return False
    return True


class FakeHandler:
    """Replaces kazoo's SequentialThreadingHandler, without threads."""

    name = "fake_handler"
    timeout_exception = KazooTimeoutError
    sleep_func = staticmethod(time.sleep)

    def __init__(self, host: CallbackHost) -> None:
        self._host = host
        self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def event_object(self) -> FakeFlag:
        return FakeFlag(self._host.timeline)

    def async_result(self) -> FakeAnswer:
        return FakeAnswer(self._host.timeline)

    def dispatch_callback(self, callback: Callback) -> None:
        # kazoo calls a callback on another thread. Here, the callback is scheduled, so that it does not run inside the
        # present step.
        self._host.timeline.after(0.0, self._host.run, callback.func, *callback.args)
