"""Warnings about records that are not stored for a long time."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kiel_groups.cli.commands.produce import REPORTED_BY_LINE
from kiel_groups.clients.produce import sender
from kiel_groups.clients.producer import Producer
from kiel_groups.errors import BrokerError, OutcomeUnknownError
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import PRODUCE, FakeBroker
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)
#: The line at the end of a stall.
END = r"brokers store the records of all partitions again, after \d\.\d s"


@pytest.fixture(autouse=True)
def short_stall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report a stall after 50 ms."""
    monkeypatch.setattr(sender, "STALLED_AFTER_S", 0.05)


def producer_at(broker: FakeBroker, **settings: Any) -> Producer:
    """Return a producer with short pauses between retries."""
    quick = {"required_acks": 1, "backoff_ms": 2, "max_backoff_ms": 10, "retries": 1_000}
    return Producer([str(broker.address)], **(quick | settings))


class StallWarnings(logging.Handler):
    """A log handler that collects the warnings about stalls."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.loggers: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith(("no broker has stored a record", "brokers store the records")):
            self.lines.append(line)
            self.loggers.add(record.name)

    async def first(self, count: int) -> list[str]:
        """Wait until ``count`` lines were logged, and return all lines."""
        await eventually(lambda: len(self.lines) >= count, f"{count} warnings", timeout_s=5.0)
        return self.lines


@pytest.fixture
def warnings() -> Iterator[StallWarnings]:
    """Collect the warnings of a test."""
    recorder = StallWarnings()
    sender.log.addHandler(recorder)
    yield recorder
    sender.log.removeHandler(recorder)


def stalled_partitions(producer: Producer) -> float:
    """Return the number of stalled partitions from the metrics."""
    return next(value for name, _, value in producer.metrics.samples() if name == "produce_stalled")


async def test_a_frozen_broker_is_reported_once_and_so_is_its_end(warnings: StallWarnings) -> None:
    """
    A frozen broker is reported by one line with the partitions and the number of waiting records, and the end of the
    stall by another line.
    """
    async with FakeBroker({"t": 2}) as broker, producer_at(broker) as producer:
        broker.gates[PRODUCE] = asyncio.Event()
        outcomes = [producer.produce("t", b"value", partition=number % 2) for number in range(3)]
        (line,) = await warnings.first(1)
        assert line == "no broker has stored a record of t:0, t:1 for 0 s; 3 records wait for the first answer"
        assert stalled_partitions(producer) == 2
        assert warnings.loggers.isdisjoint(REPORTED_BY_LINE), "the command 'produce' prints the warning"
        await throughout(lambda: len(warnings.lines) == 1, "the stall is reported once", 0.2)
        broker.gates[PRODUCE].set()
        await asyncio.gather(*outcomes)
        assert re.fullmatch(END, warnings.lines[1])
        assert stalled_partitions(producer) == 0


async def test_repeated_failures_are_one_stall(warnings: StallWarnings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of failed tries are one stall. Its line has the reason of the last failure."""
    # On a busy machine, the record of the other partition may take 50 ms.
    monkeypatch.setattr(sender, "STALLED_AFTER_S", 0.3)
    async with FakeBroker({"t": 2}) as broker, producer_at(broker) as producer:
        broker.fail_next(PRODUCE, T0, *[5] * 1_000)
        outcome = producer.produce("t", b"value", partition=0)
        (line,) = await warnings.first(1)
        assert "1 record waits, and the last try failed: " in line
        assert "LEADER_NOT_AVAILABLE" in line
        assert (await producer.produce("t", b"other", partition=1)).offset == 0
        assert len(warnings.lines) == 1, "the other partition does not end it"
        broker.errors.clear()
        await outcome
        assert len(warnings.lines) == 2


async def test_failed_records_do_not_end_a_stall(warnings: StallWarnings) -> None:
    """A stall does not end when batches fail for good, but when a broker stores a batch."""
    async with FakeBroker({"t": 2}) as broker, producer_at(broker, retries=20) as producer:
        broker.fail_next(PRODUCE, T0, *[5] * 10_000)
        for _ in range(3):
            assert isinstance(await failure_of(producer, T0), OutcomeUnknownError)
        assert stalled_partitions(producer) == 1
        assert len(warnings.lines) == 1
        broker.errors.clear()
        await producer.produce("t", b"value", partition=0)
        assert re.fullmatch(END, warnings.lines[1])


async def test_a_record_that_is_refused_at_once_starts_no_stall(
    warnings: StallWarnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A record that is refused at once starts no stall: the waiting time of the next record starts when that record is
    produced.
    """
    # On a busy machine, a record may take 50 ms.
    monkeypatch.setattr(sender, "STALLED_AFTER_S", 0.3)
    async with FakeBroker({"t": 2}) as broker, producer_at(broker) as producer:
        broker.fail_next(PRODUCE, T0, 10)
        assert isinstance(await failure_of(producer, T0), BrokerError)
        await throughout(lambda: not warnings.lines, "there is no stall", 0.4)
        await producer.produce("t", b"value", partition=0)
        assert warnings.lines == []


async def test_a_stalled_partition_is_reported_while_others_are_stored(warnings: StallWarnings) -> None:
    """
    A partition without a leader is reported as stalled, although another partition stores a record every few
    milliseconds.
    """
    async with FakeBroker({"t": 2}) as broker, producer_at(broker) as producer:
        broker.fail_next(PRODUCE, T0, *[5] * 10_000)
        outcome = producer.produce("t", b"value", partition=0)

        async def warned_while_others_are_stored() -> list[str]:
            await producer.produce("t", b"other", partition=1)
            return warnings.lines

        await eventually(warned_while_others_are_stored, "the stall is reported", 5)
        assert warnings.lines[0].startswith("no broker has stored a record of t:0 for")
        broker.errors.clear()
        await outcome


async def test_a_partition_that_stalls_later_is_reported_too(warnings: StallWarnings) -> None:
    """
    A second partition that stalls during the stall of the first one is reported, too. The stall ends when both store
    records.
    """
    async with FakeBroker({"t": 2}) as broker, producer_at(broker) as producer:
        broker.gates[PRODUCE] = asyncio.Event()
        outcomes = [producer.produce("t", b"value", partition=0)]
        await warnings.first(1)
        outcomes.append(producer.produce("t", b"value", partition=1))
        assert [line.partition(" for")[0] for line in await warnings.first(2)] == [
            f"no broker has stored a record of t:{partition}" for partition in (0, 1)
        ]
        broker.gates[PRODUCE].set()
        await asyncio.gather(*outcomes)
        assert re.fullmatch(END, warnings.lines[2])


async def test_a_slow_broker_is_no_stall(warnings: StallWarnings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow broker causes no stall if no single record waits for long, although some record is always waiting."""
    monkeypatch.setattr(sender, "STALLED_AFTER_S", 1.0)
    async with FakeBroker({"t": 2}) as broker, producer_at(broker) as producer:

        async def none_while_records_are_stored() -> bool:
            await producer.produce("t", b"value", partition=0)
            return warnings.lines == []

        await throughout(none_while_records_are_stored, "there is no stall", 1.3)


async def test_the_end_of_a_stall_is_not_logged_when_the_producer_is_closed(warnings: StallWarnings) -> None:
    """
    When the producer is closed during a stall, the end of the stall is not logged. The close itself reports the records
    that were not stored.
    """
    async with FakeBroker({"t": 2}) as broker, producer_at(broker) as producer:
        broker.gates[PRODUCE] = asyncio.Event()
        outcome = producer.produce("t", b"value", partition=0)
        await warnings.first(1)
        await producer.close(timeout_ms=10)
        assert stalled_partitions(producer) == 0
        await asyncio.gather(outcome, return_exceptions=True)
        await throughout(lambda: len(warnings.lines) == 1, "only the stall is reported", 0.1)


async def failure_of(producer: Producer, partition: TopicPartition) -> Exception | None:
    """Produce a record, and return the error that it fails with, or None if it is stored."""
    outcome = producer.produce(partition.topic, b"value", partition=partition.partition)
    await asyncio.wait({outcome})
    error = outcome.exception()
    assert error is None or isinstance(error, Exception)
    return error
