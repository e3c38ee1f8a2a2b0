"""The commit methods of a grouped consumer: what they count, when they begin, and to whom they report."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups import OffsetAndMetadata, TopicPartition
from kiel_groups.clients import GroupedConsumer
from kiel_groups.clients.calls.callers import current_caller
from kiel_groups.errors import ClosedError, CommitFailedError, ConfigError, IllegalStateError
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)


class Connected:
    """A connected consumer that notes its calls; ``outcome`` is the outcome of each commit."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.outcome: Any = frozenset({T0})
        #: The futures of the commits. Those that begin while ``is_pending`` is set have no outcome yet.
        self.commits: list[asyncio.Future[Any]] = []
        self.is_pending = False
        self.reader = self
        self.records = SimpleNamespace(in_flight=SimpleNamespace(count=lambda: self.calls.append("count")))
        self.values = SimpleNamespace(finish=lambda calls: None)

    def commit_shielded(self, metadata: str = "") -> asyncio.Future[Any]:
        return self._committed("commit")

    def commit_chosen_shielded(self, offsets: Mapping[TopicPartition, int]) -> asyncio.Future[Any]:
        return self._committed(dict(offsets))

    def _committed(self, call: object) -> asyncio.Future[Any]:
        self.calls.append(call)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.commits.append(done)
        if self.is_pending:
            return done
        if isinstance(self.outcome, Exception):
            done.set_exception(self.outcome)
        else:
            done.set_result(self.outcome)
        return done


def consumer_of(**settings: Any) -> tuple[GroupedConsumer, Connected]:
    consumer, connected = GroupedConsumer("127.0.0.1:1", "g", "127.0.0.1:1", **settings), Connected()
    consumer._lifecycle.connected = cast(Any, connected)
    # A loop of the running task.
    loop = SimpleNamespace(caller=current_caller())
    consumer._calls._loop = cast(Any, lambda: loop)
    return consumer, connected


async def test_only_a_commit_without_offsets_counts_the_record_in_flight() -> None:
    consumer, connected = consumer_of()
    assert await consumer.commit({T0: 3}) == {T0}
    assert connected.calls == [{T0: 3}]
    assert await consumer.commit() == {T0}
    assert connected.calls == [{T0: 3}, "count", "commit"]


async def test_a_commit_of_another_task_does_not_count_the_record_in_flight() -> None:
    """The loop still processes it: if the process dies, the next owner must get it again."""
    consumer, connected = consumer_of()

    async def commit() -> frozenset[TopicPartition]:
        return await consumer.commit()

    assert await asyncio.create_task(commit()) == {T0}
    assert connected.calls == ["commit"]


@pytest.mark.parametrize("begin", [GroupedConsumer.commit, GroupedConsumer.commit_async])
async def test_a_commit_has_begun_when_the_call_returns(begin: Callable[..., asyncio.Future[Any]]) -> None:
    """The record in flight at the call counts, and a close right after the call does not refuse the commit."""
    consumer, connected = consumer_of()
    committing = begin(consumer)
    assert connected.calls == ["count"]
    consumer._lifecycle.closed = True
    assert await committing == {T0}
    with pytest.raises(ClosedError):
        await begin(consumer)


async def test_a_commit_is_possible_until_the_close_has_ended() -> None:
    """A revoked hook may commit at a close, too."""
    consumer, connected = consumer_of()
    consumer._lifecycle.closed = True
    consumer._lifecycle.closing = closing = asyncio.get_running_loop().create_future()
    assert await consumer.commit({T0: 3}) == {T0}
    with pytest.raises(ClosedError):
        consumer.__aiter__()
    closing.set_result(None)
    with pytest.raises(ClosedError):
        await consumer.commit({T0: 3})
    assert connected.calls == [{T0: 3}]


@pytest.mark.parametrize("own", [True, False])
async def test_a_callback_gets_the_offsets_and_the_outcome(own: bool) -> None:
    """The callback of the call, or else the one of the constructor. Of a commit without offsets, the finished ones."""
    calls = list[tuple[Any, ...]]()

    def callback(*outcome: Any) -> None:
        calls.append(outcome)

    def wrong(*outcome: Any) -> None:
        raise AssertionError

    consumer, connected = consumer_of(default_offset_commit_callback=wrong if own else callback)
    given = callback if own else None
    assert await consumer.commit_async({T0: (3, "x")}, given) == {T0}  # type: ignore[dict-item]
    assert calls.pop() == ({T0: OffsetAndMetadata(3, "x")}, {T0})
    error = connected.outcome = CommitFailedError("superseded")
    with pytest.raises(CommitFailedError):
        await consumer.commit_async({T0: 3}, given)
    assert calls.pop() == ({T0: OffsetAndMetadata(3)}, error)
    consumer.commit_async({T0: -1}, given)
    await run_ready_tasks()
    (offsets, error) = calls.pop()
    assert (offsets, type(error)) == ({}, ConfigError)
    assert consumer.metrics.total("commit_callbacks_failed") == 0


async def test_an_error_without_a_callback_is_logged_if_it_is_not_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """With a callback, which has the error, it is not."""
    consumer, connected = consumer_of()
    connected.outcome = CommitFailedError("superseded")
    for callback, lines in ((lambda *_: None, 0), (None, 1)):
        consumer.commit_async({T0: 3}, callback)
        await run_ready_tasks()
        gc.collect()
        assert len(caplog.records) == lines, caplog.text


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_callback_that_raises_is_logged_and_counted(caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    """The future has the outcome of the commit all the same."""
    consumer, _ = consumer_of()

    def fails(offsets: object, outcome: object) -> None:
        raise RuntimeError("a bug")

    async def fails_later(offsets: object, outcome: object) -> None:
        raise RuntimeError("a bug")

    assert await consumer.commit_async({T0: 3}, fails_later if is_async else fails) == {T0}
    assert consumer.metrics.total("commit_callbacks_failed") == 1
    assert [record.getMessage() for record in caplog.records] == ["group g: the callback of a commit failed"]
    assert caplog.records[0].exc_info is not None


async def test_a_callback_that_ends_in_a_cancellation_of_something_else_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The commit is not cancelled, and neither is the coroutine that awaits it."""
    consumer, _ = consumer_of()

    async def awaits_cancelled(offsets: object, outcome: object) -> None:
        sending = asyncio.get_running_loop().create_future()
        sending.cancel()
        await sending

    assert await consumer.commit_async({T0: 3}, awaits_cancelled) == {T0}
    assert consumer.metrics.total("commit_callbacks_failed") == 1
    assert [record.getMessage() for record in caplog.records] == ["group g: the callback of a commit failed"]


async def test_callbacks_are_called_in_the_order_of_the_commits() -> None:
    """The second commit fails at once, as after a lost session, while the first one has no outcome yet."""
    consumer, connected = consumer_of()
    order = list[int]()
    connected.is_pending = True
    first = consumer.commit_async({T0: 3}, lambda *_: order.append(1))
    second = consumer.commit_async({T0: -1}, lambda *_: order.append(2))
    await run_ready_tasks()
    assert order == []
    connected.commits[0].set_result({T0})
    assert await first == {T0}
    with pytest.raises(ConfigError):
        await second
    assert order == [1, 2]


async def test_a_callback_may_await_another_commit() -> None:
    """The order concerns the calls of the callbacks. If it concerned their ends, this would wait for itself."""
    consumer, _ = consumer_of()
    order = list[str]()

    async def commits_again(offsets: object, outcome: object) -> None:
        await consumer.commit_async({T0: 4}, lambda *_: order.append("inner"))
        order.append("outer")

    await asyncio.wait_for(consumer.commit_async({T0: 3}, commits_again), 5)
    assert order == ["inner", "outer"]


async def test_a_callback_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="default_offset_commit_callback: 3 given; expected a function"):
        consumer_of(default_offset_commit_callback=3)
    consumer, connected = consumer_of()
    with pytest.raises(ConfigError, match="callback: 3 given; expected a function"):
        await consumer.commit_async(callback=cast(Any, 3))
    assert connected.calls == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"autocommit": 5.0}, r"close\(\): autocommit: 5.0 given; expected True or False"),
        ({"timeout_s": -1}, r"close\(\): timeout_s: -1 given; expected seconds, at least 0, or None"),
        ({"timeout_s": True}, "timeout_s: True given"),
        ({"timeout_s": "1"}, "timeout_s: '1' given"),
        ({"timeout_s": float("nan")}, "timeout_s: nan given"),
    ],
)
async def test_arguments_of_a_close_are_checked(arguments: dict[str, Any], text: str) -> None:
    """``close(5.0)`` was a time limit once. Nothing is closed."""
    consumer, _ = consumer_of()
    with pytest.raises(ConfigError, match=text):
        consumer.close(**arguments)
    assert not consumer.closing


@pytest.mark.parametrize("retry_backoff_ms", [0, 1.5, "100"])
def test_the_pause_before_a_join_is_checked(retry_backoff_ms: Any) -> None:
    with pytest.raises(ConfigError, match=r"retry_backoff_ms: .* given; expected a whole number of at least 1"):
        consumer_of(retry_backoff_ms=retry_backoff_ms)


async def test_a_thread_without_a_loop_cannot_commit_or_close() -> None:
    """No loop would run the call there, as by ``asyncio.to_thread(consumer.commit)``: it raises at once."""
    consumer, connected = consumer_of()
    consumer._lifecycle.left_loop.remember()
    calls = [
        consumer.commit,
        partial(consumer.commit, {T0: 1}),
        consumer.commit_async,
        consumer.commit_offsets,
        consumer.close,
    ]
    for call in calls:
        with pytest.raises(IllegalStateError, match="another event loop runs this client, on another thread"):
            await asyncio.to_thread(call)
    assert connected.calls == []
    assert await consumer.commit() == frozenset({T0})
