"""Convert the bytes of messages with the application's deserializers, and handle the deserializers' failures."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from kiel_groups.clients.calls.left_loop import running_loop
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.errors import BadRecordError, RecordDeserializationError
from kiel_groups.metrics import Metrics
from kiel_groups.model import FencingToken, PartitionBatch, Record, TopicPartition
from kiel_groups.wire.message_sets.decoder import ValueRun
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from kiel_groups.wording import counted

log = logging.getLogger(__name__)


R = TypeVar("R", covariant=True)

#: What a consumer does with a record that it cannot deliver: raise the error and stay before the record, skip it, or
#: call a function with the record (bytes) and the error, and pass the record when the function has returned.
OnBadRecord: TypeAlias = Literal["raise", "skip"] | Callable[[Record, BadRecordError], object]

_new = tuple.__new__

#: The number of records between two readings of the clock while a batch is deserialized.
_TIMED = 8

#: How often the failures of one partition are logged, in seconds.
FAILURE_LOG_INTERVAL_S = 60.0

#: How much of an error's text is logged, in characters. The text may contain the whole value.
MOST_TEXT = 300

_BYTES_HINT = (
    "; a deserializer is given bytes, where kiel gave it text: if it expects text, pass"
    " 'lambda value: deserializer(value.decode())'"
)


class _Failure(NamedTuple):
    """The offset and the error's text of one failed record. The exception itself would keep its frames alive."""

    offset: int
    text: str


@dataclass(slots=True)
class _Unlogged:
    """The failures of one partition that are not logged yet: the first failure, their number, and when to log them."""

    due_s: float
    first: _Failure | None = None
    count: int = 0


class FailureLog:
    """
    Logs deserializer failures, by partition: the first failure at once, later failures together, once a minute at most.

    Args:
        clock: Returns seconds on a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._unlogged: dict[TopicPartition, _Unlogged] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, error: RecordDeserializationError) -> None:
        """Log a failure now, or count it for the next log line of its partition."""
        cause, partition = error.__cause__, error.topic_partition
        assert isinstance(cause, Exception)
        hint = _BYTES_HINT if _BYTES_HINT in str(error) else ""
        failure = _Failure(error.offset, _text_of(cause) + hint)
        unlogged = self._unlogged.get(partition)
        if unlogged is None:
            self._unlogged[partition] = _Unlogged(self._clock() + FAILURE_LOG_INTERVAL_S)
            log.error(
                "%s: the deserializer failed on the %s at offset %d, which is skipped: %s",
                partition,
                error.field,
                failure.offset,
                failure.text,
                exc_info=cause,
            )
            return
        unlogged.first = unlogged.first or failure
        unlogged.count += 1
        if self._clock() >= unlogged.due_s:
            self._log(partition, unlogged)
        elif self._timer is None:
            self._start_timer()

    def close(self) -> None:
        """Log the failures that are not logged yet. The call needs no event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition, unlogged in self._unlogged.items():
            self._log(partition, unlogged)

    def _log(self, partition: TopicPartition, unlogged: _Unlogged) -> None:
        first, count = unlogged.first, unlogged.count
        if first is not None:
            unlogged.first, unlogged.count, unlogged.due_s = None, 0, self._clock() + FAILURE_LOG_INTERVAL_S
            log.error(
                "%s: the deserializer failed on %s, first at offset %d: %s",
                partition,
                counted(count, "more value, which is skipped", "more values, which are skipped"),
                first.offset,
                first.text,
            )

    def _start_timer(self) -> None:
        """Start the timer that logs the counted failures when they are due, unless no failure is counted."""
        loop, due_s = running_loop(), min((each.due_s for each in self._unlogged.values() if each.count), default=None)
        if loop is not None and due_s is not None:
            self._timer = loop.call_later(max(0.0, due_s - self._clock()), self._log_due)

    def _log_due(self) -> None:
        self._timer = None
        for partition, unlogged in self._unlogged.items():
            if self._clock() >= unlogged.due_s:
                self._log(partition, unlogged)
        self._start_timer()


class Converted(NamedTuple, Generic[R]):
    """
    The first records of a batch in the form in which they are delivered, and the error of the next record, if any.

    ``delivered`` is the number of these records. ``read`` is the number of fetched records from which the delivered
    records were made, including skipped records.
    """

    records: R
    delivered: int
    read: int
    error: RecordDeserializationError | None = None


class Deserializer:
    """
    Deserializes the keys and values of one consumer's records, on the consumer's event loop.

    A record on which a function fails is counted and skipped, or returned as an error, as ``on_bad_record`` says.
    Skipped records are counted, and logged at most once a minute for each partition.

    Args:
        deserializer: The application's function. If it is None, ``values`` decodes JSON, and records keep their bytes.
        metrics: Counts all failures, as ``deserializer_failures``.
        clock: Returns seconds on a monotonic clock.
        key_deserializer: The application's function for keys. If it is None, keys remain bytes.
        on_bad_record: What happens to records on which a function fails; see ``OnBadRecord``.
    """

    def __init__(
        self,
        deserializer: Callable[[Any], Any] | None,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        key_deserializer: Callable[[Any], Any] | None = None,
        on_bad_record: OnBadRecord = "raise",
    ) -> None:
        self._deserializer = deserializer
        self._key_deserializer = key_deserializer
        self._metrics = metrics
        self._clock = clock
        self.on_bad_record = on_bad_record
        self._failures = FailureLog(clock)

    @property
    def keeps_bytes(self) -> bool:
        """Whether records keep their bytes, so that ``read`` need not be called."""
        return self._deserializer is None and self._key_deserializer is None

    def read(self, record: Record) -> Record:
        """
        Return the record with its key and value deserialized. A null key or value stays None.

        Raises:
            RecordDeserializationError: The application's function raised. The failure is neither counted nor logged
                yet.
        """
        topic, partition, offset, key, value = record
        if self._deserializer is not None and value is not None:
            try:
                value = self._deserializer(value)
            except Exception as error:
                raise self._error(record, "value", error) from error
        if self._key_deserializer is not None and key is not None:
            try:
                key = self._key_deserializer(key)
            except Exception as error:
                raise self._error(record, "key", error) from error
        # A third of the time of ``_replace``.
        return _new(Record, (topic, partition, offset, key, value))

    # The three forms in which a batch is delivered. Each stops before a record on which a function fails, unless such
    # records are skipped.

    def records(
        self, fetched: FetchedBatch, token: FencingToken, longest_s: float | None = None
    ) -> Converted[list[Record]]:
        """
        Deserialize a batch for a loop, ``getone()`` and ``getmany()``.

        A record that fails ends the result, unless ``on_bad_record`` is "skip".

        Args:
            fetched: The batch.
            token: Not used: records have no token.
            longest_s: Stop after this time, in seconds, but not before the first record; None for no limit.
        """
        records = fetched.records
        if self.keeps_bytes:
            return Converted(records, len(records), len(records))
        ends_s = None if longest_s is None else self._clock() + longest_s
        readable: list[Record] = []
        read, add = self.read, readable.append
        for number, record in enumerate(records):
            try:
                add(read(record))
            except RecordDeserializationError as error:
                if self.on_bad_record != "skip":
                    return Converted(readable, len(readable), number, error)
                self.skip(error)
            # A slow function is found out by the first record, so that the others need no clock of their own.
            if ends_s is not None and not number % _TIMED and self._clock() >= ends_s:
                return Converted(readable, len(readable), number + 1)
        return Converted(readable, len(readable), len(records))

    def columns(self, fetched: FetchedBatch, token: FencingToken) -> Converted[list[RecordColumns]]:
        """Return a batch as ``consume_batches()`` returns it: columns of the fetched bytes, without record objects."""
        columns = fetched.columns(token or None)
        return Converted([columns], len(columns), len(fetched))

    def values(self, fetched: FetchedBatch, token: FencingToken) -> Converted[PartitionBatch]:
        """
        Deserialize a batch for ``consume()``. Records are made only if the application asks for them.

        A value that fails ends the result only if ``on_bad_record`` is a function; otherwise the value is left out.
        """
        run = fetched.values()
        values, skipped, error = self._values(run, stops=callable(self.on_bad_record))
        records = run.records
        if error is not None:
            records = records[: len(values)]
        elif skipped:
            records = [record for number, record in enumerate(records) if number not in skipped]
        if self._key_deserializer is not None:
            values, records, error = self._with_keys(values, records, error)
        part = PartitionBatch(fetched.topic_partition, token, values, records)
        return Converted(part, len(values), len(fetched) if error is None else len(values), error)

    def _values(self, run: ValueRun, *, stops: bool) -> tuple[list[Any], set[int], RecordDeserializationError | None]:
        """Return the values, the numbers of skipped records, and the error of the record that ended the values."""
        read: Callable[[Any], Any] = self._deserializer or json.loads
        if read is bytes and None not in run.values:
            return run.values.copy(), set(), None
        values: list[Any] = []
        skipped: set[int] = set()
        rest = iter(run.values)
        while True:
            try:
                # No statement for each value. If the function raises, the list keeps the values before.
                values.extend(map(read, rest))
                if len(values) + len(skipped) == len(run.values):
                    return values, skipped, None
                # ``map`` took the function's StopIteration for the end of the values.
                raise StopIteration
            except Exception as cause:
                number = len(values) + len(skipped)
                error = self._error(run.records[number], "value", cause)
                if stops:
                    return values, skipped, error
                self.skip(error)
                skipped.add(number)

    def _with_keys(
        self, values: list[Any], records: Sequence[Record], error: RecordDeserializationError | None
    ) -> tuple[list[Any], list[Record], RecordDeserializationError | None]:
        """
        Deserialize the keys of ``records``, and return the values and records that remain, and an error.

        If ``on_bad_record`` is a function, the records end before the first failed key, and the error of the key is
        returned. Otherwise, records with a failed key are skipped. ``error`` is the error of the record after
        ``records``. ``error`` is returned if no key fails.
        """
        read = self._key_deserializer
        assert read is not None
        readable: list[tuple[Any, Record]] = []
        for value, record in zip(values, records, strict=True):
            try:
                key = None if record.key is None else read(record.key)
            except Exception as cause:
                failed = self._error(record, "key", cause)
                if callable(self.on_bad_record):
                    error = failed
                    break
                self.skip(failed)
            else:
                readable.append((value, record._replace(key=key)))
        return [value for value, _ in readable], [record for _, record in readable], error

    def _error(self, record: Record, field: str, cause: Exception) -> RecordDeserializationError:
        name = "deserializer" if field == "value" else "key_deserializer"
        hint = _BYTES_HINT if self._is_about_bytes(record, field, cause) else ""
        error = RecordDeserializationError(
            f"{record.topic_partition} at offset {record.offset}: the {name} failed: {_text_of(cause)}{hint}; to pass"
            f" the record, seek to {record.offset + 1}, or set on_bad_record to 'skip' or to a function",
            field=field,
            topic_partition=record.topic_partition,
            offset=record.offset,
            next_offset=record.offset + 1,
            key=record.key,
            value=record.value,
        )
        error.__cause__ = cause
        return error

    def _is_about_bytes(self, record: Record, field: str, cause: Exception) -> bool:
        # No hint for a null value: json.loads names bytes in its error for None, too.
        takes_text = field == "key" or (self._deserializer is not None and record.value is not None)
        return takes_text and isinstance(cause, (TypeError, AttributeError)) and "bytes" in _text_of(cause)

    def failed(self) -> None:
        """Count a failure of a deserializer."""
        self._metrics.count("deserializer_failures")

    def skip(self, error: RecordDeserializationError) -> None:
        """Count a record that is skipped. Log skipped records at most once a minute for each partition."""
        self.failed()
        self._failures.add(error)

    def close(self) -> None:
        """Log the failures that are not logged yet. The call needs no event loop."""
        self._failures.close()


def _text_of(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # the ``__str__`` of the application's error class may raise
        text = "?"
    return f"{type(error).__name__}: {text[:MOST_TEXT]}"
