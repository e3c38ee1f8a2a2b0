"""
Define what connectors and tasks get from their worker: contexts, which are passed to ``start``.

Contexts may be used from every thread. Their coroutine methods run on the worker's event loop; a method of a task that
runs on a thread, because it is no coroutine function, calls them through ``run``.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

__all__ = ["ConnectorContext", "JsonObject", "JsonValue", "SinkTaskContext", "SourceTaskContext", "TaskContext"]

#: A value that JSON can hold.
JsonValue: TypeAlias = "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

#: An object of JSON, such as the offset of a source.
JsonObject: TypeAlias = Mapping[str, JsonValue]

_T = TypeVar("_T")


class ConnectorContext(Protocol):
    """The worker as a connector sees it."""

    @property
    def name(self) -> str:
        """The name of the connector."""

    @property
    def config(self) -> Mapping[str, str]:
        """All settings of the connector as users have given them, also the standard ones: texts without defaults."""

    def request_task_reconfiguration(self) -> None:
        """
        Have the worker call ``task_configs`` again, for example because the source has a new table.

        It returns at once. Nothing changes if the new configurations equal the present ones.
        """

    def raise_error(self, error: BaseException) -> None:
        """Report an error that no method of the connector can raise, such as one of a thread. The connector fails."""


class TaskContext(Protocol):
    """The worker as a task sees it."""

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

        A store is safe from late writes of earlier owners if it refuses a token that is smaller than one it has seen.
        """

    @property
    def should_stop(self) -> bool:
        """Whether the task has to return soon from what it does: ``stop`` follows."""

    async def pause(self, seconds: float) -> bool:
        """Wait for the given time, or until the task has to stop, and return ``should_stop``."""

    def report_problem(self, problem: str) -> None:
        """
        Show in the status of the task why it makes no progress, such as a system that does not answer.

        The task stays RUNNING; commands that check it name the problem. It is over when this is called with ``""``.

        Args:
            problem: One line, or "".
        """

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """
        Run a coroutine on the worker's event loop, and return its result: ``context.run(context.pause(1))``.

        Only methods that run on a thread may call it. A coroutine function awaits the coroutine instead.
        """


class SourceTaskContext(TaskContext, Protocol):
    """The worker as a source task sees it."""

    async def offset(self, partition: JsonObject) -> Mapping[str, Any] | None:
        """Return the source offset of the last record that was stored for a source partition, or None without any."""


class SinkTaskContext(TaskContext, Protocol):
    """The worker as a sink task sees it."""

    async def produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """
        Write a record to a topic, such as a dead letter. It returns when all in-sync replicas have stored the record.

        Raises:
            KielGroupsError: The record was not written, or it is unknown whether it was.
        """
