"""Convert messages to values with the application's deserializer, and handle its failures."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kiel_groups.clients.calls.left_loop import running_loop
from kiel_groups.clients.calls.log_limit import LogLimit, Repeats
from kiel_groups.metrics import Metrics
from kiel_groups.model import PartitionBatch, Record, TopicPartition
from kiel_groups.wording import counted

__all__ = ["Deserializer"]

log = logging.getLogger(__name__)

#: How often the failures of one partition are logged, in seconds.
FAILURE_LOG_INTERVAL_S = 60.0

#: How much of an error's text is logged, in characters. The text may contain the whole value.
MOST_TEXT = 300

_BYTES_HINT = (
    "; a deserializer is given bytes, where kiel gave it text: if it expects text, pass"
    " 'lambda value: deserializer(value.decode())'"
)


class _Failure(NamedTuple):
    """The offset and the error's text of one failed value. The exception itself would keep its frames alive."""

    offset: int
    error: str
    hint: str


class Deserializer:
    """
    Deserializes the values of one consumer's records, on the consumer's event loop.

    A value on which the function fails is counted and skipped: one bad value must not stop its partition for ever.
    Failures are logged at most once a minute for each partition, with their number.

    Args:
        deserializer: The application's function. If it is None, ``values`` decodes JSON, and records keep their bytes.
        metrics: Counts all failures, as ``deserializer_failures``.
        clock: Returns seconds on a monotonic clock.
    """

    def __init__(
        self,
        deserializer: Callable[[Any], Any] | None,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._deserializer = deserializer
        self._metrics = metrics
        self._clock = clock
        self._limit: LogLimit[TopicPartition, _Failure] = LogLimit(FAILURE_LOG_INTERVAL_S)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def keeps_bytes(self) -> bool:
        """Whether records keep their bytes, so that ``record`` need not be called."""
        return self._deserializer is None

    def record(self, record: Record) -> Record | None:
        """
        Return the record with its value deserialized, or None if the deserializer raised.

        The record is returned unchanged if its value is null, or if there is no deserializer.
        """
        if self._deserializer is None or record.value is None:
            return record
        try:
            return record._replace(value=self._deserializer(record.value))
        except Exception as error:
            self._failed(record, error)
            return None

    def values(self, records: Iterable[Record], unreadable: set[int] | None = None) -> list[Any]:
        """
        Deserialize values as ``consume()`` returns them. Values that fail are left out.

        Args:
            records: Records whose values are bytes or None; the deserializer is called for both.
            unreadable: If given, the offsets of failed records are added to it.
        """
        read = self._deserializer or json.loads
        values = []
        for record in records:
            try:
                values.append(read(record.value))
            except Exception as error:
                self._failed(record, error)
                if unreadable is not None:
                    unreadable.add(record.offset)
        return values

    def part(self, partition: TopicPartition, records: Sequence[Record], token: int) -> PartitionBatch:
        """Deserialize records of one partition. Return the values and their records, without records that failed."""
        unreadable: set[int] = set()
        values = self.values(records, unreadable)
        if unreadable:
            records = [record for record in records if record.offset not in unreadable]
        return PartitionBatch(partition, token, values, records)

    def close(self) -> None:
        """Log the failures that were only counted so far. This works without an event loop."""
        self._stop_timer()
        for partition, repeats in self._limit.rest(self._clock()):
            _log_failures(partition, repeats)

    def _failed(self, record: Record, error: Exception) -> None:
        self._metrics.count("deserializer_failures")
        text = _text_of(error)
        # No hint for a null value: json.loads names bytes in its error for None, too.
        takes_bytes_for_text = self._deserializer is not None and record.value is not None and _is_about_bytes(error)
        failure = _Failure(record.offset, text, _BYTES_HINT if takes_bytes_for_text else "")
        repeats = self._limit.add(record.topic_partition, failure, self._clock())
        if repeats is not None:
            _log_failures(record.topic_partition, repeats, error)
        elif self._timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        """Start the timer that logs counted failures when the interval ends, even if no further value fails."""
        loop, due_s = running_loop(), self._limit.due_s
        if loop is not None and due_s is not None:
            self._timer = loop.call_later(max(0.0, due_s - self._clock()), self._log_due)

    def _log_due(self) -> None:
        self._timer = None
        for partition, repeats in self._limit.due(self._clock()):
            _log_failures(partition, repeats)
        self._start_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _log_failures(partition: TopicPartition, repeats: Repeats[_Failure], error: Exception | None = None) -> None:
    first = repeats.first
    if repeats.is_first_line:
        log.error(
            "%s: the deserializer failed on the value at offset %d, which is skipped: %s%s",
            partition,
            first.offset,
            first.error,
            first.hint,
            exc_info=error,
        )
    else:
        log.error(
            "%s: the deserializer failed on %s, first at offset %d: %s%s",
            partition,
            counted(repeats.count, "more value, which is skipped", "more values, which are skipped"),
            first.offset,
            first.error,
            first.hint,
        )


def _text_of(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # the ``__str__`` of the application's error class may raise
        text = "?"
    return f"{type(error).__name__}: {text[:MOST_TEXT]}"


def _is_about_bytes(error: Exception) -> bool:
    return isinstance(error, (TypeError, AttributeError)) and "bytes" in _text_of(error)
