"""The interfaces of connectors and tasks, and the contexts that a worker passes to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, Settings

# Define what connectors and tasks get from their worker: contexts, which are passed to ``start``.
#
# Contexts may be used from every thread. Their coroutine methods run on the worker's event loop; a method of a task
# that runs on a thread, because it is no coroutine function, calls them through ``run``.


#: A value that JSON can hold.
JsonValue: TypeAlias = "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

#: An object of JSON, such as the offset of a source.
JsonObject: TypeAlias = Mapping[str, JsonValue]

_T = TypeVar("_T")


class ConnectorContext(Protocol):
    """The functions of the worker that a connector may use. Any thread may call these functions."""

    @property
    def name(self) -> str:
        """The name of the connector."""

    @property
    def config(self) -> Mapping[str, str]:
        """The settings that users have given, as texts, including standard settings. Defaults are not included."""

    def request_task_reconfiguration(self) -> None:
        """
        Request that the worker calls ``task_configs`` again, for example because the source has a new table.

        This call returns at once. If the new task configurations equal the present configurations, nothing changes.
        """

    def raise_error(self, error: BaseException) -> None:
        """Report an error that no method of the connector can raise, such as a thread's error. The connector fails."""

    def report_problem(self, problem: str) -> None:
        """
        Show in the connector's status why its tasks lack a part of the work, for example a table that cannot be read.

        The connector stays RUNNING. Call this method with ``""`` when the problem is over.

        Args:
            problem: One line, or "".
        """


class TaskContext(Protocol):
    """
    The functions of the worker that every task may use.

    Any thread may call these functions. A method that runs on a thread calls coroutine methods by ``run``.
    """

    @property
    def connector(self) -> str:
        """The name of the task's connector."""

    @property
    def task(self) -> int:
        """The number of the task within its connector, from 0."""

    @property
    def fencing_token(self) -> int:
        """
        A number that grows each time a worker claims the task.

        A target system is safe from late writes of earlier owners if the system refuses each write with a token that is
        smaller than the largest token seen so far.
        """

    @property
    def metrics(self) -> Metrics:
        """
        The metrics of this run of the task.

        ``GET /metrics`` of the worker shows the metrics with the labels ``connector`` and ``task``. The task's status
        has the counters and gauges, at most a thousand, and is at most five seconds behind.
        """

    @property
    def should_stop(self) -> bool:
        """Whether the task must return soon from its present method. Then the worker calls ``stop``."""

    @property
    def is_owner(self) -> bool:
        """
        Whether it is certain that no other worker has claimed the task.

        False may be temporary, for example while ZooKeeper does not answer. After a freeze of the process, the answer
        is right at once, because it depends on the clock.
        """

    async def pause(self, seconds: float) -> bool:
        """Wait for the given time, or until the task must stop. Return ``should_stop``."""

    def report_problem(self, problem: str, part: str = "") -> None:
        """
        Show in the task's status why the task makes no progress, for example because another system does not answer.

        The task stays RUNNING, and commands that check the task report the problem. Call this method with ``""`` when
        the problem is over.

        Args:
            problem: One line, or "".
            part: The part of the work that has the problem. Each part has a problem of its own.
        """

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """
        Run a coroutine on the worker's event loop, and return its result: ``context.run(context.pause(1))``.

        Only methods that run on a thread may call ``run``. A coroutine function awaits the coroutine instead.
        """


class SourceTaskContext(TaskContext, Protocol):
    """The functions of the worker that a source task may use."""

    async def offset(self, partition: JsonObject) -> Mapping[str, Any] | None:
        """Return the stored source offset of a source partition, or None if no offset is stored."""


class SinkTaskContext(TaskContext, Protocol):
    """The functions of the worker that a sink task may use."""

    async def produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """
        Write a record to a topic, such as a dead letter. Return when all in-sync replicas have stored the record.

        Raises:
            KielGroupsError: The record was not written, or the outcome is not known.
        """


# Define the interfaces of tasks, which copy records into topics, or from topics to another system.
#
# Every method may be a coroutine function, which runs on the worker's event loop, or a plain one, which runs on a
# thread. The methods of one task never run at the same time.


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """
    A record that a source task has read, and the position to continue from once the record is delivered.

    Args:
        source_partition: The part of the source that the record is from, such as ``{"filename": "/var/log/syslog"}``.
        source_offset: The position *after* the record in that part, such as ``{"position": 4711}``.
        topic: The topic that the record is written to.
        value: The value of the record, or None for a null value.
        key: The key of the record, or None.
        partition: The partition of the topic. None lets the producer choose a partition, by the key if a key is given.
    """

    source_partition: JsonObject
    source_offset: JsonObject
    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """
    The position of a source partition after records that the task itself has written to their destination.

    A task that writes to another cluster returns positions from ``poll`` in place of records. The worker stores their
    source offsets, fenced, as it stores the source offsets of records.

    Args:
        source_partition: The part of the source, as in ``SourceRecord``.
        source_offset: The position after the last record that the destination has acknowledged.
    """

    source_partition: JsonObject
    source_offset: JsonObject


class Task:
    """
    The common part of source tasks and sink tasks. The worker creates a task without arguments.

    If a method raises an error, the task is FAILED, and the worker calls ``stop``. If a method gives up because
    ``context.should_stop`` is True, the method raises ``TaskStoppedError``: then the task is not FAILED, and nothing is
    committed. The constructor runs on the worker's event loop if any method is a coroutine function, and on a thread
    otherwise.
    """

    #: The settings of a task, if they differ from the settings of its connector. Standard settings are added.
    config: ClassVar[ConfigDefinition | None] = None

    def stop(self) -> Awaitable[None] | None:
        """
        Release the task's resources. The worker calls ``stop`` last, even after an error or a failed ``start``.

        The worker waits at most ``task.stop.timeout.ms``, for the call in progress and ``stop`` together.
        """
        return None


class SourceTask(Task, ABC):
    """
    Reads records from another system. The worker writes the records to topics, and then stores their source offsets.
    """

    def start(self, context: SourceTaskContext, settings: Settings) -> Awaitable[None] | None:
        """
        Prepare the task. The worker calls ``start`` first.

        Args:
            context: The functions of the worker; valid until ``stop`` returns.
            settings: The settings of the task, checked and typed.
        """
        return None

    @abstractmethod
    def poll(
        self,
    ) -> Sequence[SourceRecord | SourcePosition] | Awaitable[Sequence[SourceRecord | SourcePosition]]:
        """
        Return the next records, in the order of their offsets, or the positions after records that the task has
        written itself.

        If there are no records, wait briefly, for example with ``context.pause``, and return an empty list.
        """

    def flush(self) -> Awaitable[None] | None:
        """
        Complete the work that must precede the storage of source offsets.

        The worker calls ``flush`` when all records that ``poll`` has returned are in their topics.
        """
        return None


class SinkTask(Task, ABC):
    """Writes records from topics to another system. The worker reads the records as a member of a consumer group."""

    def start(self, context: SinkTaskContext, settings: Settings) -> Awaitable[None] | None:
        """
        Prepare the task. The worker calls ``start`` first.

        Args:
            context: The functions of the worker; valid until ``stop`` returns.
            settings: The settings of the task, checked and typed.
        """
        return None

    def open(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Prepare for partitions that the task now owns. ``put`` gets their records only after this call."""
        return None

    @abstractmethod
    def put(self, records: Sequence[Record]) -> Awaitable[None] | None:
        """
        Take records, with keys and values as bytes or None. The task may keep the records until ``flush``.

        A task that is busy with its records for five minutes loses its partitions, as any consumer does. Other tasks
        then get the partitions, with the records since the last commit. If the other system would make this call wait
        longer, the call should raise an error.
        """

    def flush(self, offsets: Mapping[TopicPartition, int]) -> Awaitable[None] | None:
        """
        Write out all records that ``put`` has taken. When this call returns, the worker commits the offsets.

        Args:
            offsets: The next offset of each partition, after the last record that ``put`` has taken.
        """
        return None

    def close(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """
        Release the resources of partitions that the task loses.

        If the partitions are revoked in order, ``flush`` is called before. If ``flush`` was not called, other tasks may
        own the partitions already: then drop the unwritten records of these partitions.
        """
        return None


# Define the interfaces of connectors, which divide work among tasks.
#
# Every method may be a coroutine function, which runs on the worker's event loop, or a plain one, which runs on a
# thread. The methods of one connector never run at the same time.


class Connector(ABC):
    """
    The common part of source connectors and sink connectors. The worker creates a connector without arguments.

    If a method or the constructor raises an error, the connector is FAILED; its tasks continue. The constructor runs on
    the worker's event loop if any method is a coroutine function, and on a thread otherwise.
    """

    #: The version of the plugin, as users see it.
    version: ClassVar[str] = "unknown"

    #: The settings of this kind of connector, without the standard settings.
    config: ClassVar[ConfigDefinition] = ConfigDefinition()

    #: The class of the tasks.
    task_class: ClassVar[type[SourceTask] | type[SinkTask]]

    @classmethod
    def check(cls, settings: Settings) -> Mapping[str, str | Sequence[str]]:
        """
        Check settings against each other. Return the errors by the setting's name: one text or several.

        Each setting is already legal by itself. The worker calls ``check`` on the class, even before a connector
        exists. The method must have no effects.
        """
        return {}

    def start(self, context: ConnectorContext, settings: Settings) -> Awaitable[None] | None:
        """
        Prepare the connector. The worker calls ``start`` first.

        Args:
            context: The functions of the worker; valid until ``stop`` returns.
            settings: The settings of the connector, checked and typed.
        """
        return None

    @abstractmethod
    def task_configs(self, most: int) -> Sequence[Mapping[str, str]] | Awaitable[Sequence[Mapping[str, str]]]:
        """
        Return the settings of each task, as texts. Usually the settings are ``context.config`` with additions.

        Args:
            most: The largest number of tasks that the user allows (``tasks.max``).
        """

    def stop(self) -> Awaitable[None] | None:
        """Release the connector's resources. The worker calls ``stop`` last, even after an error."""
        return None


class SourceConnector(Connector):
    """Copies data of another system into topics."""

    task_class: ClassVar[type[SourceTask]]


class SinkConnector(Connector):
    """Copies the records of ``topics`` to another system. The connector's tasks divide the topics' partitions."""

    task_class: ClassVar[type[SinkTask]]
