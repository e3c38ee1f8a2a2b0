"""
The readers of a batch and of a stream. Spark calls a reader for offsets and tasks and, on workers, for messages.

Spark creates a reader several times. The reader that plans a stream's offsets and tasks is in a process that lasts as
long as the query. Spark also creates readers in short-lived processes, only to pickle them for the workers. So a reader
opens connections at the first call for offsets or tasks, not when it is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
except ImportError:  # Before Spark 4.2, ``BoundedStreamReader`` is not used.
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

from kiel_groups.spark.checkpoint import Positions
from kiel_groups.spark.columns import INCARNATION
from kiel_groups.spark.options import ReadOptions
from kiel_groups.spark.read_task import task_rows
from kiel_groups.spark.spark_calls import PortablePickle, cause_first
from kiel_groups.spark.task_planner import task_partitions

if TYPE_CHECKING:
    import pyarrow as pa

    from kiel_groups.spark.drivers import QueryDriver


class _Reader(PortablePickle):
    """The base class of the batch reader and the stream reader. It has the method that runs on workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @cause_first
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the messages of one task. Spark calls this method on a worker."""
        return task_rows(partition, self._options, self._schema)


class BatchReader(_Reader, DataSourceReader):
    """A batch reader: Spark calls ``partitions`` in the planning process, and ``read`` on pickled copies on workers."""

    @cause_first
    def partitions(self) -> list[InputPartition]:
        """Plan the tasks of the batch. Raises the errors of ``batches.plan_batch``."""
        # Imported here: workers load this module for ``read``, and their first task would wait for this import.
        from kiel_groups.spark.batches import plan_batch

        return task_partitions(plan_batch(self._options, with_incarnations=INCARNATION in self._schema.fieldNames()))


class StreamReader(_Reader, DataSourceStreamReader):
    """The stream reader for Spark 4.0 and 4.1. ``BoundedStreamReader`` adds the methods of Spark 4.2."""

    _opened: QueryDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for workers, which only call ``read``; connections cannot be pickled.
        return {**self.__dict__, "_opened": None}

    @property
    def _driver(self) -> QueryDriver:
        if self._opened is None:
            # Imported here: workers load this module for ``read``, and their first task would wait for this import.
            from kiel_groups.spark.drivers import open_driver

            self._opened = open_driver(self._options)
        return self._opened

    @cause_first
    def initialOffset(self) -> dict[str, Any]:
        """Return the start positions of a new query as JSON."""
        return self._driver.initial().to_json()

    @cause_first
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """
        Return the end of the next batch. The end equals ``start`` if there is nothing to read.

        Args:
            start: The end of the previous batch, which is done; None with Spark before 4.2.
            limit: A ``ReadLimit``; None with Spark before 4.2.
        """
        known = None if start is None else Positions.from_json(start)
        return self._driver.latest(known, limited=self._is_limited(limit)).to_json()

    def _is_limited(self, limit: Any) -> bool:
        return True

    @cause_first
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of the batch between two positions, as ``latestOffset`` returns them."""
        return task_partitions(self._driver.tasks(Positions.from_json(start), Positions.from_json(end)))

    @cause_first
    def commit(self, end: dict[str, Any]) -> None:
        """Record that all messages before ``end`` were processed. Spark calls this while it builds the next batch."""
        self._driver.done(Positions.from_json(end))

    def stop(self) -> None:
        """Close the connections; Spark calls this when the query ends."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class BoundedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """A stream reader for Spark 4.2 and later. The options bound its batches."""

    def getDefaultReadLimit(self) -> Any:
        """Return the bound that the options set. Spark passes it to ``latestOffset``, except in ``Trigger.Once``."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def _is_limited(self, limit: Any) -> bool:
        return not isinstance(limit, ReadAllAvailable)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """
        Return the log ends of the last look-up, for Spark's progress reports, or None before the first look-up.

        ``@lost`` has the losses that the driver has found. ``@behind`` has the values that Spark's own Kafka source
        puts into its metrics. A Python source cannot report metrics. An empty entry is left out.
        """
        seen = self._driver.seen()
        notes = {"@behind": self._driver.behind(), "@lost": self._driver.lost()}
        return None if seen is None else {**seen.to_json(), **{name: note for name, note in notes.items() if note}}

    @cause_first
    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end at the present ends of the logs."""
        self._driver.stop_at_current_ends()
