"""The outcomes of records, which are set when brokers have stored the records, or when the records have failed."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias


class RecordMetadata(NamedTuple):
    """
    The place where a record was stored.

    The offset is -1 with acks 0. Partition and offset are -1 for a record that waits for other records.
    """

    topic: str
    partition: int
    offset: int


class JointOutcome:
    """
    The outcome of several records that share one future.

    The future gets the number of the records when all of them are stored. It fails with the first error of a record,
    once all records have an outcome.
    """

    __slots__ = ("_count", "_error", "_unsettled", "future")

    def __init__(self, count: int) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._count = self._unsettled = count
        self._error: Exception | None = None
        if not count:
            self.future.set_result(0)

    def done(self) -> bool:
        """Return False: the outcome of the record that asks is not recorded yet."""
        return False

    def set_result(self, place: RecordMetadata) -> None:
        """Record that the next record is stored."""
        self.settle(1)

    def settle(self, count: int, error: Exception | None = None) -> None:
        """Record that the next ``count`` records are stored or, with an error, that they have failed."""
        self._unsettled -= count
        self._error = self._error or error
        if self._unsettled:
            return
        if self._error is not None:
            fail_future(self.future, self._error)
        elif not self.future.done():
            self.future.set_result(self._count)


class RoundOutcome(JointOutcome):
    """
    The outcome of the records that wait until there are ``size`` of them.

    ``missing`` is how many of them are missing. Records of ``produce_many`` may be between them in a batch.
    """

    __slots__ = ("missing",)

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.missing = size

    def join(self, topic: str, waiting: asyncio.Future[RecordMetadata]) -> asyncio.Future[RecordMetadata]:
        """Count one more record, and return the record's future, which is done."""
        self.missing -= 1
        waiting.set_result(RecordMetadata(topic, -1, -1))
        return waiting

    def end(self) -> asyncio.Future[int]:
        """Count the missing records as stored, and return the future, which fails with the first error of a record."""
        self.settle(self.missing)
        return self.future


#: What gets the outcome of a record. A future of another thread is a blocking producer's.
Outcome: TypeAlias = asyncio.Future[RecordMetadata] | concurrent.futures.Future[RecordMetadata] | JointOutcome


def settle_failed(outcome: Outcome, error: Exception) -> None:
    """Tell a record's outcome that the record has failed."""
    if isinstance(outcome, JointOutcome):
        outcome.settle(1, error)
    else:
        fail_future(outcome, error)


def fail_future(future: asyncio.Future[Any] | concurrent.futures.Future[Any], error: Exception) -> None:
    """Fail a record's future, unless it is done. Keep asyncio from reporting the error, which was logged already."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def raise_first(outcomes: Iterable[asyncio.Future[Any]]) -> None:
    """Raise the first failure of these outcomes, all of which are done."""
    for outcome in outcomes:
        error = outcome.exception()
        if error is not None:
            raise error
