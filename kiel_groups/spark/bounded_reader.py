"""The stream reader with what Spark 4.2 added. Earlier releases lack the classes that this module imports."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kiel_groups.spark.cause_first import cause_first
from kiel_groups.spark.readers import StreamReader

__all__ = ["BoundedStreamReader"]


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
        """
        Return the log ends of the last look-up, for Spark's progress reports, or None before the first one.

        ``@lost`` has the losses that the driver has found, if there are any. ``@behind`` has what Spark's own Kafka
        source has in its metrics, which a Python source cannot add to.
        """
        seen = self._driver.seen()
        notes = {"@behind": self._driver.behind(), "@lost": self._driver.lost()}
        return None if seen is None else {**seen.to_json(), **{name: note for name, note in notes.items() if note}}

    @cause_first
    def prepareForTriggerAvailableNow(self) -> None:
        """Bound the query by the present ends of the logs."""
        self._driver.stop_at_current_ends()
