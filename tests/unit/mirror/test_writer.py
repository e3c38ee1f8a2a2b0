"""The writer of a mirror with a producer in memory: records that are too large, checkpoints, and failed starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from kiel_groups.errors import KielGroupsError, RetriableBrokerError, TaskStoppedError
from kiel_groups.mirror import writer as module
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import SourceBatch, Timestamps, TopicLimits, WriterSettings
from kiel_groups.mirror.writer import TargetWriter
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.columns import columns_of
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from tests.helpers.connector_contexts import RecordingTaskContext

pytestmark = pytest.mark.unit

PARTITION = TopicPartition("a", 3)
LIMIT = 100


class FakeProducer:
    """A producer for topics whose limits are known; it calls the callback of a refused record at once."""

    limits: ClassVar[Mapping[str, int]] = {}
    #: The errors of ``init_transactions``, in turn.
    errors: ClassVar[list[KafkaError]] = []
    #: The numbers of partitions of the topic that the broker knows, in turn, before it knows all of them.
    partitions: ClassVar[list[int]] = []
    made: ClassVar[list[FakeProducer]] = []

    def __init__(self, config: Mapping[str, Any], logger: object) -> None:
        self.config, self.calls = config, list[str]()
        self.metadata_requests = 0
        self.written: dict[str, list[bytes | None]] = {}
        #: The topic of each record, and its key and partition.
        self.topics: list[str] = []
        self.placed: list[tuple[bytes | None, int]] = []
        self.timestamps: list[int] = []
        self.made.append(self)

    def list_topics(self, topic: str, _: float) -> Any:
        self.metadata_requests += 1
        count = self.partitions.pop(0) if self.partitions else 4
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=range(count))})

    def init_transactions(self, _: float) -> None:
        if self.errors:
            raise KafkaException(self.errors.pop(0))

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        done: Callable[[KafkaError], None],
        **more: Any,
    ) -> None:
        self.timestamps += [more["timestamp"]] if "timestamp" in more else []
        records = self.written.setdefault(topic, [])
        if len(value or b"") > self.limits.get(topic, LIMIT):
            done(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        else:
            records.append(value)
            self.topics.append(topic)
            self.placed.append((key, partition))

    def produce_batch(
        self,
        topic: str,
        messages: Sequence[Mapping[str, Any]],
        partition: int,
        done: Callable[[KafkaError], None],
    ) -> int:
        for message in messages:
            self.produce(topic, message["value"], message["key"], partition, message.get("callback", done))
        return len(messages)

    def placed_keys(self, topic: str) -> list[bytes | None]:
        """Return the keys of the records of a topic."""
        return [key for name, (key, _) in zip(self.topics, self.placed, strict=True) if name == topic]

    def __len__(self) -> int:
        return 0

    def poll(self, _: float) -> None:
        pass

    def flush(self, _: float) -> int:
        self.calls.append("flush")
        return 0

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def commit_transaction(self, _: float) -> None:
        self.calls.append("commit")

    def abort_transaction(self, _: float) -> None:
        self.calls.append("abort")

    def purge(self) -> None:
        self.calls.append("purge")


class FakeTarget:
    """A target with some checkpoints. Its logs end as the answers say, in turn; the last answer stays."""

    def __init__(self, checkpoints: Mapping[str, Any] | None = None, *answers: Sequence[int]) -> None:
        self.config, self.servers = {"bootstrap.servers": "new:9092"}, "new:9092"
        self._checkpoints = checkpoints or {}
        self.policy, self.errors = "compact", list[Exception]()
        self.topics = {"copy": 4}
        self._answers = list(answers) or [[1_000]]

    def partitions(self, _: float = 0.0) -> Mapping[str, int]:
        return self.topics

    def ends(self, partitions: Sequence[TopicPartition], _: float) -> Sequence[int]:
        if not partitions:
            return []
        found = self._answers.pop(0) if self._answers[1:] else self._answers[0]
        assert len(found) == len(partitions)
        return found

    def settings(self, topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        if self.errors:
            raise self.errors.pop()
        return {topic: {"cleanup.policy": self.policy} for topic in topics}

    def read(self, _: str, __: int) -> list[tuple[bytes, bytes]]:
        return [(key.encode(), json.dumps(value).encode()) for key, value in self._checkpoints.items()]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Producer", FakeProducer)
    monkeypatch.setattr(module, "_SLICE_S", 0.0)
    monkeypatch.setattr(FakeProducer, "limits", {"dead": 10_000})
    monkeypatch.setattr(FakeProducer, "errors", [])
    monkeypatch.setattr(FakeProducer, "partitions", [])
    monkeypatch.setattr(FakeProducer, "made", [])


def writer_of(
    target: FakeTarget | None = None,
    waiting: RecordingTaskContext | None = None,
    *,
    exactly_once: bool = True,
    dead: str = "dead",
    limits: TopicLimits | None = None,
    timestamps: Timestamps | None = None,
) -> tuple[TargetWriter, FakeProducer]:
    settings = WriterSettings("m", exactly_once, "none", timestamps, False, dead, {"copy": limits or TopicLimits()})
    cluster = cast("TargetCluster", target or FakeTarget())
    writer = TargetWriter(cluster, settings, 0, LIMIT, waiting or RecordingTaskContext())
    return writer, FakeProducer.made[-1]


def batch(first: int, *sizes: int, keys: Sequence[bytes | None] = (), is_hashed: bool = False) -> SourceBatch:
    """Return a batch of records with values of some sizes."""
    rows = zip_longest(sizes, keys)
    records = [Record(*PARTITION, first + row, key, b"x" * size) for row, (size, key) in enumerate(rows)]
    columns = columns_of(records, first + len(sizes))
    return SourceBatch(PARTITION, [RecordColumns(PARTITION, None, columns, range(len(sizes)))], "copy", is_hashed)


def checkpoints(producer: FakeProducer) -> list[Any]:
    return [json.loads(value or b"") for value in producer.written["kiel-mirror-m"]]


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
@pytest.mark.parametrize(
    ("limits", "size"),
    [({"dead": 200}, 500), ({"copy": 20}, 50)],
    ids=["the dead letters are limited", "the limit was lowered"],
)
def test_a_record_that_no_topic_takes_fails_the_writer(
    exactly_once: bool, limits: Mapping[str, int], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer does not write the same transaction for ever: the task fails with one line."""
    monkeypatch.setattr(FakeProducer, "limits", limits)
    writer, producer = writer_of(exactly_once=exactly_once)
    with pytest.raises(KielGroupsError, match=r"max\.message\.bytes of a topic has changed since .*, and a restart"):
        writer.write([batch(0, 10, size)])
    assert "commit" not in producer.calls


@pytest.mark.parametrize("limit", [LIMIT, 10_000], ids=["refused", "taken"])
@pytest.mark.parametrize("dead", ["", "dead"], ids=["no dead letters", "dead letters"])
def test_a_record_that_may_be_refused_is_written_alone(limit: int, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    At least once, the records before it are stored, with their checkpoint, and those after it are not written. So no
    restart writes a record again. If the topic takes the record, the order is kept.
    """
    monkeypatch.setattr(FakeProducer, "limits", {"copy": limit, "dead": LIMIT})
    writer, producer = writer_of(FakeTarget(None, [1], [2], [3], [4], [5]), exactly_once=False, dead=dead)
    batches = [batch(4, 10, 500, 20, 300, 30)]
    if limit == LIMIT:
        text = r"refuses to store the record at offset 5 of a:3: .*too large"
        text = "the topic of dead letters does not take the record: .*too large" if dead else text
        with pytest.raises(KielGroupsError, match=text):
            writer.write(batches)
        assert [each.next_offset for each in writer.written] == [5]
        assert [each["source"] for each in checkpoints(producer)] == [5]
        with pytest.raises(KielGroupsError, match=text):
            writer.write([batch(5, 500, 20, 300, 30)])
        assert writer.written == []
        assert [len(value or b"") for value in producer.written["copy"]] == [10]
        return
    writer.write(batches)
    assert [len(value or b"") for value in producer.written["copy"]] == [10, 500, 20, 300, 30]
    assert [each["source"] for each in checkpoints(producer)] == [5, 6, 7, 8, 9]
    assert sum(each.records for each in writer.written) == 5


def test_a_topic_with_a_large_limit_divides_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a record whose size is near the limit of its own topic is written alone."""
    monkeypatch.setattr(FakeProducer, "limits", {"copy": 300})
    writer, producer = writer_of(exactly_once=False, dead="", limits=TopicLimits(largest_bytes=300))
    writer.write([batch(4, 90, 270, 100)])
    assert [each["source"] for each in checkpoints(producer)] == [7]


def test_a_writer_waits_until_the_producer_knows_a_new_partition() -> None:
    """The library would refuse its records. It is asked once for each partition that had no checkpoint."""
    writer, producer = writer_of(FakeTarget(None, [1], [2]))
    producer.partitions.append(3)
    for first in (0, 1):
        writer.write([batch(first, 10)])
    assert producer.metadata_requests == 2
    writer, producer = writer_of(FakeTarget({'["a", 3, 0]': {"source": 7, "target": 5}}))
    writer.positions()
    writer.write([batch(7, 10)])
    assert producer.metadata_requests == 0


def test_a_dead_letter_is_written_in_the_next_transaction() -> None:
    """A record that is too large aborts its transaction; the next one has the other records and the dead letter."""
    waiting = RecordingTaskContext()
    writer, producer = writer_of(waiting=waiting)
    writer.write([batch(0, 10, 500, 20)])
    assert [call for call in producer.calls if call != "flush"] == ["begin", "abort", "begin", "commit"]
    assert producer.written["dead"] == [b"x" * 500]
    counted = [waiting.metrics.counter(f"mirror_{name}") for name in ("dead_letters", "transactions_aborted")]
    assert counted == [1, 1]


def test_a_checkpoint_has_the_end_of_the_target() -> None:
    """A batch of dead letters has a checkpoint, too. An end that is too small for a moment is looked up again."""
    writer, producer = writer_of(FakeTarget(None, [2], [2], [3], [4]))
    writer.write([batch(0, 10, 20)])
    writer.write([batch(2, 500)])
    writer.write([batch(3, 10, 500, 10)])
    found = [(each["source"], each["target"]) for each in checkpoints(producer)]
    assert found == [(2, 2), (3, 2), (6, 4)]


def test_a_log_of_the_target_that_is_shorter_than_before_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was deleted and created again, perhaps while no task ran: its checkpoints would skip records."""
    monkeypatch.setattr(module, "SETTLED_S", 0.0)
    writer, producer = writer_of(FakeTarget({'["a", 3, 0]': {"source": 7, "target": 5}}, [1]))
    assert writer.positions() == {PARTITION: 7}
    with pytest.raises(KielGroupsError, match=r"had 6 records, and ends at 1 now: the topic was deleted and created"):
        writer.write([batch(7, 10)])
    assert "commit" not in producer.calls


def test_where_keys_are_hashed_a_checkpoint_has_the_end_of_each_partition_of_the_target() -> None:
    """A record with a key goes where its hash says, one without keeps its partition."""
    writer, producer = writer_of(FakeTarget(None, [1, 2, 3, 4]))
    writer.write([batch(0, 1, 1, 1, keys=[b"1", None, b"22"], is_hashed=True)])
    assert producer.placed[:3] == [(b"1", -1), (b"22", -1), (None, 3)]
    assert checkpoints(producer) == [{"source": 3, "target": None, "targets": {"0": 1, "1": 2, "2": 3, "3": 4}}]


class Regained(RecordingTaskContext):
    """The context of a task that has its claim for certain again after two looks."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "is_owner":
            self.looks += 1
            return self.looks > 2
        return super().__getattribute__(name)


def test_without_its_claim_a_task_writes_no_checkpoint() -> None:
    """
    The records of a later owner may be before the ends of the logs, and readers would skip them. So the task waits, and
    looks the ends up again: each stored position has a checkpoint. A transaction needs no claim.
    """
    writer, producer = writer_of(FakeTarget(None, [1], [2], [3], [9]), Regained(), exactly_once=False)
    writer.write([batch(5, 10)])
    assert checkpoints(producer) == [{"source": 6, "target": 3}]
    lost = RecordingTaskContext()
    writer, producer = writer_of(FakeTarget(None, [1]), lost)
    lost.is_owner = False
    writer.write([batch(5, 10)])
    assert checkpoints(producer) == [{"source": 6, "target": 1}]
    stopped = RecordingTaskContext(stop_after=0, is_owner=False)
    writer, producer = writer_of(FakeTarget(None, [1]), stopped, exactly_once=False)
    with pytest.raises(TaskStoppedError):
        writer.write([batch(5, 10)])
    assert "kiel-mirror-m" not in producer.written


def test_the_beginning_of_a_partition_has_a_checkpoint_of_its_own() -> None:
    """It is written at once if its offset is known, else with the first batch. Its slot keeps the first one only."""
    writer, producer = writer_of(FakeTarget(None, [1], [2]))
    writer.begin({PARTITION: None})
    assert producer.calls == []
    for first in (5, 6):
        writer.write([batch(first, 10)])
    assert [each["source"] for each in checkpoints(producer)] == [5, 6, 7]
    assert producer.placed_keys("kiel-mirror-m") == [b'["a", 3, -1]', b'["a", 3, 0]', b'["a", 3, 1]']

    writer, producer = writer_of(FakeTarget({'["a", 3, -1]': {"source": 7, "target": 5}}))
    writer.positions()
    other = TopicPartition("a", 5)
    writer.begin({PARTITION: (9, 8), other: (20, 30)})
    assert checkpoints(producer) == [{"source": 9, "target": 8}, {"source": 20, "target": 30}]
    assert producer.placed_keys("kiel-mirror-m") == [b'["a", 3, -2]', b'["a", 5, -1]']
    assert [call for call in producer.calls if call != "flush"] == ["begin", "commit"]


def test_a_compacted_topic_gets_no_record_without_a_key() -> None:
    """
    A broker would refuse the whole batch. Such a record is a dead letter, or fails the task with its offset before any
    record of its batch is written.
    """
    limits, keys = TopicLimits(is_compacted=True), (b"1", None, b"2")
    writer, producer = writer_of(limits=limits)
    writer.write([batch(4, 10, 11, 12, keys=keys)])
    assert [len(value or b"") for value in producer.written["copy"]] == [10, 12]
    assert producer.written["dead"] == [b"x" * 11]
    assert "abort" not in producer.calls
    writer, producer = writer_of(limits=limits, dead="")
    with pytest.raises(KielGroupsError, match="store the record at offset 5 of a:3: the topic is compacted, and the"):
        writer.write([batch(4, 10, 11, 12, keys=keys)])
    # Each restart at least once would write the other records once more.
    assert (producer.calls, producer.written) == ([], {})
    # The policy of the topic has changed since the start of the task.
    target, context = FakeTarget(), RecordingTaskContext()
    target.policy, target.errors = "delete", [RetriableBrokerError("timed out")]
    writer, producer = writer_of(target, context, limits=limits)
    writer.write([batch(4, 10, 11, 12, keys=keys)])
    assert [len(value or b"") for value in producer.written["copy"]] == [10, 11, 12]
    assert context.problems == ["the target new:9092 does not answer: timed out; trying again", ""]


def test_a_time_that_the_topic_refuses_is_the_time_of_mirroring() -> None:
    """From 4.0 on, brokers refuse records of the future by default, and with them their batch."""
    hour_ms, now_ms = 3_600_000, 1_700_000_000_000
    defaults = {"cleanup.policy": "delete", "message.timestamp.after.max.ms": str(hour_ms)}
    limits = TopicLimits.of(defaults)
    assert limits.legal(now_ms + hour_ms // 2, now_ms) == now_ms + hour_ms // 2
    assert limits.legal(now_ms + 2 * hour_ms, now_ms) == 0
    assert limits.legal(1, now_ms) == 1
    old = TopicLimits.of({"cleanup.policy": "compact,delete", "message.timestamp.difference.max.ms": str(hour_ms)})
    assert old == TopicLimits(True, hour_ms, hour_ms)
    assert [old.legal(now_ms + sign * 2 * hour_ms, now_ms) for sign in (-1, 1)] == [0, 0]
    writer, producer = writer_of(limits=limits, timestamps=lambda value: 4_000_000_000_000 if value else 1)
    writer.write([batch(0, 10, 0)])
    assert producer.timestamps == [0, 1]


def test_transactions_may_last_as_long_as_brokers_allow() -> None:
    """The timeout of transactions is the most that brokers allow by default. A setting of the user comes first."""
    assert writer_of()[1].config["transaction.timeout.ms"] == 900_000
    target = FakeTarget()
    target.config["transaction.timeout.ms"] = "60000"
    assert writer_of(target)[1].config["transaction.timeout.ms"] == "60000"
    # Without transactions, records wait for a target that is gone for an hour, whatever the user sets.
    target.config["message.timeout.ms"] = "60000"
    assert writer_of(target, exactly_once=False)[1].config["message.timeout.ms"] == 0


@pytest.mark.parametrize(
    ("code", "is_stopped", "expected", "text"),
    [
        (KafkaError._FENCED, False, KielGroupsError, "another task uses .* kiel-mirror-m-0, or a transaction was open"),
        (KafkaError._TIMED_OUT, True, TaskStoppedError, "stopped while new:9092 stores records"),
    ],
    ids=["fenced", "stopped"],
)
def test_a_failed_constructor_closes_its_producer(
    code: int, is_stopped: bool, expected: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that cannot start its transactions leaves no producer, whose threads would run on."""
    monkeypatch.setattr(FakeProducer, "errors", [KafkaError(code, "", False, is_stopped)])
    with pytest.raises(expected, match=text):
        writer_of(waiting=RecordingTaskContext(stop_after=0 if is_stopped else None))
    assert FakeProducer.made[-1].calls == ["purge", "flush"]


def test_a_writer_without_a_claim_fences_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was frozen as a task started would fence the writer of the task's present owner."""
    monkeypatch.setattr(FakeProducer, "init_transactions", lambda *_: pytest.fail("the present owner is fenced"))
    with pytest.raises(TaskStoppedError):
        writer_of(waiting=RecordingTaskContext(stop_after=0, is_owner=False))
    assert FakeProducer.made[-1].calls == ["purge", "flush"]


def test_the_report_about_a_late_target_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target does not say where its logs end; the status shows why, until the batch is written."""
    monkeypatch.setattr(module, "_LATE_S", 0.0)
    target, context = FakeTarget(), RecordingTaskContext()
    errors, ends = [KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))], target.ends

    def failing(*args: Any) -> Sequence[int]:
        if errors:
            raise errors.pop()
        return ends(*args)

    monkeypatch.setattr(target, "ends", failing)
    writer_of(target, context)[0].write([batch(0, 10)])
    (late, over) = context.problems
    assert late.startswith("the target new:9092 does not say where its logs end within 0 s: Broker: Unknown topic or")
    assert over == ""


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "its broker has just started"])
def test_a_topic_that_was_deleted_is_named(monkeypatch: pytest.MonkeyPatch, is_deleted: bool) -> None:
    """The library would wait for the topic without an end, and all other topics of the task with it."""
    monkeypatch.setattr(module, "_LATE_S", 0.0)
    writer, producer = writer_of(target := FakeTarget())
    waits = [1, 1]

    def shown(_: float = 0.0) -> Mapping[str, int]:
        if not is_deleted:
            raise RetriableBrokerError("the target does not show its topics")
        return {}

    monkeypatch.setattr(target, "partitions", shown)
    monkeypatch.setattr(producer, "flush", lambda _: waits.pop() if waits else 0)
    if is_deleted:
        with pytest.raises(KielGroupsError, match="does not show copy with its partitions any more: the topic"):
            writer.write([batch(0, 10)])
    else:
        writer.write([batch(0, 10)])
        assert not waits
