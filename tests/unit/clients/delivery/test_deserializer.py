"""Values that the application's deserializer fails on are all counted, and logged in few lines."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from kiel_groups.clients.delivery import deserializer
from kiel_groups.clients.delivery.deserializer import FAILURE_LOG_INTERVAL_S, Deserializer
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition
from tests.helpers.delivery_bench import P0, P1, DeliveryBench, take_values
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


class ManualClock:
    """A clock in seconds that only the test advances."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def record(offset: int, value: bytes | None = b"x", partition: TopicPartition = P0) -> Record:
    return Record(partition.topic, partition.partition, offset, None, value)


def read_all(reader: Deserializer, records: Iterable[Record]) -> Sequence[Any]:
    """Return the values of these records, as ``consume()`` returns them."""
    rows = list(records)
    return reader.values(FetchedBatch(rows[0].topic_partition, rows, 1, 1), 1).records.values


def fails(value: bytes) -> Any:
    raise ValueError(f"no such value: {value!r}")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the lines logged since its last call."""

    def new_lines() -> list[str]:
        texts = [entry.getMessage() for entry in caplog.records]
        caplog.clear()
        return texts

    caplog.set_level(logging.INFO, "kiel_groups.clients.delivery.deserializer")
    return new_lines


def test_failures_are_logged_once_a_minute_with_a_count(
    lines: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """
    The first failure of each partition is logged at once, with its traceback. Further failures are logged once a
    minute, with their number.
    """
    clock, metrics = ManualClock(), Metrics()
    values = Deserializer(fails, metrics, clock)
    assert read_all(values, map(record, range(5, 1_005))) == []
    assert [entry.exc_info is not None for entry in caplog.records] == [True]
    assert lines() == [
        "t:0: the deserializer failed on the value at offset 5, which is skipped: ValueError: no such value: b'x'"
    ]
    assert read_all(values, [record(7, partition=P1)]) == []
    assert len(lines()) == 1
    clock.now_s += FAILURE_LOG_INTERVAL_S
    assert read_all(values, [record(1_005, b"y")]) == []
    assert [entry.exc_info is not None for entry in caplog.records] == [False]
    assert lines() == [
        "t:0: the deserializer failed on 1,000 more values, which are skipped, first at offset 6: ValueError: no"
        " such value: b'x'"
    ]
    read_all(values, [record(1_006), record(1_007)])
    assert lines() == []
    clock.now_s += 10 * FAILURE_LOG_INTERVAL_S
    read_all(values, [record(1_008)])
    assert [line[:60] for line in lines()] == ["t:0: the deserializer failed on 3 more values, which are ski"]
    assert metrics.counter("deserializer_failures") == 1_005


def test_counted_failures_are_logged_at_the_close(lines: Callable[[], list[str]]) -> None:
    """Failures that were only counted are logged once at the close, without an event loop."""
    values = Deserializer(fails, Metrics(), ManualClock())
    read_all(values, map(record, range(3)))
    lines()
    values.close()
    assert [line[:48] for line in lines()] == ["t:0: the deserializer failed on 2 more values, w"]
    values.close()
    assert lines() == []


async def test_counted_failures_are_logged_after_the_interval(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures that were only counted are logged after the interval, even if no further value fails."""
    monkeypatch.setattr(deserializer, "FAILURE_LOG_INTERVAL_S", 0.3)
    values = Deserializer(fails, Metrics(), time.monotonic)
    read_all(values, [record(1), record(2)])
    found = lines()

    def logged() -> bool:
        found.extend(lines())
        return len(found) == 2

    await eventually(logged, "the second line is logged")
    assert "on 1 more value, which is skipped" in found[1]


def concatenates(value: Any) -> Any:
    return "text " + value


def splits(value: Any) -> Any:
    return value.split(",")


def encodes(value: Any) -> Any:
    return value.encode()


@pytest.mark.parametrize("expects_text", [concatenates, splits, encodes])
def test_a_deserializer_of_kiel_that_expects_text(lines: Callable[[], list[str]], expects_text: Any) -> None:
    """
    If a deserializer written for kiel fails because it expects text, the log line says that it gets bytes, and how to
    decode them.
    """
    read_all(Deserializer(expects_text, Metrics(), ManualClock()), [record(1)])
    assert "is given bytes" in lines()[0]
    decoded = Deserializer(lambda value: expects_text(value.decode()), Metrics(), ManualClock())
    assert len(read_all(decoded, [record(1)])) == 1
    assert lines() == []


@pytest.mark.parametrize(("function", "value"), [(None, None), (json.loads, None), (json.loads, b"{"), (fails, b"1")])
def test_other_failures_have_no_hint(lines: Callable[[], list[str]], function: Any, value: bytes | None) -> None:
    """
    Other failures of a deserializer have no hint about bytes, not even JSON's complaint that a null value is neither
    text nor bytes.
    """
    read_all(Deserializer(function, Metrics(), ManualClock()), [record(1, value)])
    (line,) = lines()
    assert "is given bytes" not in line


def test_an_error_whose_text_fails_or_is_long(lines: Callable[[], list[str]]) -> None:
    """Neither an exception whose ``__str__`` raises nor one with a very long text breaks the log line."""

    class StrangeError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def raises_strange(value: bytes) -> Any:
        raise StrangeError

    def talkative(value: bytes) -> Any:
        raise ValueError("x" * 100_000)

    read_all(Deserializer(raises_strange, Metrics(), ManualClock()), [record(1)])
    assert lines()[0].endswith("StrangeError: ?")
    read_all(Deserializer(talkative, Metrics(), ManualClock()), [record(1)])
    assert len(lines()[0]) < 500


@pytest.mark.parametrize("way", ["take", "consume"])
async def test_a_consumer_logs_counted_failures_when_it_ends(lines: Callable[[], list[str]], way: str) -> None:
    """Counted failures are logged at the end of iteration, and at the close after ``consume()``."""
    bench = DeliveryBench(fails)
    bench.fetcher.add(P0, *range(10, 20))
    assert not (bench.records.take() if way == "take" else take_values(bench))
    assert len(lines()) == 1
    bench.owned.end()
    assert ["on 9 more values" in line for line in lines()] == [True]
    assert bench.metrics.counter("deserializer_failures") == 10
