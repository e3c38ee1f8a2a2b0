"""What Spark 4.2 adds to a stream: bounds on a batch, ``Trigger.AvailableNow``, and how far behind the query is."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kiel_groups.spark.stream.stream_reader import StreamReader

__all__ = ["ControlledStreamReader"]


class ControlledStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """A stream whose batches the options bound."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; Spark passes it to ``latestOffset``, but in ``Trigger.Once``, where all is read."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def _is_limited(self, limit: Any) -> bool:
        return not isinstance(limit, ReadAllAvailable)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs ended when they were looked at last."""
        seen = self._driver.seen()
        return None if seen is None else seen.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to where the logs end at this moment, and stop there."""
        self._driver.stop_at_present()
