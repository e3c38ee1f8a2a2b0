"""Hooks of blocking consumers run beside the loop, so that they can call the consumer and other blocking clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator
from contextvars import Context
from typing import Any

import pytest

from kiel_groups.clients.delivery import listener_calls
from kiel_groups.errors import ArgumentTypeError, BadRecordError, ClosedError, ConfigError, IllegalStateError
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition
from kiel_groups.sync import LoopThread, Producer, SingleConsumer
from kiel_groups.sync.blocking_client import HookThreads
from tests.helpers.fake_broker import FakeBroker, message_set
from tests.helpers.producers import stored
from tests.helpers.single_consumers import T0, T1

pytestmark = pytest.mark.unit


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker on a loop of its own, with the values 0 to 9 in partition 0 of topic t."""
    with LoopThread("broker") as loop:
        running = FakeBroker({"t": 2, "dead": 1})
        loop.run(running.__aenter__())
        running.append(T0, message_set(*[b"%d" % number for number in range(10)]))
        yield running
        loop.run(running.stop())


def consumer_of(broker: FakeBroker, **settings: Any) -> SingleConsumer:
    return SingleConsumer([str(broker.address)], max_wait_time=500, backoff_ms=2, **settings)


class Listener:
    """Calls its consumer in its hooks."""

    def __init__(self) -> None:
        self.consumer: SingleConsumer | None = None
        self.threads: list[threading.Thread] = []
        self.end: int | None = None

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        assert self.consumer is not None
        self.threads.append(threading.current_thread())
        assert self.consumer.position(T0) == 0
        self.consumer.pause(T1)
        self.consumer.seek(T0, 7)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        assert self.consumer is not None
        self.threads.append(threading.current_thread())
        self.end = self.consumer.position(T0)


def test_a_listener_calls_the_consumer(broker: FakeBroker) -> None:
    """Also while another call waits for the hook, as ``close`` does. The hooks run on daemon threads of their own."""
    listener = Listener()
    with consumer_of(broker) as consumer:
        listener.consumer = consumer
        consumer.subscribe("t", SingleConsumer.BEGINNING, None, listener)
        assert [next(consumer).value for _ in range(2)] == [b"7", b"8"]
        assert consumer.paused() == {T1}
        consumer.close()
    assert listener.end == 9
    assert [thread.daemon for thread in listener.threads] == [True, True]
    assert {thread.name for thread in listener.threads} == {"kiel-groups-sync.SingleConsumer-hook"}


def test_a_close_in_a_hook_of_the_listener_is_an_error(broker: FakeBroker) -> None:
    """It would wait for the hook. Nothing is closed, and another thread may close the consumer."""
    errors: list[str] = []
    closing: list[threading.Thread] = []

    class Closing:
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            try:
                consumer.close()
            except IllegalStateError as error:
                errors.append(str(error))

        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            closing.append(threading.Thread(target=consumer.close))
            closing[0].start()

    with consumer_of(broker) as consumer:
        consumer.subscribe("t", SingleConsumer.BEGINNING, None, Closing())  # type: ignore[arg-type]
        assert next(consumer).value == b"0"
        consumer.unsubscribe()
        closing[0].join()
    assert len(errors) == 1
    assert "in the listener's on_partitions_assigned, for whose end it waits; have another thread call it" in errors[0]


@pytest.mark.parametrize("method", ["consume", "getone", "getmany"])
def test_a_call_in_a_hook_does_not_wait_for_the_close_that_waits_for_the_hook(broker: FakeBroker, method: str) -> None:
    """Also if the hook, which gets no records, was waiting for some before the close."""
    begun = threading.Event()
    found: list[object] = []

    class Reading:
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            begun.set()
            try:
                found.append({"consume": lambda: consumer.consume("t"), "getone": consumer.getone}.get(method, many)())
            except ClosedError:
                found.append(None)

    def many() -> object:
        return consumer.getmany(timeout_ms=float("inf"))

    consumer = consumer_of(broker)
    consumer.connect()
    consumer.subscribe("t", SingleConsumer.BEGINNING, None, Reading())  # type: ignore[arg-type]
    assert begun.wait(10)
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert found == [None]


def test_a_dead_letter_hook_produces(broker: FakeBroker) -> None:
    """A function as ``on_bad_record`` sends the record with a blocking producer, and the next record follows."""
    with Producer([str(broker.address)]) as producer:

        def to_dead_letters(record: Record, _: BadRecordError) -> None:
            producer.produce("dead", record.value, partition=0).result(10)

        def deserialize(value: bytes) -> int:
            return 1 // int(value)

        with consumer_of(broker, deserializer=deserialize, on_bad_record=to_dead_letters) as consumer:
            consumer.subscribe("t", start=SingleConsumer.BEGINNING)
            assert next(consumer).value == 1
            assert consumer.metrics.counter("bad_record_hooks_failed") == 0
    assert stored(broker, TopicPartition("dead", 0)) == [(None, b"0")]


def test_a_coroutine_function_runs_on_the_loop(broker: FakeBroker) -> None:
    """As before: it may await, and may not block."""
    threads: list[str] = []

    async def hook(*_: object) -> None:
        await asyncio.sleep(0)
        threads.append(threading.current_thread().name)

    class Hook:
        async def __call__(self, *_: object) -> None:
            await hook()

    for on_bad_record in (hook, Hook(), lambda *_: hook()):
        with consumer_of(broker, deserializer=lambda value: 1 // int(value), on_bad_record=on_bad_record) as consumer:
            consumer.subscribe("t", start=SingleConsumer.BEGINNING)
            assert next(consumer).value == 1
    assert threads == ["kiel-groups-sync.SingleConsumer"] * 3


@pytest.mark.parametrize("listener", [Listener, object(), "listener"])
def test_what_is_no_listener_is_refused(broker: FakeBroker, listener: Any) -> None:
    """The error names what the program gave."""
    with consumer_of(broker) as consumer, pytest.raises(ArgumentTypeError) as got:
        consumer.subscribe("t", listener=listener)
    assert repr(listener) in str(got.value)


@pytest.mark.parametrize("on_bad_record", [42, Listener, "ignore"])
def test_what_is_no_hook_is_refused(on_bad_record: Any) -> None:
    """The constructor refuses it, as that of the asynchronous client does."""
    with pytest.raises(ConfigError, match="expected 'raise', 'skip', or a function"):
        SingleConsumer("127.0.0.1:1", on_bad_record=on_bad_record)


# ---------------------------------------------------------------------- one at a time


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread("test") as running:
        yield running


def hooks_of(loop: LoopThread) -> HookThreads:
    local = threading.local()

    def context() -> Context:
        if not hasattr(local, "context"):
            local.context = Context()
        found: Context = local.context
        return found

    return HookThreads(loop, "test", context)


def test_missing_hooks_stay_missing(loop: LoopThread) -> None:
    """A listener without a hook is not asked to run it, and ``on_stalled`` is still the listener's own."""

    class Stalled:
        def on_stalled(self, stall: object) -> None: ...

    original = Stalled()
    replaced = hooks_of(loop).replace("listener", original)
    assert vars(replaced) == {"on_stalled": original.on_stalled}
    assert isinstance(replaced, listener_calls.StallListener)


def test_functions_of_one_kind_run_one_at_a_time_and_in_order(loop: LoopThread) -> None:
    """A callback of a commit sees what the one before it has done. Functions of another kind do not wait."""
    hooks = hooks_of(loop)
    began, may_return, calls = threading.Event(), threading.Event(), list[int]()

    def slow(_: int) -> None:
        began.set()
        assert may_return.wait(10)
        calls.append(1)

    async def start() -> None:
        first = asyncio.ensure_future(hooks.replace("callback", slow)(1))
        second = asyncio.ensure_future(hooks.replace("default_offset_commit_callback", calls.append)(2))
        await asyncio.to_thread(began.wait, 10)
        await hooks.replace("on_bad_record", calls.append)(0)
        assert not second.done()
        may_return.set()
        await asyncio.gather(first, second)

    loop.run(start(), 30)
    assert calls == [0, 1, 2]


def test_a_cancelled_hook_ends_before_the_next_one_starts(loop: LoopThread) -> None:
    """Threads cannot be cancelled: a loss is reported once the running hook of the same partitions has ended."""
    began, may_return, calls = threading.Event(), threading.Event(), list[str]()

    class Slow:
        def on_partitions_assigned(self, _: object) -> None:
            began.set()
            assert may_return.wait(10)
            calls.append("assigned")

        def on_partitions_lost(self, _: object) -> None:
            calls.append("lost")
            lost.set()

    lost = threading.Event()
    listener = hooks_of(loop).replace("listener", Slow())

    async def lose() -> None:
        running = listener_calls.ListenerCalls(listener, Metrics())
        assigning = asyncio.ensure_future(running.assigned([T0]))
        await asyncio.to_thread(began.wait, 10)
        running.lost([T0])
        await asyncio.sleep(0)
        assert calls == []
        may_return.set()
        await assigning
        await asyncio.to_thread(lost.wait, 10)

    loop.run(lose(), 30)
    assert calls == ["assigned", "lost"]


def test_a_hook_that_hangs_does_not_keep_the_loop(loop: LoopThread) -> None:
    """A stop leaves the hook's thread behind, which ends with the process."""
    began, may_return = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        may_return.wait(60)

    hanging = loop.begin(lambda: hooks_of(loop).replace("callback", hang)())
    assert began.wait(10)
    assert loop.stop(2)
    assert hanging.cancelled()
    may_return.set()


def test_a_function_called_for_a_hook_does_not_wait_for_it(loop: LoopThread) -> None:
    """The hook may wait for that call: a callback that waits for a commit with a callback of its own."""
    hooks = hooks_of(loop)
    inner = hooks.replace("callback", lambda: None)

    def outer() -> None:
        context = hooks._context()

        async def call() -> None:
            await asyncio.get_running_loop().create_task(inner(), context=context)

        loop.call(call, 10)

    loop.run(hooks.replace("callback", outer)(), 20)
