"""Call the application's rebalance listener, one hook at a time. A hook's failure is logged and counted."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from kiel_groups.clients.calls.eager_methods import cancels_this_task, spawn
from kiel_groups.errors import ArgumentTypeError, IllegalStateError
from kiel_groups.group.partition_offsets import PartitionOffsets
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener, Stall, StallListener
from kiel_groups.members.partition_handler import Work
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import some

log = logging.getLogger(__name__)

#: The hook that makes the call in this context, if it runs on a thread of its own, as those of ``kiel_groups.sync`` do:
#: the name of a listener's hook, "" for another hook, or None.
THREAD_HOOK: ContextVar[str | None] = ContextVar("thread hook", default=None)


class ReadyClaims:
    """
    The partitions that may be delivered: ``on_partitions_assigned`` has ended for their current claim.

    Args:
        subscription: Has a state for each claimed partition; each claim has its own state object.
        calls: Calls the listener's hooks.
        on_ready: Called with partitions that have become ready.
    """

    def __init__(
        self,
        subscription: SubscriptionState,
        calls: ListenerCalls,
        on_ready: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self._subscription = subscription
        self._calls = calls
        self._on_ready = on_ready
        self._opening: dict[TopicPartition, PartitionOffsets] = {}
        self._ready: set[TopicPartition] = set()

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._ready

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._ready)

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """
        Return a coroutine that calls the hook for new claims. The claims become ready when the hook ends.

        If ``remove`` removes a claim before the end of the hook, the claim does not become ready.
        """
        self.remove(partitions)
        self._calls.claimed(partitions)
        states = {partition: self._subscription.offsets.of(partition) for partition in partitions}
        claims = {partition: state for partition, state in states.items() if state is not None}
        self._opening |= claims
        return self._open(partitions, claims)

    async def _open(
        self, partitions: Collection[TopicPartition], claims: Mapping[TopicPartition, PartitionOffsets]
    ) -> None:
        await self._calls.assigned(partitions)
        # A partition that was lost and claimed again meanwhile waits for the hook of its new claim.
        ready = [partition for partition, state in claims.items() if self._opening.get(partition) is state]
        for partition in ready:
            del self._opening[partition]
        self._ready.update(ready)
        self._on_ready(ready)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Make partitions ready without a claim: no hook is called for them."""
        self._ready.update(partitions)
        self._on_ready(partitions)

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Remove claims that were revoked or lost. A hook that still runs for these claims does not make them ready."""
        self._ready.difference_update(partitions)
        for partition in partitions:
            self._opening.pop(partition, None)


@dataclass(slots=True, eq=False)
class _Running:
    """
    A running hook with its partitions. ``lost`` has the partitions of the hook that were lost since the hook started.
    """

    task: asyncio.Task[None]
    name: str
    partitions: frozenset[TopicPartition]
    is_loss: bool
    #: Whether the hook is a coroutine: it may wait for what it calls.
    is_coroutine: bool = False
    lost: set[TopicPartition] = field(default_factory=set)

    @property
    def is_lost(self) -> bool:
        """Whether all of the hook's partitions were lost."""
        return self.lost == self.partitions


_HOOKS = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost", "on_stalled")


def check_listener(listener: object) -> None:
    """
    Check that a listener is None or an object with at least one hook. A listener need not have all hooks.

    Raises:
        ArgumentTypeError: The object has no hook, has a hook that cannot be called, or is a class.
    """
    if listener is None:
        return
    if isinstance(listener, type):
        raise ArgumentTypeError(f"listener: the class {listener!r} given; expected an object, as {listener.__name__}()")
    hooks = [hook for hook in _HOOKS if getattr(listener, hook, None) is not None]
    if not hooks:
        raise ArgumentTypeError(f"listener: {listener!r} given; expected an object with methods {', '.join(_HOOKS)}")
    for hook in hooks:
        if not callable(getattr(listener, hook)):
            raise ArgumentTypeError(f"listener: {listener!r} has {hook}, which is not a method")


class ListenerCalls:
    """
    Calls the rebalance hooks of the current listener, one at a time.

    A revocation waits for a running hook even if the listener has no hook for revocations: the partitions must not be
    assigned to another member while the application still works on them. A partition whose revoked hook has completed
    is not reported as lost later: the application has finished its work on it.

    A loss cancels the running hook if all partitions of that hook are lost. While the member still owns a partition of
    the hook, the hook continues, because that partition is delivered or released once the hook has ended. The listener
    is notified of the loss after the hook.

    Args:
        listener: The consumer's listener.
        metrics: Counts failures of hooks.
        override: Returns the listener of the subscription, which replaces the consumer's listener, or None.
    """

    def __init__(
        self,
        listener: RebalanceListener | None,
        metrics: Metrics,
        override: Callable[[], RebalanceListener | None] = lambda: None,
    ) -> None:
        self._default = listener
        self._override = override
        self._metrics = metrics
        self._lock = asyncio.Lock()
        self._stall_lock = threading.Lock()
        self._running: _Running | None = None
        #: The partitions whose revoked hook has completed since they were claimed.
        self._revoked: set[TopicPartition] = set()

    @property
    def _listener(self) -> RebalanceListener | None:
        override = self._override()
        return self._default if override is None else override

    def _hook(self, name: str) -> Callable[..., Any] | None:
        found: Callable[..., Any] | None = getattr(self._listener, name, None)
        return found

    def claimed(self, partitions: Collection[TopicPartition]) -> None:
        """
        Report later losses of these new claims to the listener. Call this method before ``assigned`` is awaited for the
        claims.
        """
        self._revoked.difference_update(partitions)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.claimed(partitions)
        if (hook := self._hook("on_partitions_revoked")) is not None:
            await self._run_hook(hook, partitions, completed=self._revoked.update)
        else:
            async with self._lock:
                pass

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        if (hook := self._hook("on_partitions_assigned")) is not None:
            await self._run_hook(hook, partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        running = self._running
        if running is not None and not running.is_loss:
            running.lost |= running.partitions & set(partitions)
            if running.is_lost:
                running.task.cancel()
        unreported = frozenset(partitions) - self._revoked
        self._revoked.difference_update(partitions)
        if unreported and (hook := self._hook("on_partitions_lost")) is not None:
            spawn(self._run_hook(hook, unreported, is_loss=True), "on_partitions_lost")

    def calling_hook(self) -> _Running | None:
        """Return the coroutine hook that makes this call, or None."""
        running = self._running
        is_caller = running is not None and running.is_coroutine and running.task is asyncio.current_task()
        return running if is_caller else None

    def check_outside(self) -> None:
        """
        Check that no running coroutine hook calls ``close()``, which waits for the hook's end.

        A hook that is a plain function cannot wait for the close, so it may call ``close()``.

        Raises:
            IllegalStateError: The hook makes the call.
        """
        if (running := self.calling_hook()) is not None:
            raise IllegalStateError(
                f"close() was called in the listener's {running.name}, for whose end it waits; call it after the hook"
                " has returned, as by asyncio.get_running_loop().call_soon(consumer.close)"
            )

    def in_progress(self) -> list[Work]:
        """Return the running hook, if any, as work of the application. Any thread may call this method."""
        running = self._running
        return [] if running is None else [Work(running, "listener", running.partitions, running.name)]

    def stalled(self, stall: Stall) -> None:
        """Call the listener's ``on_stalled``, if any, on this thread. Two threads never call this method at once."""
        listener: object = self._listener
        if isinstance(listener, StallListener):
            with self._stall_lock:
                try:
                    listener.on_stalled(stall)
                except BaseException:
                    # This includes SystemExit, which would end the thread without a message.
                    log.exception("the listener's on_stalled failed")
                    self._metrics.count("listener_failures")

    async def _run_hook(
        self,
        hook: Callable[..., Any],
        partitions: Collection[TopicPartition],
        *,
        is_loss: bool = False,
        completed: Callable[[Collection[TopicPartition]], None] = lambda _: None,
    ) -> None:
        """Run a hook after the running hook has ended. Then call ``completed``, unless the hook was cancelled."""
        async with self._lock:
            task = spawn(self._call(hook, sorted(partitions), completed), hook.__name__)
            self._running = _Running(task, hook.__name__, frozenset(partitions), is_loss)
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                # The caller was cancelled. The next hook must not start before this hook has ended.
                task.cancel()
                await asyncio.wait({task})
                raise
            finally:
                self._running = None

    async def _call(
        self,
        hook: Callable[..., Any],
        partitions: Collection[TopicPartition],
        completed: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        try:
            result = hook(partitions)
            if inspect.isawaitable(result):
                assert self._running is not None, "set before this task begins"
                self._running.is_coroutine = True
                await result
        except (Exception, asyncio.CancelledError) as error:
            names = some(sorted(partitions))
            if cancels_this_task(error):
                is_lost = self._running is not None and self._running.is_lost
                why = "all of its partitions were lost" if is_lost else "its member does not wait for it any longer"
                log.warning("the listener's %s was cancelled: %s: %s", hook.__name__, why, names)
                raise
            # An error of the application. The rebalance continues: other members may wait for these partitions.
            log.exception("the listener's %s failed for %s; the rebalance continues", hook.__name__, names)
            self._metrics.count("listener_failures")
        completed(partitions)
