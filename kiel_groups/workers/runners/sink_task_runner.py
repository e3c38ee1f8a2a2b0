"""
Run a sink task: read the records of its topics in the consumer group of its connector, and pass them to the task.

The runner calls the task's ``flush``, and then commits the offsets: every few seconds, before partitions are revoked,
and at the end. The consumer may revoke or assign partitions during a ``put``. The runner still calls the task's methods
one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Literal, TypeAlias, TypeVar

from kiel_groups.backoff import Backoff, RepeatedFailures
from kiel_groups.clients.grouped import GroupedConsumer
from kiel_groups.errors import ClosedError, CommitFailedError, KielGroupsError, TaskStoppedError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.interfaces import SinkTask
from kiel_groups.workers.runners.plugin_calls import Call
from kiel_groups.workers.runners.runner_interface import (
    Runner,
    RunnerContext,
    TaskRunnerContext,
    first_of,
    missing_topics_text,
    retrieve,
    sink_group,
)

log = logging.getLogger(__name__)

#: The longest wait for records, in milliseconds, and the most records of one ``put``.
_WAIT_MS, _MOST_RECORDS = 1_000, 2_000

#: The time between two commits, in seconds.
_COMMIT_INTERVAL_S = 5.0

#: The time between two looks at the topics of a task, in seconds.
_WATCH_S = 15.0

#: The first and the longest pause after an error that another try may fix, in seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


#: The records of one ``getmany``.
_Found: TypeAlias = dict[TopicPartition, list[Record]]

_Value = TypeVar("_Value")


class _SinkContext(TaskRunnerContext):
    """Implements ``SinkTaskContext``, the functions of the worker that a sink task may use."""

    _runner: SinkTaskRunner

    async def produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        await self._runner.context.fence.wait_open()
        await self._runner.producer().produce(topic, value, key)


class SinkTaskRunner(Runner):
    """Runs one sink task. The runner is the listener of the task's consumer."""

    #: The task, which is created before its consumer.
    _task: SinkTask

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        #: The partitions of the consumer, with the number of the hook that has assigned each. A partition that was lost
        #: and assigned again has another number, and what the task has taken of it before is not committed.
        self._owned: dict[TopicPartition, int] = {}
        self._assignments = count()
        #: The next offset of each owned partition, after the last record that the task has taken.
        self._taken: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._committed_s = context.runtime.boot_time_s()
        #: Held from a flush to the end of its commit: an older commit must not follow a newer one.
        self._committing = asyncio.Lock()
        #: The error of a hook, which the loop of the task raises.
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, lambda: context.runtime.uniform(0.5, 1.5))
        self._read_failures, self._commit_failures = RepeatedFailures(), RepeatedFailures()
        self._consumer: GroupedConsumer | None = None
        #: Whether the hooks of the consumer still call the task. They do not after an error, or after a cancellation.
        self._is_active = True

    async def _run_plugin(self) -> None:
        settings = self.context.settings
        task = await self._create(self.context.connector_class.task_class)
        assert isinstance(task, SinkTask)
        self._task = task
        try:
            await self.calls.call(task.start, _SinkContext(self), settings)
            policy: Literal["raise", "skip"] = "skip" if settings["errors.tolerance"] == "all" else "raise"
            group = sink_group(self.context.work.connector)
            consumer = self._consumer = self.context.clients.consumer(group, self, policy)
            if await self.until_stop(self._join(consumer)):
                self.context.started()
                watching = asyncio.ensure_future(self._watch_topics())
                try:
                    await self._deliver(consumer)
                finally:
                    watching.cancel()
            await self._flush_and_commit()
            # The consumer gives its partitions back, and its hook closes them.
            await consumer.close()
            if self._failure.done():
                self._failure.result()
        except TaskStoppedError:
            if not self.should_stop:
                raise

    async def _stop_plugin(self) -> None:
        self._is_active = False
        self._failure.cancel()
        try:
            await super()._stop_plugin()
        finally:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                with suppress(KielGroupsError):
                    await consumer.close()

    async def _join(self, consumer: GroupedConsumer) -> None:
        """Join the consumer group and subscribe to the topics. Retry after each retriable error."""
        while True:
            try:
                await consumer.connect()
                await consumer.subscribe(self.context.settings["topics"])
                self._has_read()
                return
            except KielGroupsError as error:
                await self._wait_after(error)

    async def _deliver(self, consumer: GroupedConsumer) -> None:
        """
        Pass records to the task until a stop is requested, and commit regularly. Retry after each retriable error.

        Raises:
            Exception: Any error of the task or of its hooks, or an error of the consumer that is not retriable.
        """
        while not self.should_stop:
            try:
                found = await self._next(consumer)
            except KielGroupsError as error:
                await self._wait_after(error)
                continue
            if self._failure.done():
                self._failure.result()
            self._pauses.reset()
            self._has_read()
            await self._put(found)
            if self.context.runtime.boot_time_s() - self._committed_s >= _COMMIT_INTERVAL_S:
                await self._flush_and_commit()

    async def _watch_topics(self) -> None:
        """Report topics that no broker knows. The consumer waits for such topics without any other sign."""
        while True:
            self.report("topics", await missing_topics_text(self.context.clients, self.context.settings["topics"]))
            await asyncio.sleep(_WATCH_S)

    async def _wait_after(self, error: KielGroupsError) -> None:
        """Log and report a retriable error, and wait before the next attempt; raise an error that is not retriable."""
        if not error.retriable:
            raise error
        if (times := self._read_failures.note(str(error), self.context.runtime.boot_time_s())) is not None:
            log.warning("task %s: %s; trying again%s", self.context.work, error, times)
        self.report("consumer", str(error))
        await self.pause(self._pauses.next_s())

    def _has_read(self) -> None:
        """Log and report the end of an error."""
        self.report("consumer", "")
        if self._read_failures.forget():
            log.warning("task %s: reads again", self.context.work)

    async def _next(self, consumer: GroupedConsumer) -> _Found:
        """Return the next records. After a timeout, a request to stop or a failed hook, return an empty dict."""
        getting: asyncio.Future[_Found] = asyncio.ensure_future(
            consumer.getmany(timeout_ms=_WAIT_MS, max_records=_MOST_RECORDS)
        )
        # If a stop is requested or a hook fails meanwhile, nothing retrieves its error, which asyncio would log.
        # Records that arrive after that are delivered again, to the next owner of the partition.
        getting.add_done_callback(retrieve)
        await first_of(getting, asyncio.shield(self._failure), self._stop_requested.wait())
        if self._failure.done():
            return {}
        return getting.result() if getting.done() and not getting.cancelled() else {}

    async def _put(self, found: _Found) -> None:
        if not found or self.should_stop:
            return
        owned = dict(self._owned)

        async def put(call: Call) -> None:
            if present := self._still_owned(found, owned):
                await call(self._task.put, [record for records in present.values() for record in records])
                taken = {partition: records[-1].offset + 1 for partition, records in present.items()}
                self._taken |= self._still_owned(taken, owned)

        await self.calls.in_turn(put)

    async def _flush_and_commit(self) -> None:
        """
        Call the task's ``flush``, so that the task writes out its records, and commit the records' offsets.

        Offsets of partitions that the task lost during its ``flush`` are not committed.
        """
        async with self._committing:
            self._committed_s = self.context.runtime.boot_time_s()
            due = {each: offset for each, offset in self._taken.items() if self._committed.get(each) != offset}
            if not due:
                return
            owned = dict(self._owned)
            await self.calls.in_turn(lambda call: call(self._task.flush, dict(self._taken)))
            await self.context.fence.wait_open()
            assert self._consumer is not None
            if due := self._still_owned(due, owned):
                await self._commit(self._consumer, due)

    def _still_owned(
        self, values: Mapping[TopicPartition, _Value], owned: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, _Value]:
        """Return the values of partitions that were owned when ``owned`` was copied, and were not lost since."""
        return {
            partition: value
            for partition, value in values.items()
            if partition in owned and self._owned.get(partition) == owned[partition]
        }

    async def _commit(self, consumer: GroupedConsumer, due: dict[TopicPartition, int]) -> None:
        """
        Commit offsets. Log a refusal, because other members may own some of the partitions by now.

        Raises:
            KielGroupsError: The commit failed with another error that is not retriable.
        """
        try:
            await consumer.commit(due)
        except KielGroupsError as error:
            if not (error.retriable or isinstance(error, CommitFailedError | ClosedError)):
                raise
            if (times := self._commit_failures.note(str(error), self.context.runtime.boot_time_s())) is not None:
                yet = " yet" if error.retriable else ""
                log.warning("task %s: offsets are not committed%s%s: %s", self.context.work, yet, times, error)
        else:
            self._committed |= due
            if self._commit_failures.forget():
                log.warning("task %s: offsets are committed again", self.context.work)

    # ------------------------------------------------------------------ hooks of the consumer

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._owned |= dict.fromkeys(partitions, next(self._assignments))
        await self._hook(partial(self.calls.call, self._task.open), partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self._hook(self._give_back, partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._forget(partitions)
        await self._hook(partial(self.calls.call, self._task.close), partitions)

    async def _hook(
        self, hook: Callable[[frozenset[TopicPartition]], Awaitable[None]], partitions: Collection[TopicPartition]
    ) -> None:
        """Call a hook of the task for the consumer. Keep the hook's error, so that the task's loop raises the error."""
        if not self._is_active or not partitions:
            return
        try:
            await hook(frozenset(partitions))
        except Exception as error:
            self._is_active = False
            if not self._failure.done():
                self._failure.set_exception(error)

    async def _give_back(self, partitions: frozenset[TopicPartition]) -> None:
        await self._flush_and_commit()
        self._forget(partitions)
        await self.calls.call(self._task.close, partitions)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._owned.pop(partition, None)
            self._taken.pop(partition, None)
            self._committed.pop(partition, None)
