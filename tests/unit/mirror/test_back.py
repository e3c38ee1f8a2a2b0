"""Records that are copied back from a target, which is librdkafka's mock cluster, to a source in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from kiel_groups.errors import BrokerError, KielGroupsError, TaskStoppedError
from kiel_groups.mirror import back as module
from kiel_groups.mirror.back import BackCopier, back_partition
from kiel_groups.mirror.directions import DirectionCheck
from kiel_groups.mirror.metrics import BackMetrics
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import MESSAGE_SIZE_TOO_LARGE
from kiel_groups.workers.plugins.interfaces import SourcePosition
from tests.helpers.connector_contexts import RecordingTaskContext
from tests.helpers.mock_kafka import MockKafka, mock_kafka

pytestmark = pytest.mark.unit

COPY = TopicPartition("copy", 0)
VALUES = [b"0", None, b"2", b"3"]


class FakeSource:
    """A source in memory, as a producer sees it. ``error`` refuses records; without ``answers``, futures stay open."""

    def __init__(self) -> None:
        self.records: dict[TopicPartition, list[Any]] = {}
        self.error: Exception | None = None
        self.answers = True

    def produce_many(self, topic: str, values: list[Any], keys: list[Any], partition: int) -> Future[Any]:
        log = self.records.setdefault(TopicPartition(topic, partition), [])
        log += zip(keys, values, strict=True)
        future: Future[Any] = Future()
        if self.error is not None:
            future.set_exception(self.error)
        elif self.answers:
            future.set_result(SimpleNamespace(offset=len(log) - 1))
        return future

    def produce(self, topic: str, value: Any, key: Any, partition: int) -> Future[Any]:
        return self.produce_many(topic, [value], [key], partition)

    def close(self, _: int) -> None:
        pass


class FakeCheck:
    """The check of the directions of topics."""

    is_due = True

    def __init__(self, *turned: str) -> None:
        self.found = frozenset(turned)
        #: The topics whose records were read before a check.
        self.read: set[str] = set()

    def turned(self, read: Collection[str] = ()) -> frozenset[str]:
        self.read.update(read)
        return self.found


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    """A target with four records in a partition."""
    with mock_kafka() as found:
        producer = Producer({"bootstrap.servers": found.servers})
        for number, value in enumerate(VALUES):
            producer.produce("copy", value, b"k%d" % number if number else None, 0)
        producer.flush()
        # It would try to connect to the servers that have ended.
        del producer
        yield found


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    found = FakeSource()

    def producer(*_: object, ack_timeout: int, **__: object) -> FakeSource:
        # With a shorter time, records are stored again and again while a follower is gone.
        assert ack_timeout > 10_000
        return found

    monkeypatch.setattr(module, "Producer", producer)
    monkeypatch.setattr(module, "_SLICE_S", 0.02)
    monkeypatch.setattr(module, "_LATE_S", 0.05)
    monkeypatch.setattr(module, "_CLOSE_MS", 100)
    return found


def copier_of(
    kafka: MockKafka,
    position: int,
    context: RecordingTaskContext | None = None,
    check: FakeCheck | None = None,
    partition: TopicPartition = COPY,
    end: int | None = None,
    most: int = 100,
) -> BackCopier:
    context = context or RecordingTaskContext()
    return BackCopier(
        TargetCluster({"bootstrap.servers": kafka.servers}),
        "old:9092",
        {"copy": "a"},
        {partition: position},
        {partition: end},
        cast("DirectionCheck", check or FakeCheck()),
        context,
        BackMetrics(context.metrics, {partition: "a"}),
        most=most,
        resets=False,
    )


def copied(copier: BackCopier) -> list[SourcePosition]:
    """Copy until there are positions."""
    try:
        while not (positions := copier.copy()):
            pass
        return positions
    finally:
        copier.close()


def test_records_are_copied_from_a_position(kafka: MockKafka, source: FakeSource) -> None:
    """Keys, null values and the order are kept. Records before the position, which the mirror wrote, are not copied."""
    assert copied(copier_of(kafka, 1)) == [SourcePosition(back_partition(COPY), {"offset": 4, "end": 3})]
    assert source.records == {TopicPartition("a", 0): [(b"k1", None), (b"k2", b"2"), (b"k3", b"3")]}


def test_a_record_that_the_source_refuses_fails_the_task(kafka: MockKafka, source: FakeSource) -> None:
    """The error names the largest record."""
    source.error = BrokerError("refused", code=MESSAGE_SIZE_TOO_LARGE.number)
    expected = "refuses records of copy:0 from offset 0 on: refused; the largest one has 1 bytes and offset 0"
    with pytest.raises(KielGroupsError, match=expected):
        copied(copier_of(kafka, 0))


def test_a_position_that_the_target_does_not_have_fails_the_task(
    kafka: MockKafka, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record is left out silently, and what is left is not taken for the next records."""
    with pytest.raises(KielGroupsError, match="copy:0 of the target was copied back up to offset 9, and its log is at"):
        copied(copier_of(kafka, 9))
    monkeypatch.setattr(TargetCluster, "logs", lambda *_: {COPY: (10, 12)})
    with pytest.raises(KielGroupsError, match="copy:0 of the target does not have offset 9, where the copies back"):
        copied(copier_of(kafka, 9))
    assert source.records == {}


def test_a_topic_that_is_not_turned_any_more_is_not_copied(kafka: MockKafka, source: FakeSource) -> None:
    """
    The claims are checked between the read and the write. A topic that was stopped only for a moment is continued at
    the first record that was not copied.
    """
    check = FakeCheck("copy")
    copier = copier_of(kafka, 1, check=check)
    assert [copier.copy() for _ in range(5)] == [[]] * 5
    assert source.records == {}
    check.found = frozenset()
    assert copied(copier) == [SourcePosition(back_partition(COPY), {"offset": 4, "end": 3})]
    assert [key for key, _ in source.records[TopicPartition("a", 0)]] == [b"k1", b"k2", b"k3"]
    # The topic may have been created again before its records were read.
    assert check.read == {"copy"}


def test_a_task_waits_for_a_source_that_is_gone(kafka: MockKafka, source: FakeSource) -> None:
    """The status shows it, and the task ends when it must stop."""

    class Context(RecordingTaskContext):
        @property
        def should_stop(self) -> bool:
            return bool(self.problems)

    context = Context()
    source.answers = False
    with pytest.raises(TaskStoppedError):
        copied(copier_of(kafka, 0, context))
    assert context.problems == ["the source old:9092 has not stored records of copy:0 within 0.05 s; trying again"]


@pytest.mark.parametrize(("number", "end", "before"), [(1, None, 0), (2, 4, 3)], ids=["unknown end", "known end"])
def test_records_of_other_producers_are_reported(
    number: int, end: int | None, before: int, kafka: MockKafka, source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A producer that still writes to the source writes records that nothing mirrors. Those before the first copy of a
    task count, too, if it is known where the mirrored ones end.
    """
    producer = Producer({"bootstrap.servers": kafka.servers})
    copier = copier_of(kafka, 0, partition=TopicPartition("copy", number), end=end)
    try:
        for others in (7, 2):
            source.records.setdefault(TopicPartition("a", number), []).extend([(None, b"x")] * others)
            producer.produce("copy", b"0", None, number)
            producer.flush()
            while not copier.copy():
                pass
    finally:
        copier.close()
    expected = [f"a:{number}: {each} records of the source not from the target" for each in (before, 2) if each]
    assert [each for each in expected if each not in caplog.text] == []
    assert caplog.text.count("of the source not from the target") == len(expected)


def test_the_lag_of_the_way_back_is_measured(
    kafka: MockKafka, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alarms and the console show what is left, by the name of the topic on the source."""
    monkeypatch.setattr("kiel_groups.mirror.metrics._MEASURED_S", 0)
    producer = Producer({"bootstrap.servers": kafka.servers})
    for _ in range(5):
        producer.produce("copy", b"x", None, 3)
    producer.flush()
    context, lags = RecordingTaskContext(), list[float]()
    copier = copier_of(kafka, 0, context, partition=TopicPartition("copy", 3), most=2)
    try:
        while lags[-1:] != [0]:
            copier.copy()
            found = {name: value for name, labels, value in context.metrics.samples() if dict(labels) == {"topic": "a"}}
            lags += [found["mirror_lag_records"]] if "mirror_lag_records" in found else []
    finally:
        copier.close()
    assert {3, 1} <= set(lags) <= {5, 3, 1, 0}
    assert (found["mirror_records_copied_back"], found["mirror_partitions"]) == (5, 1)
