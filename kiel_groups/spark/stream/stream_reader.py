"""
The stream reader, which Spark calls for the offsets and the tasks of each micro-batch.

Spark creates the reader several times: in a process that lasts as long as the query and calls for offsets and tasks,
and in short-lived ones that only pickle it for the workers. So the connections are opened by the first call for offsets
or tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kiel_groups.spark.checkpoint import Positions
from kiel_groups.spark.options import ReadOptions
from kiel_groups.spark.tasks.task_inputs import PortablePickle, fetch_settings, task_partitions, task_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from kiel_groups.spark.stream.query_driver import QueryDriver

__all__ = [
    "StreamReader",
    "BoundedStreamReader",
]


class StreamReader(PortablePickle, DataSourceStreamReader):
    """The stream reader for Spark 4.0 and later; ``bounded_stream`` adds the features of Spark 4.2."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._settings = fetch_settings(options)
        self._schema = schema
        self._opened: QueryDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for workers, which only call ``read``; connections cannot be pickled.
        return {**self.__dict__, "_opened": None}

    @property
    def _driver(self) -> QueryDriver:
        if self._opened is None:
            self._opened = _open_driver(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        return self._driver.initial().to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """
        Return the end of the next batch, equal to ``start`` if there is nothing to read.

        Args:
            start: The end of the previous batch, which is done by now, or None before Spark 4.2.
            limit: A ``ReadLimit``, or None before Spark 4.2.
        """
        known = None if start is None else Positions.from_json(start)
        return self._driver.latest(known, limited=self._is_limited(limit)).to_json()

    def _is_limited(self, limit: Any) -> bool:
        return True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of the batch between two offsets."""
        return task_partitions(self._driver.tasks(Positions.from_json(start), Positions.from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task; runs on a worker."""
        return task_rows(partition, self._settings, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Record that everything before ``end`` was processed; Spark calls this while it builds the next batch."""
        self._driver.done(Positions.from_json(end))

    def stop(self) -> None:
        """Close the connections; Spark calls this when the query ends."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _open_driver(options: ReadOptions) -> QueryDriver:
    # Imported here: workers load this module for ``read``, and their first task would wait for these imports.
    if options.joins:
        from kiel_groups.spark.stream.member_driver import MemberDriver

        return MemberDriver(options)
    from kiel_groups.spark.stream.query_driver import LogDriver

    return LogDriver(options)


class BoundedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """A stream reader whose batches are bounded as the options say."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the options' bound; Spark passes it to ``latestOffset``, except in ``Trigger.Once``."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def _is_limited(self, limit: Any) -> bool:
        return not isinstance(limit, ReadAllAvailable)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the log ends of the last lookup, for Spark's progress reports, or None before the first lookup."""
        seen = self._driver.seen()
        return None if seen is None else seen.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Bound the query by the present ends of the logs."""
        self._driver.stop_at_current_ends()
