"""The listener of a consumer without a group: its hooks, and when they are called."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients import BEGINNING, SingleConsumer
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError
from kiel_groups.model import TopicPartition
from tests.helpers.single_consumers import T0, T1, consuming, take_values
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


class HookLog:
    """A listener that records the calls of its hooks, with the positions that it finds."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition], list[int]]] = []
        self.consumer: SingleConsumer | None = None

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        await self._record("assigned", partitions)

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await self._record("revoked", partitions)

    async def _record(self, hook: str, partitions: list[TopicPartition]) -> None:
        assert self.consumer is not None
        self.calls.append((hook, partitions, [await self.consumer.position(each) for each in partitions]))
        if hook == "assigned":
            self.consumer.seek(T0, 1)


async def test_a_listener_is_notified_of_partitions_that_are_read_and_of_their_end() -> None:
    """The assigned hook may seek before the first record; the revoked hook still finds the positions."""
    hooks = HookLog()
    async with consuming(b"0", b"1", b"2") as (_, consumer):
        hooks.consumer = consumer
        await consumer.subscribe("t", start=BEGINNING, listener=hooks)
        assert await take_values(consumer, 1) == [b"1"]
        await consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
    assert hooks.calls == [("assigned", [T0, T1], [0, 0]), ("revoked", [T0, T1], [2, 0])]


async def test_unsubscribe_takes_effect_at_the_call_unless_a_hook_comes_first() -> None:
    """The hook finds the positions, so with a listener an application awaits the future, as in the test above."""
    async with consuming(b"0", b"1") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        left = consumer.unsubscribe()
        assert consumer.assignment() == consumer.subscription() == frozenset()
        consumer.assign([T0])
        consumer.seek(T0, 1)
        await left
        assert consumer.assignment() == {T0}
        assert await take_values(consumer, 1) == [b"1"]
        consumer.unsubscribe()
        hooks = HookLog()
        hooks.consumer = consumer
        await consumer.subscribe("t", start=BEGINNING, listener=hooks)
        left = consumer.unsubscribe()
        assert consumer.assignment() == {T0, T1}
        again = consumer.unsubscribe()
        await left
        assert consumer.assignment() == frozenset()
        await again


async def test_no_record_is_delivered_before_the_assigned_hook_has_returned() -> None:
    """A program may load the state of a partition there."""
    is_loaded = asyncio.Event()

    class Loader:
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            await is_loaded.wait()

    async with consuming(b"0") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING, listener=Loader())  # type: ignore[arg-type]
        assert await consumer.getmany(timeout_ms=300) == {}
        is_loaded.set()
        assert [record.value for record in (await consumer.getmany(timeout_ms=10_000))[T0]] == [b"0"]


async def test_a_listener_is_notified_at_the_close_and_a_new_one_replaces_it() -> None:
    """Partitions of ``assign`` have no listener, and nothing is read after the revoked hook."""
    first, second = HookLog(), HookLog()
    async with consuming(b"0") as (_, consumer):
        first.consumer = second.consumer = consumer
        await consumer.subscribe("t", start=BEGINNING, listener=first)
        await consumer.subscribe("t", listener=second)
        with pytest.raises(TypeError, match="listener: 5 given"):
            await consumer.subscribe("t", listener=5)  # type: ignore[arg-type]
    assert [call[0] for call in second.calls] == ["revoked"]
    assert [call[0] for call in first.calls] == ["assigned"]


async def test_topics_that_are_subscribed_to_while_the_revoked_hook_runs_remain() -> None:
    """The subscription begins after the unsubscribing has ended."""
    hooks = HookLog()
    async with consuming(b"0") as (_, consumer):
        hooks.consumer = consumer
        await consumer.subscribe("t", start=BEGINNING, listener=hooks)
        unsubscribed = consumer.unsubscribe()
        await consumer.subscribe("t", start=BEGINNING)
        assert unsubscribed.done()
        assert consumer.assignment() == {T0, T1}
        assert await take_values(consumer, 1) == [b"0"]


async def test_a_close_with_a_limit_does_not_wait_for_the_hook() -> None:
    """A later call shortens a close that runs already; the hook is cancelled."""
    is_cancelled = asyncio.Event()

    class Hanging:
        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                is_cancelled.set()

    async with consuming(b"0") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING, listener=Hanging())  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"close\(\): timeout_s: -1 given"):
            consumer.close(timeout_s=-1)
        closing = consumer.close(timeout_s=600)
        await asyncio.sleep(0)
        assert not closing.done()
        async with asyncio.timeout(10):
            await consumer.close(timeout_s=0.01)
        assert is_cancelled.is_set()
        assert closing.done()


async def test_a_close_in_a_hook_of_the_consumer_is_an_error() -> None:
    """It would wait for the hook. Nothing is closed."""
    errors: list[str] = []

    class Closing:
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            try:
                await consumer.close()
            except IllegalStateError as error:
                errors.append(str(error))

    async with consuming(b"0", b"1") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING, listener=Closing())  # type: ignore[arg-type]
        assert await take_values(consumer, 1) == [b"0"]
    assert len(errors) == 1
    assert "close() was called in the listener's on_partitions_assigned, for whose end it waits" in errors[0]


async def test_a_call_in_a_hook_does_not_wait_for_the_close_that_waits_for_the_hook() -> None:
    """Other calls of ``consume()`` return None once the close has ended."""
    found: list[object] = []

    class Consuming:
        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            found.append(await consumer.consume("t"))

    async with consuming(b"0", deserializer=bytes) as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING, listener=Consuming())  # type: ignore[arg-type]
        assert await consumer.consume("t") == [b"0"]
        async with asyncio.timeout(10):
            await consumer.close()
    assert found == [None]


async def test_a_call_that_a_hook_waits_for_does_not_wait_for_the_close() -> None:
    """The hook gets no records while they wait for it. Other calls of ``getone()`` fail once the close has ended."""
    found: list[object] = []

    class Getting:
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            found.append("begun")
            try:
                await consumer.getone()
            except ClosedError:
                found.append("closed")

    async with consuming(b"0") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING, listener=Getting())  # type: ignore[arg-type]
        await eventually(lambda: bool(found), "the hook has begun")
        async with asyncio.timeout(10):
            await consumer.close()
    assert found == ["begun", "closed"]
