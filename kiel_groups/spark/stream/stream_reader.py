"""
A stream, as Spark asks for it: micro-batch by micro-batch.

Spark makes the reader several times: in a process that stays as long as the query (which asks for offsets and tasks),
and in short-lived ones that only pickle ``read`` for the workers. So nothing is opened before the first question.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kiel_groups.spark.checkpoint.query_offsets import Positions
from kiel_groups.spark.options.read_options import ReadOptions
from kiel_groups.spark.tasks.shipping import Shipped
from kiel_groups.spark.tasks.task_inputs import fetch_settings, task_partitions, task_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from kiel_groups.spark.stream.query_driver import QueryDriver

__all__ = ["StreamReader"]


class StreamReader(Shipped, DataSourceStreamReader):
    """What every Spark from 4.0 on can do; see ``controlled_stream`` for what 4.2 adds."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._settings = fetch_settings(options)
        self._schema = schema
        self._opened: QueryDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers are sent the reader for its ``read``; connections stay here.
        return {**self.__dict__, "_opened": None}

    @property
    def _driver(self) -> QueryDriver:
        if self._opened is None:
            self._opened = _open_driver(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts."""
        return self._driver.initial().to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """
        Where the next batch ends; the same as ``start`` where there is nothing to read.

        Args:
            start: Where the batch before has ended, which is done by now; Spark before 4.2 does not say.
            limit: A ``ReadLimit``, from Spark 4.2 on.
        """
        known = None if start is None else Positions.from_json(start)
        return self._driver.latest(known, limited=self._is_limited(limit)).to_json()

    def _is_limited(self, limit: Any) -> bool:
        return True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the batch between two offsets."""
        return task_partitions(self._driver.tasks(Positions.from_json(start), Positions.from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task; on a worker."""
        return task_rows(partition, self._settings, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to there is done; Spark says so while it builds the next batch."""
        self._driver.done(Positions.from_json(end))

    def stop(self) -> None:
        """The query ends."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _open_driver(options: ReadOptions) -> QueryDriver:
    # Imported here: workers, which have this module for its ``read``, would wait for it at their first task.
    if options.joins:
        from kiel_groups.spark.stream.member_driver import MemberDriver

        return MemberDriver(options)
    from kiel_groups.spark.stream.query_driver import LogDriver

    return LogDriver(options)
