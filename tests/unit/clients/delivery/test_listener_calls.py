"""The application's listener: one hook at a time, failures contained, losses first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import pytest

from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Listener:
    """Notes its calls; a hook whose name is in ``held`` waits until it is let go."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.running = 0
        self.most_running = 0
        self.cut_short: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        self.cleaning_up: asyncio.Event | None = None
        self.error: Exception | None = None

    def hold(self, hook: str) -> asyncio.Event:
        """Make a hook wait; set what is returned to let it go."""
        self.held[hook] = asyncio.Event()
        return self.held[hook]

    async def _called(self, hook: str, partitions: Collection[TopicPartition]) -> None:
        self.told.append((hook, list(partitions)))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if hook in self.held:
                await self.held[hook].wait()
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cut_short.append(hook)
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


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is so."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to be")


async def settled() -> None:
    """Let everything run that can run now."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_hooks_are_told_their_partitions_in_order() -> None:
    """Sorted, and the call ends when the hook has ended."""
    listener = Listener()
    calls = ListenerCalls(listener, Metrics())
    await calls.assigned([P1, P0])
    await calls.revoked({P1})
    assert listener.told == [("assigned", [P0, P1]), ("revoked", [P1])]
    assert listener.running == 0


async def test_plain_functions_are_hooks_too() -> None:
    """A hook need not be a coroutine function."""
    told: list[str] = []

    class Plain:
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            told.append("revoked")

        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            told.append("assigned")

        def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
            told.append("lost")

    calls = ListenerCalls(Plain(), Metrics())
    await calls.assigned({P0})
    await calls.revoked({P0})
    calls.lost({P0})
    await until(lambda: len(told) == 3)
    assert told == ["assigned", "revoked", "lost"]


async def test_without_a_listener_nothing_is_waited_for() -> None:
    """Every call ends at once."""
    calls = ListenerCalls(None, Metrics())
    await calls.assigned({P0})
    await calls.revoked({P0})
    calls.lost({P0})


async def test_never_two_hooks_at_once() -> None:
    """The second waits until the first has ended."""
    listener = Listener()
    release = listener.hold("assigned")
    calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.gather(calls.assigned({P0}), calls.revoked({P1}), calls.assigned({P1}))
    await settled()
    assert listener.told == [("assigned", [P0])]
    release.set()
    await waiting
    assert listener.told == [("assigned", [P0]), ("revoked", [P1]), ("assigned", [P1])]
    assert listener.most_running == 1


@pytest.mark.parametrize("hook", ["assigned", "revoked"])
async def test_a_failing_hook_is_counted_and_gone_past(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    """Others would wait for these partitions otherwise."""
    listener, metrics = Listener(), Metrics()
    listener.error = RuntimeError("of the application")
    calls = ListenerCalls(listener, metrics)
    await getattr(calls, hook)({P0})
    assert metrics.counter("listener_failures") == 1
    assert "of the application" in caplog.text
    listener.error = None
    await calls.revoked({P1})
    assert listener.told[-1] == ("revoked", [P1])


@pytest.mark.parametrize("hook", ["assigned", "revoked"])
async def test_a_loss_cuts_a_running_hook_short(hook: str) -> None:
    """The hook's partitions are gone: it is cancelled, then the loss is told; who waited for it goes on."""
    listener = Listener()
    listener.hold(hook)
    calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(getattr(calls, hook)({P0}))
    await until(lambda: listener.running == 1)
    calls.lost({P0, P1})
    await asyncio.wait_for(waiting, 5)
    await until(lambda: len(listener.told) == 2)
    assert listener.told == [(hook, [P0]), ("lost", [P0, P1])]
    assert listener.cut_short == [hook]
    assert listener.most_running == 1


async def test_a_loss_waits_for_the_end_of_what_it_cut_short() -> None:
    """A hook that cleans up after its cancellation is still a hook that runs."""
    listener = Listener()
    listener.hold("revoked")
    listener.cleaning_up = asyncio.Event()
    calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(calls.revoked({P0}))
    await until(lambda: listener.running == 1)
    calls.lost({P0})
    await until(lambda: bool(listener.cut_short))
    await settled()
    assert len(listener.told) == 1
    listener.cleaning_up.set()
    await waiting
    await until(lambda: len(listener.told) == 2)
    assert listener.most_running == 1


async def test_a_loss_leaves_hooks_of_other_partitions_alone() -> None:
    """What stays must not be set up by halves because something else went."""
    listener = Listener()
    release = listener.hold("assigned")
    calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(calls.assigned({P0}))
    await until(lambda: listener.running == 1)
    calls.lost({P1})
    await settled()
    assert listener.cut_short == []
    release.set()
    await waiting
    await until(lambda: len(listener.told) == 2)
    assert listener.told[1] == ("lost", [P1])
    assert listener.most_running == 1


@pytest.mark.parametrize("hook", ["assigned", "revoked"])
async def test_a_loss_of_a_part_does_not_cancel_the_hook(hook: str) -> None:
    """The hook ends before its other partition is delivered, or released. If that is lost too, it is cancelled."""
    listener = Listener()
    release = listener.hold(hook)
    calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(getattr(calls, hook)({P0, P1}))
    await until(lambda: listener.running == 1)
    calls.lost({P0})
    await settled()
    assert (listener.cut_short, listener.told) == ([], [(hook, [P0, P1])])
    release.set()
    await waiting
    await until(lambda: listener.told[1:] == [("lost", [P0])])
    release.clear()
    waiting = asyncio.ensure_future(getattr(calls, hook)({P0, P1}))
    await until(lambda: listener.running == 1)
    calls.lost({P1})
    calls.lost({P0})
    await asyncio.wait_for(waiting, 5)
    await until(lambda: listener.told[3:] == [("lost", [P1]), ("lost", [P0])])
    assert (listener.cut_short, listener.most_running) == ([hook], 1)


async def test_a_loss_does_not_cut_an_earlier_loss_short() -> None:
    """Each loss is told to its end."""
    listener = Listener()
    release = listener.hold("lost")
    calls = ListenerCalls(listener, Metrics())
    calls.lost({P0})
    await until(lambda: listener.running == 1)
    calls.lost({P0, P1})
    await settled()
    release.set()
    await until(lambda: len(listener.told) == 2 and not listener.running)
    assert listener.told == [("lost", [P0]), ("lost", [P0, P1])]
    assert listener.cut_short == []
    assert listener.most_running == 1


async def test_a_hook_nobody_waits_for_any_more_ends_before_the_next_begins() -> None:
    """Whoever waited was cancelled with its session: the hook is cut short, and the loss is told after it."""
    listener = Listener()
    listener.hold("revoked")
    listener.cleaning_up = asyncio.Event()
    calls = ListenerCalls(listener, Metrics())
    waiting = asyncio.ensure_future(calls.revoked({P0}))
    await until(lambda: listener.running == 1)
    waiting.cancel()
    calls.lost({P1})
    await until(lambda: bool(listener.cut_short))
    await settled()
    assert len(listener.told) == 1
    listener.cleaning_up.set()
    await until(lambda: len(listener.told) == 2)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert listener.most_running == 1


async def test_a_call_cancelled_while_it_waits_for_its_turn_is_never_made() -> None:
    """And it does not stand in the way of those behind it."""
    listener = Listener()
    release = listener.hold("assigned")
    calls = ListenerCalls(listener, Metrics())
    first = asyncio.ensure_future(calls.assigned({P0}))
    await until(lambda: listener.running == 1)
    second = asyncio.ensure_future(calls.revoked({P1}))
    await settled()
    second.cancel()
    release.set()
    await first
    calls.lost({P1})
    await until(lambda: len(listener.told) == 2)
    assert listener.told == [("assigned", [P0]), ("lost", [P1])]
