"""The producer, for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import suppress
from itertools import chain
from typing import Any, Literal, overload

from kiel_groups import clients
from kiel_groups.clients import RecordMetadata
from kiel_groups.clients.produce.batches import MESSAGE_OVERHEAD_BYTES
from kiel_groups.clients.produce.outcomes import fail_future, settle_failed
from kiel_groups.clients.produce.partitioners import as_values
from kiel_groups.config import check_name
from kiel_groups.errors import ClosedError, OutcomeUnknownError
from kiel_groups.sync.blocking_client import Attribute, Blocking, blocking, ending, open_clients, takes_arguments_of
from kiel_groups.sync.loop_thread import check_no_loop_runs

#: How many records may be handed over before threads wait: the loop does nothing else while it takes records.
_MOST_HANDED = 1_000

#: Held while a future gets its condition, or its result without one. The event loop's thread waits for this lock, and a
#: signal handler may wait for that thread. So code of other threads that holds the lock calls nothing: Python runs the
#: handlers of signals at calls.
_watching = threading.RLock()


class RecordFuture(concurrent.futures.Future[RecordMetadata]):
    """
    The future of a record, which cannot be cancelled.

    Most of the time and of the memory of a future is its condition. This one has none until a thread waits for the
    outcome, or adds a callback. From then on, it is as any other future: its state changes only while its condition is
    held, as the functions of ``concurrent.futures`` expect.
    """

    _state = RUNNING
    _result: RecordMetadata | None = None
    _exception: BaseException | None = None
    _is_watched = False

    def __init__(self) -> None:
        """Set nothing: the class has the state of a new future."""

    def __getattr__(self, name: str) -> Any:
        """Create what a watched future has, whichever thread asks first."""
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(name)
        value: Any = threading.Condition() if name == "_condition" else []
        attributes = self.__dict__
        with _watching:
            self._is_watched = True
            if name not in attributes:
                attributes[name] = value
        return attributes[name]

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[RecordMetadata]], object]) -> None:
        """Call a function with this future once the record has an outcome."""
        callbacks = [fn]
        with _watching:
            if not self._is_watched and self._state == RUNNING:
                self._is_watched = True
                self._done_callbacks = callbacks
                return
        super().add_done_callback(fn)

    def done(self) -> bool:
        """Return whether the record has an outcome."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is stored, and return its place, or raise the error."""
        if self._state == FINISHED and self._result is not None:
            return self._result
        return super().result(timeout)

    def set_result(self, result: RecordMetadata) -> None:
        """Set the place of the record."""
        with _watching:
            if not self._is_watched and self._state == RUNNING:
                self._result = result
                self._state = FINISHED
                return
        super().set_result(result)


class Producer(Blocking[clients.Producer]):
    """
    Sends records to topics, for programs without an event loop. The arguments are those of ``kiel_groups.Producer``.

    ``with Producer([...]) as producer`` connects, and flushes and closes at the end of the block. ``produce`` returns a
    future. All other methods wait for their outcome. Several threads may call methods at once.
    """

    @takes_arguments_of(clients.Producer)
    def __init__(self) -> None: ...

    def _set_up(self, *arguments: Any) -> None:
        self._hand_over_nothing()
        #: What gets the outcomes of futures of the loop, and these.
        self._passed_on: dict[concurrent.futures.Future[Any], asyncio.Future[Any]] = {}
        super()._set_up(*arguments)

    def _hand_over_nothing(self) -> None:
        # Without a lock: a signal handler may interrupt ``produce``, and wait for the loop, as ``close`` does.
        #: The arguments of ``Placement.add`` for the records that the loop has not taken yet, and about their size.
        self._handed: deque[Any] = deque()
        self._handed_bytes = 0
        #: How often the loop has taken records, and that number when a thread has asked it to for the last time.
        self._taken, self._asked_at = 0, -1

    connect = blocking(clients.Producer.connect)
    drain = blocking(clients.Producer.drain)
    flush = blocking(clients.Producer.flush)
    wind_down = blocking(clients.Producer.wind_down)
    close = ending(clients.Producer.close)

    metrics = Attribute(clients.Producer, lambda producer: producer.metrics)
    closing = Attribute(clients.Producer, lambda producer: producer.closing)
    batch_size = Attribute(clients.Producer, lambda producer: producer.batch_size)
    compression = Attribute(clients.Producer, lambda producer: producer.compression)
    required_acks = Attribute(clients.Producer, lambda producer: producer.required_acks)
    serializer = Attribute(clients.Producer, lambda producer: producer.serializer)
    key_maker = Attribute(clients.Producer, lambda producer: producer.key_maker)
    partitioner = Attribute(clients.Producer, lambda producer: producer.partitioner)
    ack_timeout = Attribute(clients.Producer, lambda producer: producer.ack_timeout)
    linger_ms = Attribute(clients.Producer, lambda producer: producer.linger_ms)
    max_buffered_bytes = Attribute(clients.Producer, lambda producer: producer.max_buffered_bytes)
    buffered_bytes = Attribute(clients.Producer, lambda producer: producer.buffered_bytes)
    unsent_count = Attribute(clients.Producer, lambda producer: producer.unsent_count)

    def produce(
        self, topic: str, message: Any, key: Any = None, partition: int | None = None
    ) -> concurrent.futures.Future[RecordMetadata]:
        """
        Send one record, whether or not the program waits for the future.

        If ``max_buffered_bytes`` are buffered already, this method first waits until at most half of them are buffered.
        If threads produce faster than the event loop takes records, they wait for the loop after every 1,000 records.
        Apart from these waits, the method works as ``kiel_groups.Producer.produce`` does: with a ``batch_size`` above 1
        and no ``linger_ms``, only the future of the record that completes a batch waits for the outcomes of the batch.

        Args:
            topic: The topic to write to.
            message: The value, for the serializer. Without a serializer: bytes, anything that JSON can represent, or
                None for a null value, which deletes its key from a compacted topic.
            key: The producer sends bytes unchanged, None as null, and any other key as the UTF-8 of its ``str()``.
            partition: The partition's number. If this argument is given, the producer does not call the partitioner.

        Returns:
            A future: ``result()`` waits until the record is stored, and returns its topic, partition and offset, or
            raises the error. Failures are also logged.

        Raises:
            ConfigError: The topic's name is not legal, or the value or key cannot be encoded.
            ClosedError: The producer was closed.
        """
        client, appender = self._client, self._client._appender
        if client._in_rounds:
            # The future of a record may wait for the records of its batch.
            return self._wait(self._accepted, client.produce, topic, message, key, partition)
        check_no_loop_runs(self._instead)
        try:
            if client.closing:
                # At once: a thread that produces in a loop would keep the loop busy with records that it must refuse.
                raise ClosedError("the producer was closed")
            if type(topic) is not str or topic not in appender.topics:
                check_name(topic, "topic")
            key, encoded_key, value = client._encode(message, key)
        except Exception:
            client.metrics.count("produce_failures")
            raise
        if appender.buffered_bytes + self._handed_bytes >= appender.most_buffered_bytes:
            self._wait(client.drain)
        elif len(self._handed) >= _MOST_HANDED:
            # A call on the loop begins when the loop has taken what was handed over before.
            self._wait(asyncio.sleep, 0)
        outcome = RecordFuture()
        self._handed_bytes += MESSAGE_OVERHEAD_BYTES + len(encoded_key or b"") + len(value or b"")
        self._handed.append((topic, key, encoded_key, value, partition, outcome))
        # If the numbers are equal, the loop has not begun to take since a thread asked it to, so it takes this record.
        if self._asked_at != (taken := self._taken):
            try:
                self._thread.call_soon(self._take_handed)
            except Exception as error:
                # If a signal handler has closed the producer meanwhile, the loop may have taken the record before.
                if not outcome.done():
                    for each in self._untaken():
                        fail_future(each, error)
                    raise
            self._asked_at = taken
        return outcome

    def _untaken(self) -> list[RecordFuture]:
        """Remove the records that the loop has not taken, and return their futures. The loop has ended."""
        return [self._handed.popleft()[-1] for _ in range(len(self._handed))]

    def _take_handed(self) -> None:
        """On the loop, queue the records that other threads have handed over since the last call."""
        self._taken += 1
        # A thread adds a size before it adds the record, and asks for another take after both. So the size is right
        # again after that take, if this assignment has come between.
        self._handed_bytes = 0
        append, take = self._client._appender.append, self._handed.popleft
        for _ in range(len(self._handed)):
            topic, key, encoded_key, value, partition, outcome = take()
            try:
                # A partitioner gets the key that the application gave.
                chosen = append(topic, value, key, partition, outcome) if key is encoded_key else partition
                if isinstance(chosen, RecordFuture):
                    continue
                if self._client.closing:
                    self._client.metrics.count("produce_failures")
                    outcome.set_exception(ClosedError("the producer was closed"))
                else:
                    self._client._place(topic, key, encoded_key, value, partition, chosen, outcome)
            except BaseException as error:
                # The application's partitioner has raised, for instance, SystemExit, which ends the loop.
                for each in (outcome, *self._untaken()):
                    fail_future(each, ClosedError(f"{error!r} has ended the event loop of the producer"))
                raise

    def _abandon(self) -> None:
        super()._abandon()
        reason = ClosedError("the event loop of the producer has ended")
        for outcome, error in chain(
            self._client._without_outcome(reason), ((each, reason) for each in self._untaken())
        ):
            # The callbacks of a loop's futures need that loop.
            with suppress(RuntimeError):
                settle_failed(outcome, error)
        for outcome, accepted in list(self._passed_on.items()):
            if accepted.done():
                _settle(outcome, accepted)
            else:
                fail_future(outcome, OutcomeUnknownError(f"{reason}; records of the batch may or may not be stored"))

    @overload
    def produce_many(
        self,
        topic: str,
        messages: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partitions: Iterable[int] | int | None = None,
        *,
        each: Literal[False] = False,
    ) -> concurrent.futures.Future[int]: ...

    @overload
    def produce_many(
        self,
        topic: str,
        messages: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partitions: Iterable[int] | int | None = None,
        *,
        each: Literal[True],
    ) -> list[concurrent.futures.Future[RecordMetadata]]: ...

    def produce_many(
        self,
        topic: str,
        messages: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partitions: Iterable[int] | int | None = None,
        *,
        each: bool = False,
    ) -> Any:
        """
        Send many records of one topic, at a fraction of the cost of a call of ``produce`` for each.

        Apart from what ``produce`` says of a full buffer and of errors, this method works as
        ``kiel_groups.Producer.produce_many``.

        Args:
            topic: The topic to write to.
            messages: The values.
            keys: The key of each value.
            partitions: The partition of each value, or one partition for all.
            each: Return a future for each record.

        Returns:
            A future for the number of records, done when all are stored; with ``each``, a list with a future for each
            record.

        Raises:
            ConfigError: An argument is not valid. No record is sent.
            ClosedError: The producer was closed.
        """
        send = functools.partial(self._client.produce_many, each=each)
        return self._wait(self._accepted, send, topic, as_values(messages), keys, partitions)

    async def _accepted(self, send: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the client when there is room, and return its futures as those of other threads."""
        while self._client.is_full:
            await self._client.drain()
        accepted = send(*arguments)
        # The future of an invalid record fails within one iteration of the loop.
        await asyncio.sleep(0)
        return list(map(self._pass_on, accepted)) if isinstance(accepted, list) else self._pass_on(accepted)

    def _pass_on(self, accepted: asyncio.Future[Any]) -> concurrent.futures.Future[Any]:
        """Return a future that gets the outcome. If there is an error already, raise it."""
        if accepted.done():
            accepted.result()
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
        outcome.set_running_or_notify_cancel()
        self._passed_on[outcome] = accepted
        outcome.add_done_callback(self._passed_on.pop)
        accepted.add_done_callback(functools.partial(_settle, outcome))
        return outcome


def _settle(outcome: concurrent.futures.Future[Any], accepted: asyncio.Future[Any]) -> None:
    if outcome.done():
        # The loop has ended.
        return
    if accepted.cancelled():
        outcome.set_exception(ClosedError("the producer was closed before the record had an outcome"))
    elif error := accepted.exception():
        outcome.set_exception(error)
    else:
        outcome.set_result(accepted.result())


def _begin_fork() -> None:
    """Drop the copies of records that the parent's loop takes, and of locks, so that calls find out about the fork."""
    global _watching
    _watching = threading.RLock()
    for client in open_clients():
        if isinstance(client, Producer):
            client._hand_over_nothing()


os.register_at_fork(after_in_child=_begin_fork)
