"""
Define the interfaces of tasks, which copy records into topics, or from topics to another system.

Every method may be a coroutine function, which runs on the worker's event loop, or a plain one, which runs on a thread.
The methods of one task never run at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, Settings
from kiel_groups.workers.plugins.plugin_contexts import JsonObject, SinkTaskContext, SourceTaskContext

__all__ = ["SinkTask", "SourceRecord", "SourceTask", "Task"]


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """
    A record that a source task has read, and the position to continue from once it is delivered.

    Args:
        source_partition: The part of the source that the record is from, such as ``{"filename": "/var/log/syslog"}``.
        source_offset: The position *after* the record in that part, such as ``{"position": 4711}``.
        topic: The topic that the record is written to.
        value: The value of the record, or None for a null value.
        key: The key of the record, or None.
        partition: The partition of the topic. If it is None, the producer chooses one, by the key if there is one.
    """

    source_partition: JsonObject
    source_offset: JsonObject
    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None


class Task:
    """
    What source tasks and sink tasks have in common. A task is created without arguments.

    A method that raises an error makes the task FAILED, and ``stop`` follows. If the task gives up because
    ``context.should_stop`` is True, it raises ``TaskStoppedError``: it does not fail then, and nothing is committed.
    The constructor runs on the worker's event loop if any method is a coroutine function, and on a thread otherwise.
    """

    #: The settings of a task, if they differ from those of its connector. Standard settings are added.
    config: ClassVar[ConfigDefinition | None] = None

    def stop(self) -> Awaitable[None] | None:
        """
        Release what the task holds. This is the last call, also after an error and if ``start`` has failed.

        The worker waits for ``task.stop.timeout.ms`` for the call that still runs and for this one.
        """
        return None


class SourceTask(Task, ABC):
    """Reads records from another system. The worker writes them to topics, and then stores their source offsets."""

    def start(self, context: SourceTaskContext, settings: Settings) -> Awaitable[None] | None:
        """
        Prepare the task. This is the first call.

        Args:
            context: What the task gets from its worker; valid until ``stop`` returns.
            settings: The settings of the task, checked and typed.
        """
        return None

    @abstractmethod
    def poll(self) -> Sequence[SourceRecord] | Awaitable[Sequence[SourceRecord]]:
        """
        Return the next records, in the order of their offsets.

        Without records, the call waits briefly, for example with ``context.pause``, and returns nothing.
        """

    def flush(self) -> Awaitable[None] | None:
        """
        Finish what has to be done before source offsets are stored.

        The worker calls it when all records that ``poll`` has returned are in their topics.
        """
        return None


class SinkTask(Task, ABC):
    """Writes records from topics to another system. The worker reads them as a member of a consumer group."""

    def start(self, context: SinkTaskContext, settings: Settings) -> Awaitable[None] | None:
        """
        Prepare the task. This is the first call.

        Args:
            context: What the task gets from its worker; valid until ``stop`` returns.
            settings: The settings of the task, checked and typed.
        """
        return None

    def open(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Prepare for partitions that the task has got, before their first record."""
        return None

    @abstractmethod
    def put(self, records: Sequence[Record]) -> Awaitable[None] | None:
        """
        Take records, with keys and values as bytes or None. They may be kept until ``flush``.

        A task that is busy with its records for five minutes loses its partitions, as any consumer does: others get
        them, with the records since the last commit. If this call has to wait longer for its system, it should raise.
        """

    def flush(self, offsets: Mapping[TopicPartition, int]) -> Awaitable[None] | None:
        """
        Write out all records that ``put`` has taken. If this returns, the worker commits the offsets.

        Args:
            offsets: The next offset of each partition, after the last record that ``put`` has taken.
        """
        return None

    def close(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """
        Release what the task has for partitions that it loses.

        If the partitions are given back in order, a ``flush`` comes before. If none does, other tasks may have the
        partitions already: drop those of their records that are not written yet.
        """
        return None
