"""Provide a session's background tasks, the time limit of a close, and the contexts that parts of a process share."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any

from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.errors import SessionLostError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId
from kiel_groups.zookeeper.rights import LoggedRefusals
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session

log = logging.getLogger(__name__)


#: The part of the remaining time that waits for an application leave to the servers, and the most of it, in seconds.
RESERVED_SHARE, MOST_RESERVED_S = 0.5, 0.5


class CloseLimit:
    """
    The time at which a close must end, on the event loop's clock.

    A close passes the limit on to all its parts. Waits that have begun end earlier if the limit is shortened.

    Args:
        timeout_s: The limit in seconds from now. With None, the close takes as long as it needs, unless ``shorten``
            sets a limit.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        #: When the close must end; infinite without a limit.
        self.by_s = math.inf
        #: The waits under way, each with the function that computes its end from the limit.
        self._waits: dict[asyncio.Timeout, Callable[[float], float]] = {}
        self.shorten(timeout_s)

    def shorten(self, timeout_s: float | None) -> None:
        """End the close within ``timeout_s`` seconds from now, unless it must end before that. None changes nothing."""
        if timeout_s is None:
            return
        self.by_s = min(self.by_s, asyncio.get_running_loop().time() + timeout_s)
        for timeout, end in self._waits.items():
            if not timeout.expired():
                timeout.reschedule(_when(end(self.by_s)))

    @asynccontextmanager
    async def timeout(self, most_s: float = math.inf, *, reserves: bool = False) -> AsyncIterator[None]:
        """
        Limit the time of a ``with`` block, as ``asyncio.timeout`` does.

        Args:
            most_s: The longest time that the block may take, in seconds.
            reserves: Whether to end the block earlier, so that a part of the close's time remains for later steps.

        Raises:
            TimeoutError: The block did not end in time.
        """
        now_s = asyncio.get_running_loop().time
        latest_s = now_s() + most_s

        def end(by_s: float) -> float:
            reserved_s = min(RESERVED_SHARE * max(0.0, by_s - now_s()), MOST_RESERVED_S) if reserves else 0.0
            return min(latest_s, by_s - reserved_s)

        async with asyncio.timeout_at(_when(end(self.by_s))) as timeout:
            self._waits[timeout] = end
            try:
                yield
            finally:
                del self._waits[timeout]


def _when(at_s: float) -> float | None:
    return None if at_s == math.inf else at_s


#: The pause between two cancellations of a task that must end, in seconds.
_AGAIN_S = 0.02


async def cancelled_by(tasks: Collection[asyncio.Future[Any]], limit: CloseLimit) -> None:
    """
    Cancel tasks, and wait until they have ended.

    From the limit on, tasks that have not ended are cancelled again and again, so that they stop waiting for servers. A
    task that closes a session then leaves the close to a thread.
    """
    late = set(tasks)
    for task in late:
        task.cancel()
    with suppress(TimeoutError):
        async with limit.timeout():
            while late:
                _, late = await asyncio.wait(late)
    while late:
        for task in late:
            task.cancel()
        _, late = await asyncio.wait(late, timeout=_AGAIN_S)


class TaskSet:
    """
    The tasks of one session.

    A task that fails because the session is over ends silently. For any other error, the object calls ``on_error``.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        #: In the order of their start, which is also the order of their cancellation.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_error = on_error
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine as a task. After ``cancel`` was called, close the coroutine without running it."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, SessionLostError):
            self._on_error(error)

    def cancel(self) -> Awaitable[object]:
        """Cancel all tasks except the current task at once. Return an awaitable that waits until they have ended."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        return asyncio.gather(*tasks, return_exceptions=True)


#: The time of the first warning, and the longest pause between two warnings, in seconds. Each later warning comes
#: when the step has taken twice as long.
FIRST_S, LONGEST_SILENCE_S = 5.0, 60.0


class SlowStep:
    """
    Calls ``warn`` while the block of a ``with`` statement runs: after 5, 10, 20, 40, 80, 140 seconds, and so on.

    Args:
        warn: Logs what the block waits for. The argument is how long the block has run, in seconds.
    """

    def __init__(self, warn: Callable[[float], None]) -> None:
        self._warn = warn
        self._began_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        self._warn_at(FIRST_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _warn_at(self, age_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._began_s + age_s, self._due, age_s)

    def _due(self, age_s: float) -> None:
        self._warn_at(age_s + min(age_s, LONGEST_SILENCE_S))
        self._warn(age_s)


#: The spread of the interval between audits, so that a thousand members do not read their assignments at once.
AUDIT_JITTER = 0.33


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """
    The settings and tools that all sessions of a process in one group share.

    Args:
        config: The settings of the group, and of this process in it.
        zookeeper: How to connect to ZooKeeper.
        metrics: Receives the counters and gauges.
        runtime: Clocks, randomness, threads, and the ZooKeeper client.
        refusals: The missing rights and refused credentials that were logged.
    """

    config: GroupConfig
    zookeeper: ZooKeeperConfig
    metrics: Metrics
    runtime: Runtime
    refusals: LoggedRefusals = field(default_factory=LoggedRefusals)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """
    The settings and tools that the parts of a process on one session share.

    ``started_ms`` is the time when the session was opened, in milliseconds since 1970. ``began_s`` is the time when the
    process began to open the session, in seconds of boot time. ``tasks`` runs the tasks that end with the session.
    """

    config: GroupConfig
    layout: GroupLayout
    member_id: MemberId
    started_ms: int
    began_s: float
    session: Session
    tasks: TaskSet
    metrics: Metrics
    runtime: Runtime

    @property
    def group(self) -> str:
        """The group's name."""
        return self.config.group

    def audit_interval_s(self) -> float:
        """Return the seconds until the next audit: the configured interval, longer or shorter by up to a third."""
        jitter = self.runtime.uniform(1 - AUDIT_JITTER, 1 + AUDIT_JITTER)
        return self.config.reconcile_interval_ms / 1000 * jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberContext(SessionContext):
    """
    The settings and tools that the parts of a member on one session share.

    ``handler`` is the consumer that the member belongs to, and ``tracker`` has the offsets of its partitions.
    """

    handler: PartitionHandler
    tracker: OffsetTracker

    @classmethod
    def of(cls, shared: SessionContext, handler: PartitionHandler, tracker: OffsetTracker) -> MemberContext:
        """Return the context of a session, extended by the handler and the tracker of its member."""
        return cls(
            **{field.name: getattr(shared, field.name) for field in fields(SessionContext)},
            handler=handler,
            tracker=tracker,
        )
