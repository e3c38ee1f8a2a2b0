"""Run source tasks and connectors: deliver records and then store source offsets; configure a connector's tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kiel_groups.errors import ConfigError, KielGroupsError, TaskStoppedError, UnknownConnectorError
from kiel_groups.group.znodes.transactions import LARGEST_BYTES
from kiel_groups.group.znodes.worker_contents import SourceOffset, canonical_json
from kiel_groups.wording import counted, some
from kiel_groups.workers.plugins.connector_checks import RunSettings
from kiel_groups.workers.plugins.interfaces import Connector, JsonObject, SourcePosition, SourceRecord, SourceTask
from kiel_groups.workers.plugins.secret_references import has_reference, without_references
from kiel_groups.workers.runners.runner_interface import (
    Runner,
    RunnerContext,
    TaskRunnerContext,
    missing_topics_text,
    retrieve,
)
from kiel_groups.workers.values import TaskId

log = logging.getLogger(__name__)


# Run a source task: its records are written to their topics, and their source offsets stored after that.
#
# A batch is what one ``poll`` returns. The task is polled again when all records of the batch are stored by the
# brokers. Source offsets are stored every ``offset.flush.interval.ms``, also while a poll waits for its source, and at
# the end. The last offsets may be left to the release of the claim, which stores them in its own transaction.


#: The pause after a write of source offsets, as a multiple of the time that the write took: otherwise, thousands of
#: source partitions would keep a small ZooKeeper busy. And the longest pause, in seconds: the process may have been
#: frozen during the write, or ZooKeeper unreachable.
_PAUSE_FACTOR, _LONGEST_PAUSE_S = 9.0, 30.0

#: How long the brokers may take to store a batch, in seconds, before the status of the task reports the delay.
_LATE_S = 10.0


class _SourceContext(TaskRunnerContext):
    """Implements ``SourceTaskContext``, the functions of the worker that a source task may use."""

    async def offset(self, partition: JsonObject) -> JsonObject | None:
        return await self._runner.context.stores.read_offset(self.connector, partition)


class SourceTaskRunner(Runner):
    """Runs one source task: poll it, deliver its records, and then store their source offsets."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        assert isinstance(context.work, TaskId)
        self._task_id = context.work
        #: The offsets that are delivered, and not stored yet, by the canonical form of their partitions.
        self._unstored: dict[bytes, tuple[JsonObject, JsonObject]] = {}
        self._interval_s: float = context.settings["offset.flush.interval.ms"] / 1000
        #: When offsets may be stored again; the first ones are stored at once.
        self._due_s = float("-inf")

    async def _run_plugin(self) -> None:
        task = await self._create(self.context.connector_class.task_class)
        assert isinstance(task, SourceTask)
        try:
            await self.calls.call(task.start, _SourceContext(self), self.context.settings)
            self.context.started()
            while not self.should_stop:
                await self._copy(task)
        except TaskStoppedError:
            if not self.should_stop:
                raise
        except Exception:
            # Records that were delivered before the error need not be delivered again.
            await self._store_after_error()
            raise
        self.delivered = tuple(self._unstored.values())

    async def _copy(self, task: SourceTask) -> None:
        """Poll one batch, deliver its records, and store source offsets if they are due."""
        records = _checked(await self._poll(task))
        if records:
            written = [record for record in records if isinstance(record, SourceRecord)]
            if written:
                await self._deliver(written)
            await self.calls.call(task.flush)
            for record in records:
                key = canonical_json(record.source_partition, "source partition")
                self._unstored[key] = (record.source_partition, record.source_offset)
        if self._unstored and self._due_in_s() <= 0 and not self.should_stop:
            await self._store()

    async def _poll(self, task: SourceTask) -> object:
        """
        Poll the task, and return the result.

        Store offsets that become due before the poll returns, because the source may have no records for long.
        """
        # A task whose claim may be gone is not even polled: the poll may remove records from its source.
        polling = asyncio.ensure_future(self.calls.call_fenced(task.poll))
        try:
            if self._unstored:
                await asyncio.wait({polling}, timeout=max(0.0, self._due_in_s()))
                if not polling.done() and not self.should_stop:
                    await self._store()
            return await polling
        except (Exception, asyncio.CancelledError):
            # The run does not end before the thread of the poll, which may still read the source.
            polling.add_done_callback(retrieve)
            polling.cancel()
            raise

    def _due_in_s(self) -> float:
        return self._due_s - self.context.runtime.boot_time_s()

    async def _deliver(self, records: Sequence[SourceRecord]) -> None:
        """Write records to their topics, and wait until the brokers have stored all of them."""
        watching = asyncio.ensure_future(self._watch_delivery(records))
        try:
            await self._send(records)
        finally:
            watching.cancel()
        self.report("delivery", "")

    async def _watch_delivery(self, records: Sequence[SourceRecord]) -> None:
        """
        Report records that are not stored within ``_LATE_S`` seconds. The producer retries these records while the task
        runs.
        """
        await asyncio.sleep(_LATE_S)
        topics = sorted({record.topic for record in records})
        cause = await missing_topics_text(self.context.clients, topics)
        late = f"the brokers have not stored {counted(records, 'record')} of {some(topics)} within {_LATE_S:g} s"
        problem = f"{late}: {cause}" if cause else late
        log.warning("task %s: %s; trying again", self.context.work, problem)
        self.report("delivery", problem)

    async def _send(self, records: Sequence[SourceRecord]) -> None:
        producer = self.producer()
        outcomes: list[asyncio.Future[Any]] = []
        for record in records:
            if producer.is_full:
                await producer.drain()
            # Checked for each record: the process may have been frozen since the last one.
            await self.context.fence.wait_open()
            outcome = producer.produce(record.topic, record.value, record.key, record.partition)
            # Retrieved also if this call is cancelled before it looks.
            outcome.add_done_callback(retrieve)
            outcomes.append(outcome)
        await producer.flush()
        await asyncio.wait(outcomes)
        for outcome in outcomes:
            outcome.result()

    async def _store(self) -> None:
        """Store the source offsets of the delivered records, and set when offsets are due again."""
        await self.context.fence.wait_open()
        stored, began_s = dict(self._unstored), self.context.runtime.boot_time_s()
        await self.context.stores.write_offsets(self._task_id, tuple(stored.values()))
        ended_s = self.context.runtime.boot_time_s()
        pause_s = min(_PAUSE_FACTOR * (ended_s - began_s), _LONGEST_PAUSE_S)
        self._due_s = ended_s + max(self._interval_s, pause_s)
        for key, offset in stored.items():
            if self._unstored.get(key) is offset:
                del self._unstored[key]

    async def _store_after_error(self) -> None:
        if self._unstored and not self.context.fence.shut_reason:
            try:
                await self._store()
            except KielGroupsError as error:
                # The error of the task is more important.
                log.warning(
                    "task %s: its last source offsets (of %s) are not stored, so its last records will be delivered"
                    " again unless it keeps positions of its own: %s",
                    self.context.work,
                    counted(self._unstored, "source partition"),
                    error,
                )
                self._unstored.clear()


def _checked(records: object) -> Sequence[SourceRecord | SourcePosition]:
    """
    Return the result of ``poll``; for None, return an empty tuple.

    Raises:
        ConfigError: The result is not a sequence of records and positions, or a source offset does not fit into a
            znode.
    """
    # Kafka Connect's tasks return null for no records.
    if records is None:
        return ()
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise ConfigError(f"poll returned {type(records).__name__}; expected a list of SourceRecord")
    for record in records:
        if not isinstance(record, SourceRecord | SourcePosition):
            raise ConfigError(
                f"poll returned a list with {type(record).__name__}; expected SourceRecord or SourcePosition"
            )
        size = len(SourceOffset(record.source_partition, record.source_offset).encode())
        if size > LARGEST_BYTES:
            raise ConfigError(
                f"poll returned a source partition and a source offset of {size} bytes; at most {LARGEST_BYTES} fit"
                " into a znode"
            )
    return records


#: The least bytes of a task in the connector's znode, and the most tasks that fit there. ``tasks.max`` may be two
#: thousand millions, and the connector may return as many references to settings of a megabyte.
_LEAST_BYTES = len("{}, ")
_MOST_TASKS = LARGEST_BYTES // _LEAST_BYTES


class _ConnectorContext:
    """Implements ``ConnectorContext``, the functions of the worker that a connector may use on any thread."""

    def __init__(self, runner: ConnectorRunner) -> None:
        self.name = runner.context.work.connector
        self.config = runner.context.config
        self._runner = runner
        self._loop = asyncio.get_running_loop()

    def request_task_reconfiguration(self) -> None:
        self._on_loop(self._runner.reconfigure)

    def raise_error(self, error: BaseException) -> None:
        self._on_loop(self._runner.fail, error)

    def report_problem(self, problem: str) -> None:
        self._on_loop(self._runner.report, "connector", problem)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        # The worker, and its loop, may have ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


class ConnectorRunner(Runner):
    """
    Runs one connector. Configures the connector's tasks after the start, and whenever the connector requests new
    settings.
    """

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._name = context.work.connector
        #: Set when the connector wants its tasks to be configured again, or has reported an error.
        self._notified = asyncio.Event()
        self._is_outdated = True
        self._error: BaseException | None = None

    async def _run_plugin(self) -> None:
        connector = await self._create(self.context.connector_class)
        await self.calls.call(connector.start, _ConnectorContext(self), self.context.settings)
        self.context.started()
        while not self.should_stop:
            self._notified.clear()
            if self._error is not None:
                raise self._error
            if self._is_outdated:
                self._is_outdated = False
                await self._configure(connector)
            else:
                await self.until_stop(self._notified.wait())

    def reconfigure(self) -> None:
        """Request another call of the connector's ``task_configs``. Changed task settings are stored."""
        self._is_outdated = True
        self._notified.set()

    def fail(self, error: BaseException) -> None:
        """End the run with an error that the connector reports. Wrap an error that is not an ``Exception``."""
        # An error that is no Exception, such as SystemExit, must not end the worker.
        self._error = error
        if not isinstance(error, Exception):
            self._error = ConfigError(f"the connector reports a {type(error).__name__}")
            self._error.__cause__ = error
        self._notified.set()

    async def _configure(self, connector: Connector) -> None:
        """Call ``task_configs`` of the connector, and store the task configurations if they have changed."""
        most = min(self.context.settings["tasks.max"], _MOST_TASKS)
        configs = _checked_configs(self._name, await self.calls.call(connector.task_configs, most), most)
        if self.context.checked.texts:
            hide = partial(_with_references, self._name, configs, self.context.config, self.context.checked)
            configs = await self.context.runtime.in_thread(hide, "masks")
        if self.should_stop:
            return
        await self.context.fence.wait_open()
        try:
            await self.context.stores.write_tasks(self._name, configs)
        except UnknownConnectorError:
            # The connector was deleted just now. The worker stops it once it has read that change.
            log.info("connector %s was deleted; its tasks are not configured", self._name)


def _checked_configs(name: str, configs: object, most: int) -> Sequence[Mapping[str, str]]:
    """
    Return the result of ``task_configs``.

    Raises:
        ConfigError: The result is not a sequence of settings, or has too many tasks or bytes.
    """
    if not isinstance(configs, Sequence) or isinstance(configs, str | bytes):
        raise ConfigError(
            f"connector {name!r}: task_configs returned {type(configs).__name__}; expected a list of the settings of"
            " each task"
        )
    if len(configs) > most:
        raise ConfigError(f"connector {name!r}: task_configs returned {len(configs)} tasks; tasks.max is {most}")
    size = 0
    for config in configs:
        if not isinstance(config, Mapping) or not all(
            isinstance(key, str) and isinstance(value, str) for key, value in config.items()
        ):
            raise ConfigError(f"connector {name!r}: task_configs returned settings that are not texts by name")
        size += _LEAST_BYTES + sum(len(key) + len(value) for key, value in config.items())
        if size > LARGEST_BYTES:
            raise ConfigError(
                f"connector {name!r}: the settings of its {len(configs):,} tasks take more than the {LARGEST_BYTES}"
                " bytes that fit into a znode: use fewer tasks, or shorter settings"
            )
    return configs


def _with_references(
    name: str, configs: Sequence[Mapping[str, str]], given: Mapping[str, str], checked: RunSettings
) -> Sequence[Mapping[str, str]]:
    """
    Return task configurations with references in place of values that the connector has copied from its settings.

    Args:
        name: The name of the connector.
        configs: The result of ``task_configs``. Everyone who can read ZooKeeper will be able to read it.
        given: The settings of the connector, with references.
        checked: The settings of the connector, with values.

    Raises:
        ConfigError: A setting has a value of a reference, and is no copy of the connector's setting of the same name.
    """
    found: list[Mapping[str, str]] = []
    for number, config in enumerate(configs):
        texts = {}
        for key, text in config.items():
            # Typed settings have no blanks around them.
            is_copied = key in checked.texts and checked.texts[key].strip() == text.strip()
            texts[key] = given[key] if is_copied else text
            if texts[key] == given.get(key):
                continue
            rest = without_references(text)
            # A secret that looks like a reference itself is not in the rest.
            if any(secret in (text if has_reference(secret) else rest) for secret in checked.referenced):
                raise ConfigError(
                    f"connector {name!r}: task_configs returned a secret in the setting {key!r:.200} of task {number},"
                    " which would be stored in ZooKeeper; expected the reference to it, as context.config has it"
                )
        found.append(texts)
    return found
