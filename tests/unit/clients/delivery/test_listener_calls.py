"""Calls of the application's listener: one hook at a time, losses first, failures contained."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.clients.delivery.listener_calls import ListenerCalls, check_listener
from kiel_groups.errors import ConfigError, IllegalStateError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class BlockingListener:
    """A listener that records its calls. A hook with an event in ``blocked`` waits for that event."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.running = 0
        self.most_running = 0
        self.cancelled: list[str] = []
        self.blocked: dict[str, asyncio.Event] = {}
        self.cleaning_up: asyncio.Event | None = None
        self.error: Exception | None = None

    def block(self, hook: str) -> asyncio.Event:
        """Make a hook wait until the caller sets the returned event."""
        self.blocked[hook] = asyncio.Event()
        return self.blocked[hook]

    async def _called(self, hook: str, partitions: Collection[TopicPartition]) -> None:
        self.calls.append((hook, list(partitions)))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if hook in self.blocked:
                await self.blocked[hook].wait()
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cancelled.append(hook)
            if self.cleaning_up is not None:
                await self.cleaning_up.wait()
            raise
        finally:
            self.running -= 1

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self._called("revoked", partitions)

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        await self._called("assigned", partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        await self._called("lost", partitions)


async def test_hooks_get_their_partitions_sorted() -> None:
    """Hooks get their partitions sorted. A call returns when its hook has ended."""
    listener = BlockingListener()
    listener_calls = ListenerCalls(listener, Metrics())
    await listener_calls.assigned([P1, P0])
    await listener_calls.revoked({P1})
    assert listener.calls == [("assigned", [P0, P1]), ("revoked", [P1])]
    assert listener.running == 0


async def test_plain_functions_are_hooks_too() -> None:
    """A hook may be a plain function instead of a coroutine function."""
    calls_made: list[str] = []

    class PlainListener:
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            calls_made.append("revoked")

        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            calls_made.append("assigned")

        def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
            calls_made.append("lost")

    listener_calls = ListenerCalls(PlainListener(), Metrics())
    await listener_calls.assigned({P0})
    await listener_calls.revoked({P0})
    listener_calls.lost({P1})
    await eventually(lambda: len(calls_made) == 3, "all hooks were called")
    assert calls_made == ["assigned", "revoked", "lost"]


async def test_without_a_listener_calls_end_at_once() -> None:
    """Without a listener, a call has nothing to wait for."""
    listener_calls = ListenerCalls(None, Metrics())
    await listener_calls.assigned({P0})
    await listener_calls.revoked({P0})
    listener_calls.lost({P0})


async def test_hooks_run_one_at_a_time() -> None:
    """Hooks run one at a time: a second hook starts when the first one has ended."""
    listener = BlockingListener()
    release = listener.block("assigned")
    listener_calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.gather(listener_calls.assigned({P0}), listener_calls.revoked({P1}), listener_calls.assigned({P1}))
    await run_ready_tasks()
    assert listener.calls == [("assigned", [P0])]
    release.set()
    await waiting
    assert listener.calls == [("assigned", [P0]), ("revoked", [P1]), ("assigned", [P1])]
    assert listener.most_running == 1


@pytest.mark.parametrize("hook", ["assigned", "revoked"])
async def test_a_failure_of_a_hook_is_counted_and_contained(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    """
    A failure of a hook is logged, counted and contained, because it must not keep the hook's partitions from other
    members.
    """
    listener, metrics = BlockingListener(), Metrics()
    listener.error = RuntimeError("of the application")
    listener_calls = ListenerCalls(listener, metrics)
    await getattr(listener_calls, hook)({P0})
    assert metrics.counter("listener_failures") == 1
    assert "of the application" in caplog.text
    listener.error = None
    await listener_calls.revoked({P1})
    assert listener.calls[-1] == ("revoked", [P1])


@pytest.mark.parametrize("hook", ["assigned", "revoked"])
async def test_a_loss_cancels_a_running_hook(hook: str) -> None:
    """
    A loss cancels a running hook of the lost partition, ends the call that waits for the hook, and then calls the lost
    hook.
    """
    listener = BlockingListener()
    listener.block(hook)
    listener_calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(getattr(listener_calls, hook)({P0}))
    await eventually(lambda: listener.running == 1, "the hook runs")
    listener_calls.lost({P0, P1})
    await asyncio.wait_for(waiting, 5)
    await eventually(lambda: len(listener.calls) == 2, "both hooks were called")
    assert listener.calls == [(hook, [P0]), ("lost", [P0, P1])]
    assert listener.cancelled == [hook]
    assert listener.most_running == 1


async def test_the_lost_hook_waits_for_the_end_of_a_cancelled_hook() -> None:
    """The lost hook is not called while a cancelled hook still cleans up."""
    listener = BlockingListener()
    listener.block("revoked")
    listener.cleaning_up = asyncio.Event()
    listener_calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(listener_calls.revoked({P0}))
    await eventually(lambda: listener.running == 1, "the hook runs")
    listener_calls.lost({P0})
    await eventually(lambda: bool(listener.cancelled), "the hook was cancelled")
    await run_ready_tasks()
    assert len(listener.calls) == 1
    listener.cleaning_up.set()
    await waiting
    await eventually(lambda: len(listener.calls) == 2, "both hooks were called")
    assert listener.most_running == 1


async def test_a_loss_does_not_cancel_hooks_of_other_partitions() -> None:
    """A loss does not cancel the running hook of another partition, because that partition is still owned."""
    listener = BlockingListener()
    release = listener.block("assigned")
    listener_calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(listener_calls.assigned({P0}))
    await eventually(lambda: listener.running == 1, "the hook runs")
    listener_calls.lost({P1})
    await run_ready_tasks()
    assert listener.cancelled == []
    release.set()
    await waiting
    await eventually(lambda: len(listener.calls) == 2, "both hooks were called")
    assert listener.calls[1] == ("lost", [P1])
    assert listener.most_running == 1


@pytest.mark.parametrize("hook", ["assigned", "revoked"])
async def test_a_loss_of_some_of_its_partitions_does_not_cancel_a_hook(hook: str) -> None:
    """
    A hook with two partitions completes if only one of them is lost, because the other partition is delivered or
    released after it. The loss of both cancels the hook.
    """
    listener = BlockingListener()
    release = listener.block(hook)
    listener_calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(getattr(listener_calls, hook)({P0, P1}))
    await eventually(lambda: listener.running == 1, "the hook runs")
    listener_calls.lost({P0})
    await run_ready_tasks()
    assert (listener.cancelled, listener.calls) == ([], [(hook, [P0, P1])])
    release.set()
    await waiting
    await eventually(lambda: listener.calls[1:] == [("lost", [P0])], "the hooks were called")
    release.clear()
    waiting = asyncio.ensure_future(getattr(listener_calls, hook)({P0, P1}))
    await eventually(lambda: listener.running == 1, "the hook runs")
    listener_calls.lost({P1})
    listener_calls.lost({P0})
    await asyncio.wait_for(waiting, 5)
    await eventually(lambda: listener.calls[3:] == [("lost", [P1]), ("lost", [P0])], "the hooks were called")
    assert (listener.cancelled, listener.most_running) == ([hook], 1)


async def test_a_loss_does_not_cancel_an_earlier_lost_hook() -> None:
    """A loss does not cancel the lost hook of an earlier loss: each lost hook runs to its end."""
    listener = BlockingListener()
    release = listener.block("lost")
    listener_calls = ListenerCalls(listener, Metrics())
    listener_calls.lost({P0})
    await eventually(lambda: listener.running == 1, "the hook runs")
    listener_calls.lost({P0, P1})
    await run_ready_tasks()
    release.set()
    await eventually(lambda: len(listener.calls) == 2 and not listener.running, "the hooks were called")
    assert listener.calls == [("lost", [P0]), ("lost", [P0, P1])]
    assert listener.cancelled == []
    assert listener.most_running == 1


async def test_a_hook_whose_caller_is_cancelled_ends_before_the_next_starts() -> None:
    """
    The end of a session cancels the caller of a hook and thereby the hook. The lost hook is called once the cancelled
    hook has ended.
    """
    listener = BlockingListener()
    listener.block("revoked")
    listener.cleaning_up = asyncio.Event()
    listener_calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(listener_calls.revoked({P0}))
    await eventually(lambda: listener.running == 1, "the hook runs")
    waiting.cancel()
    listener_calls.lost({P1})
    await eventually(lambda: bool(listener.cancelled), "the hook was cancelled")
    await run_ready_tasks()
    assert len(listener.calls) == 1
    listener.cleaning_up.set()
    await eventually(lambda: len(listener.calls) == 2, "both hooks were called")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert listener.most_running == 1


async def test_a_call_that_is_cancelled_while_it_waits_is_never_made() -> None:
    """A call that is cancelled while another hook runs is never made, and does not delay later calls."""
    listener = BlockingListener()
    release = listener.block("assigned")
    listener_calls = ListenerCalls(listener, Metrics())
    first = asyncio.ensure_future(listener_calls.assigned({P0}))
    await eventually(lambda: listener.running == 1, "the hook runs")
    second = asyncio.ensure_future(listener_calls.revoked({P1}))
    await run_ready_tasks()
    second.cancel()
    release.set()
    await first
    listener_calls.lost({P1})
    await eventually(lambda: len(listener.calls) == 2, "both hooks were called")
    assert listener.calls == [("assigned", [P0]), ("lost", [P1])]


async def test_a_partition_whose_revoked_hook_has_completed_is_not_lost_again() -> None:
    """
    A loss after the revoked hook, as by the refusal of the last commit, is reported for the other partitions only. The
    loss of a later claim is reported.
    """
    listener = BlockingListener()
    listener_calls = ListenerCalls(listener, Metrics())
    await listener_calls.revoked({P0})
    listener_calls.lost({P0, P1})
    await eventually(lambda: len(listener.calls) == 2, "both hooks were called")
    await listener_calls.revoked({P0})
    listener_calls.claimed({P0})
    listener_calls.lost({P0})
    await eventually(lambda: len(listener.calls) == 4, "all hooks were called")
    await listener_calls.revoked({P0, P1})
    listener_calls.lost({P0, P1})
    await run_ready_tasks()
    assert listener.calls == [
        ("revoked", [P0]),
        ("lost", [P1]),
        ("revoked", [P0]),
        ("lost", [P0]),
        ("revoked", [P0, P1]),
    ]


async def test_a_partition_whose_revoked_hook_was_cancelled_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """The application has not finished its work on the partition, and discards it in the lost hook."""
    listener = BlockingListener()
    listener.block("revoked")
    listener_calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(listener_calls.revoked({P0}))
    await eventually(lambda: listener.running == 1, "the hook runs")
    waiting.cancel()
    await asyncio.wait({waiting})
    listener_calls.lost({P0})
    await eventually(lambda: len(listener.calls) == 2, "both hooks were called")
    assert listener.calls == [("revoked", [P0]), ("lost", [P0])]
    assert "on_partitions_revoked was cancelled: its member does not wait for it any longer: t:0" in caplog.text


async def test_a_coroutine_hook_must_not_make_a_call_that_waits_for_it() -> None:
    """The error says which hook, and what to do. A plain function, a task of the hook, and others may make the call."""
    errors: list[str] = []

    def try_it() -> None:
        try:
            listener_calls.check_outside()
            errors.append("")
        except IllegalStateError as error:
            errors.append(str(error))

    async def beside() -> None:
        try_it()

    class Closing:
        async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            try_it()
            await asyncio.create_task(beside())

        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            try_it()

    listener_calls = ListenerCalls(cast(Any, Closing()), Metrics())
    await listener_calls.assigned({P0})
    await listener_calls.revoked({P0})
    try_it()
    assert errors[1].startswith("close() was called in the listener's on_partitions_revoked, for whose end it waits")
    assert [errors[0], *errors[2:]] == ["", "", ""]


class _OneHook:
    """A listener without the other hooks."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append("assigned")


async def test_hooks_that_a_listener_lacks_are_not_called() -> None:
    """A listener may have any of the hooks."""
    listener = _OneHook()
    check_listener(listener)
    calls = ListenerCalls(cast(Any, listener), Metrics())
    await calls.revoked([TopicPartition("t", 0)])
    await calls.assigned([TopicPartition("t", 0)])
    calls.lost([TopicPartition("t", 0)])
    assert listener.calls == ["assigned"]


@pytest.mark.parametrize("wrong", [print, "listener", 7, _OneHook, SimpleNamespace(on_partitions_lost=1)])
def test_an_object_without_hooks_is_no_listener(wrong: object) -> None:
    """The error is a TypeError and a ConfigError."""
    for error in (TypeError, ConfigError):
        with pytest.raises(error, match="listener: "):
            check_listener(wrong)


@pytest.mark.parametrize("hook", ["assigned", "lost"])
async def test_a_revocation_without_a_hook_waits_for_the_running_hook(hook: str) -> None:
    """Another member must not get the partitions while a hook of the listener still works on them."""
    listener, lacking = BlockingListener(), _OneHook()
    release = listener.block(hook)
    current: list[object] = [listener]
    calls = ListenerCalls(None, Metrics(), lambda: cast(Any, current[0]))
    running = asyncio.ensure_future(calls.assigned({P0})) if hook == "assigned" else calls.lost({P0})
    await eventually(lambda: listener.running == 1, "the hook runs")
    current[0] = lacking
    revoking = asyncio.ensure_future(calls.revoked({P0}))
    await run_ready_tasks()
    assert not revoking.done()
    release.set()
    await asyncio.wait_for(revoking, 5)
    assert listener.running == 0
    if running is not None:
        await running


async def test_the_listener_of_a_subscription_replaces_the_default() -> None:
    """The one that applies at the time of the event is called."""
    default, other = _OneHook(), _OneHook()
    current: list[_OneHook | None] = [None]
    calls = ListenerCalls(cast(Any, default), Metrics(), lambda: cast(Any, current[0]))
    await calls.assigned([TopicPartition("t", 0)])
    current[0] = other
    await calls.assigned([TopicPartition("t", 0)])
    current[0] = None
    await calls.assigned([TopicPartition("t", 0)])
    assert (len(default.calls), len(other.calls)) == (2, 1)
