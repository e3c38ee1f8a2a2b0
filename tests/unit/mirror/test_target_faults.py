"""
The faults of a target, as decision 49 lists them: each kind is waited for, or fails the task with one line.

librdkafka's mock cluster answers with the errors.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from itertools import count, repeat
from threading import Timer
from types import SimpleNamespace
from weakref import ref

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka import TopicPartition as TargetPartition

from kiel_groups.errors import ConfigError, KielGroupsError, NoBrokersError, RetriableBrokerError, TaskStoppedError
from kiel_groups.mirror import target as target_module
from kiel_groups.mirror import writer as module
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import (
    BACK,
    CLAIMS_TOPIC,
    SETTLED_S,
    Claim,
    LostTopicsError,
    MirroredTopic,
    SourceBatch,
    TopicLimits,
    WriterSettings,
    names_of,
)
from kiel_groups.mirror.writer import TargetWriter
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.columns import columns_of
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from tests.helpers.connector_contexts import RecordingTaskContext
from tests.helpers.mock_kafka import ADD_PARTITIONS, FETCH, PRODUCE, MockKafka, mock_kafka

pytestmark = pytest.mark.unit

PARTITION = TopicPartition("a", 0)
#: Short times, so that the library tries again at once and soon takes a broker for gone.
FAST = {
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "topic.metadata.propagation.max.ms": 100,
    "socket.timeout.ms": 300,
    "request.timeout.ms": 100,
}

both_modes = pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockKafka]:
    """One mock cluster for all tests, because its start may take a second. Each test has topics of its own."""
    with mock_kafka() as found:
        yield found


@pytest.fixture
def kafka(cluster: MockKafka, monkeypatch: pytest.MonkeyPatch) -> MockKafka:
    monkeypatch.setattr(module, "_SLICE_S", 0.05)
    monkeypatch.setattr(module, "_CLOSE_S", 0.05)
    monkeypatch.setattr(module, "_LATE_S", 0.2)
    monkeypatch.setattr(module, "SETTLED_S", 0.1)
    return cluster


def target_of(kafka: MockKafka) -> TargetCluster:
    return TargetCluster({"bootstrap.servers": kafka.servers, **FAST})


#: Numbers for the names of topics and mirrors.
NUMBERS = count()


def writer_of(kafka: MockKafka, context: RecordingTaskContext, *, exactly_once: bool) -> tuple[TargetWriter, str]:
    """Return a writer, and the name of its topic."""
    number = next(NUMBERS)
    topic, mirror = f"copy-{number}", f"m-{number}"
    settings = WriterSettings(mirror, exactly_once, "none", None, False, "")
    return TargetWriter(target_of(kafka), settings, 0, 1_000_000, context), topic


def batch(topic: str, *numbers: int) -> SourceBatch:
    """Return a batch with a record for each number."""
    columns = columns_of([Record(*PARTITION, number, None, b"%d" % number) for number in numbers], numbers[-1] + 1)
    return SourceBatch(PARTITION, [RecordColumns(PARTITION, None, columns, range(len(numbers)))], topic)


def written(
    kafka: MockKafka, context: RecordingTaskContext, *, exactly_once: bool, fault: Callable[[], object]
) -> list[bytes | None]:
    """Write five records while the target has a fault, and return the values that the target has then."""
    writer, topic = writer_of(kafka, context, exactly_once=exactly_once)
    # As a partition that has checkpoints.
    writer._reached.add(PARTITION)
    try:
        fault()
        writer.write([batch(topic, *range(5))])
    finally:
        writer.close()
    return [value for _, value in target_of(kafka).read(topic, 0)]


VALUES = [b"0", b"1", b"2", b"3", b"4"]


@both_modes
def test_a_fault_that_passes_is_waited_for(kafka: MockKafka, exactly_once: bool) -> None:
    """A new leader, a slow answer, too few replicas, a full disk and a topic that a broker does not know yet."""
    codes = (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
    context = RecordingTaskContext()
    found = written(kafka, context, exactly_once=exactly_once, fault=lambda: kafka.refuse(PRODUCE, *codes))
    assert found == VALUES
    assert context.problems[-1] == ""


@both_modes
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "refuses to write: Broker: Topic authorization failed"),
        (KafkaError.INVALID_RECORD, r"refuses to write: cleanup\.policy of a topic has changed .*failed to validate"),
        (KafkaError.POLICY_VIOLATION, "refuses to write: Broker: Policy violation"),
        (KafkaError.UNSUPPORTED_COMPRESSION_TYPE, "refuses to write: Broker: Unsupported compression type"),
        (KafkaError.MSG_SIZE_TOO_LARGE, r"refuses to write: max\.message\.bytes of a topic has changed"),
        (KafkaError.INVALID_PRODUCER_EPOCH, "has fenced this task: another task uses the transactional id"),
    ],
)
def test_a_fault_that_stays_fails_the_task(
    kafka: MockKafka, exactly_once: bool, code: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The task does not write the batch again, and leaves out no record. The library's own line is not shown."""
    with pytest.raises(KielGroupsError, match=text):
        written(kafka, RecordingTaskContext(), exactly_once=exactly_once, fault=lambda: kafka.refuse(PRODUCE, code))
    assert "FATAL" not in caplog.text


@both_modes
@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "gone"])
def test_a_target_that_comes_back(kafka: MockKafka, exactly_once: bool, is_frozen: bool) -> None:
    """A target that is frozen for longer than the timeouts, or gone, is waited for. The status shows it meanwhile."""

    def change(*, ends: bool) -> None:
        if is_frozen:
            kafka.delay(0 if ends else 2_000)
        else:
            kafka.set_down(down=not ends)

    class Context(RecordingTaskContext):
        def report_problem(self, problem: str, part: str = "") -> None:
            super().report_problem(problem, part)
            if "within 0.2 s" in problem:
                # Later than the timeouts.
                Timer(0.6, change, kwargs={"ends": True}).start()

    context, fault = Context(), partial(change, ends=False)
    found = written(kafka, context, exactly_once=exactly_once, fault=fault)
    # A record whose answer is lost is sent again. A real broker recognises it, and the mock does not.
    assert set(found) == set(VALUES)
    assert any("within 0.2 s" in problem for problem in context.problems)
    assert context.problems[-1] == ""


def test_a_leader_of_a_later_epoch_answers_the_second_question(kafka: MockKafka) -> None:
    """The library would send the former epoch again until it renews its metadata, after five minutes."""
    target, partition = target_of(kafka), TopicPartition(f"copy-{next(NUMBERS)}", 0)
    kafka.create(partition.topic, 1)
    assert target.ends([partition], 5.0) == [0]
    kafka.elect(*partition)
    with pytest.raises(KafkaException, match="FENCED_LEADER_EPOCH"):
        target.ends([partition], 5.0)
    assert target.ends([partition], 5.0) == [0]


def test_a_partition_that_had_no_leader_is_asked_again(kafka: MockKafka) -> None:
    """The library would keep the missing leader, too."""
    target, partition = target_of(kafka), TopicPartition(f"copy-{next(NUMBERS)}", 0)
    kafka.create(partition.topic, 1)
    kafka.elect(*partition, broker=-1)
    for _ in range(2):
        with pytest.raises(KafkaException):
            target.ends([partition], 0.2)
    kafka.elect(*partition)
    for _ in range(3):
        with suppress(KafkaException):
            assert target.ends([partition], 0.2) == [0]
            return
    pytest.fail("the partition has a leader")


def test_a_partition_whose_leader_has_not_answered_is_no_short_log(kafka: MockKafka) -> None:
    """Seen while brokers were killed: the library returned the offset -1001 for it, and no error."""
    target, answer = target_of(kafka), Future[SimpleNamespace]()
    answer.set_result(SimpleNamespace(offset=-1001))
    listed = {TargetPartition("a", 0): answer}
    vars(target)["_admin"] = SimpleNamespace(list_offsets=lambda *_, **__: listed, list_topics=lambda **_: None)
    with pytest.raises(KafkaException, match="LEADER_NOT_AVAILABLE"):
        target.ends([PARTITION], 1.0)


def test_a_task_that_must_stop_does_not_wait_for_a_target_that_is_gone(kafka: MockKafka) -> None:
    """The task ends without an error of its own, and writes the records again later."""
    with pytest.raises(TaskStoppedError):
        written(kafka, RecordingTaskContext(stop_after=0), exactly_once=False, fault=lambda: kafka.set_down(down=True))
    kafka.set_down(down=False)


def test_a_target_topic_that_was_created_again_fails_the_task(kafka: MockKafka) -> None:
    """The records that were mirrored are gone. The next records would follow a gap, so the task fails."""
    writer, topic = writer_of(kafka, RecordingTaskContext(), exactly_once=True)
    # As the checkpoints have it.
    writer._ends[PARTITION] = 7
    try:
        with pytest.raises(KielGroupsError, match=f"{topic}:0 had 8 records, and ends at . now: the topic was"):
            writer.write([batch(topic, 7)])
        with pytest.raises(KielGroupsError, match=f"{topic}:0 had 7 records, and ends at . now"):
            writer.check_ends({"a": topic})
    finally:
        writer.close()


@both_modes
def test_a_deleted_topic_keeps_the_next_writer_from_no_other(kafka: MockKafka, exactly_once: bool) -> None:
    """The error names it. The next writer of the set ends the transaction, and writes the records of other topics."""
    number, context = next(NUMBERS), RecordingTaskContext()
    gone, other = names = [f"gone-{number}", f"other-{number}"]
    limits = dict.fromkeys(names, TopicLimits())
    settings = WriterSettings(f"m-{number}", exactly_once, "none", None, False, "", limits)
    writer = TargetWriter(target_of(kafka), settings, 0, 1_000_000, context)
    second = TopicPartition("b", 0)

    def batches(at: int) -> list[SourceBatch]:
        return [batch(gone, at), batch(other, at)._replace(partition=second)]

    try:
        writer.write(batches(0))
        kafka.lose(gone)
        # The library looks at the topic again.
        kafka.refuse(PRODUCE, *[KafkaError.UNKNOWN_TOPIC_OR_PART] * 500)
        with pytest.raises(LostTopicsError, match=f"does not show {gone} with its partitions any more") as caught:
            writer.write(batches(1))
    finally:
        writer.close()
    assert caught.value.problems.keys() == {gone}
    kafka.accept(PRODUCE)
    writer = TargetWriter(target_of(kafka), settings, 0, 1_000_000, context)
    reader, starts = target_of(kafka), list[int]()
    try:
        assert writer.positions()[second] == 1
        assert reader.last_ends(settings.mirror)[second] == 1
        writer.check_ends({"b": other})
        writer.write(batches(1)[1:])
    finally:
        writer.close()
    messages = reader._messages
    vars(reader).update(_messages=lambda each: starts.extend(each.values()) or messages(each))
    # Only what is new is read: a connector asks at each refresh while a topic waits.
    assert (reader.last_ends(settings.mirror)[second] > 1, starts[0] > 0) == (True, True)
    values = [value for _, value in target_of(kafka).read(other, 0)]
    assert (values[0], values[-1]) == (b"0", b"1")
    # At least once, the first writer may have stored the record already. The mock does not know transactions that fail.
    assert len(values) in (2, 3)


def test_a_broker_that_has_just_started_has_lost_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With ZooKeeper, it shows no topic until the controller has sent it all of them, nor any that a mirror made. Commands
    that need the mirror ask it again.
    """
    target, shown = TargetCluster({"bootstrap.servers": "new:9092"}), [CLAIMS_TOPIC, "kiel-mirror-m", "copy"]
    metadata = SimpleNamespace(topics={name: SimpleNamespace(partitions=[0]) for name in shown})
    vars(target).update(_metadata=lambda _: metadata, read=lambda *_: [])
    # Without a mirror, a target may have no topic.
    metadata.topics, shown_later = {}, metadata.topics
    assert target.partitions() == {}
    target.claims()
    with pytest.raises(RetriableBrokerError, match=f"does not show {CLAIMS_TOPIC} any more"):
        target.lost_topics({"a": "copy"}, {PARTITION: 9}, {})
    metadata.topics = shown_later
    assert target.partitions() == dict.fromkeys(shown, 1)
    target, metadata.topics = TargetCluster({"bootstrap.servers": "new:9092"}), {}
    vars(target).update(_metadata=lambda _: metadata, read=lambda *_: [])
    waits = list[float]()
    monkeypatch.setattr(target_module.time, "sleep", waits.append)
    with pytest.raises(ConfigError, match="the target new:9092 has no mirror 'm', nor any other"):
        target.claims_of("m")
    monkeypatch.setattr(target_module.time, "sleep", lambda _: vars(metadata).update(topics=shown_later))
    assert (target.claims_of("m"), waits) == ({}, [SETTLED_S])


def test_lost_topics_are_found_and_not_created_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A topic without mirrored records is created, with the settings that the target has, also if an earlier start has
    claimed it, and was refused. The end of a log counts if it is too small twice: that of a new leader may be.
    """
    monkeypatch.setattr(target_module, "SETTLED_S", 0)
    target, created = TargetCluster({"bootstrap.servers": "new:9092"}), dict[str, Mapping[str, str]]()
    records = {"gone": 9, "short": 9, "kept": 9, "empty": 0}
    known = {TopicPartition(name, 0): count for name, count in records.items()}
    ends, of_new_leader = {"short": 8, "kept": 9}, [0]

    def logs(_: object) -> Mapping[TopicPartition, tuple[int, int]]:
        found = {**ends, "kept": of_new_leader.pop()} if of_new_leader else ends
        return {TopicPartition(f"copy.{name}", 0): (0, end) for name, end in found.items()}

    vars(target).update(
        last_ends=lambda _: known,
        partitions=lambda: dict.fromkeys(ends, 1),
        logs=logs,
        _create=lambda topics: created.update((topic.topic, topic.config) for topic in topics) or {},
    )
    config = {"retention.ms": "7", "of.an.early.release": "8"}
    topics = [MirroredTopic(name, f"copy.{name}", 1, config) for name in [*records, "new"]]
    found = target.lost_topics(names_of(topics), known, {})
    assert {name: text.partition(" any more")[0].partition(":0 had")[0] for name, text in found.items()} == {
        "gone": "the target does not show copy.gone with its partitions",
        "short": "the target's partition copy.short",
    }
    claims = {f"copy.{name}": Claim("m", name, "old:9092", target_id="first") for name in ["empty", "kept"]}
    claims["copy.new"] = Claim("m", "new", "old:9092", 0, BACK, (0,), target_id="first")
    again = "the target's topic copy.{} is not the one that the connector 'm' has begun"
    for each, names in (("first", []), ("second", ["kept", "new"])):
        vars(target).update(topic_ids=lambda wanted, each=each: dict.fromkeys(wanted, each))
        found = target.lost_topics(names_of(topics), known, claims)
        # Nothing was copied to or from the topic without records, so it may be another one.
        assert [name for name, text in found.items() if text.startswith(again.format(name))] == names
    assert "leave new out of the topics of this mirror" in found["new"]
    vars(target).update(partitions=lambda: {"copy.short": 1, "copy.kept": 1})
    _, refused = target.create("m", topics, 1)
    carried = {"retention.ms": "7"}
    assert (created, refused.keys()) == ({"copy.empty": carried, "copy.new": carried}, {"gone"})
    assert "topic new: these settings do not exist on the target: of.an.early.release" in caplog.text


def test_topics_without_an_id_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers before 2.8 have none. A broker that does not know a new topic yet is asked again."""
    monkeypatch.setattr(target_module, "_PAUSE_S", 0)
    target, gone = TargetCluster({"bootstrap.servers": "new:9092"}), KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    answers = {"a": [gone, KafkaError(KafkaError._TRANSPORT), Uuid(1, 2)], "old": [Uuid(0, 0)]}

    def describe(topics: TopicCollection, **_: object) -> Mapping[str, Future[object]]:
        found: dict[str, Future[object]] = {name: Future() for name in topics.topic_names}
        for name, future in found.items():
            answer = answers[name].pop(0) if answers[name][1:] else answers[name][0]
            if isinstance(answer, KafkaError):
                future.set_exception(KafkaException(answer))
            else:
                future.set_result(SimpleNamespace(topic_id=answer))
        return found

    vars(target).update(_admin=SimpleNamespace(describe_topics=describe))
    assert target.topic_ids(["a", "old"]) == {}
    answers["a"].insert(0, gone)
    assert target.topic_ids(["a", "old"], must_exist=True) == {"a": str(Uuid(1, 2))}
    claim = Claim("m", "a", "old:9092")
    for known, names in (("", []), (str(Uuid(1, 2)), []), ("another", ["a"])):
        assert list(target.replaced({"a": claim._replace(target_id=known)})) == names


def test_reading_continues_after_errors_that_pass(kafka: MockKafka) -> None:
    """Claims and checkpoints are read when a broker has been slow, restarted, or without its disk."""
    context, codes = RecordingTaskContext(), (KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION)
    writer, topic = writer_of(kafka, context, exactly_once=False)
    writer.write([batch(topic, 0)])
    writer.close()
    kafka.refuse(FETCH, *codes, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.UNKNOWN)
    assert target_of(kafka).read(topic, 0) == [(b"", b"0")]
    # The last reader may get some of these errors, because it is still closing.
    kafka.refuse(FETCH, *[KafkaError.TOPIC_AUTHORIZATION_FAILED] * 9)
    with pytest.raises(ConfigError, match="Topic authorization failed"):
        target_of(kafka).read(topic, 0)
    kafka.accept(FETCH)


def test_a_target_that_does_not_create_a_topic_in_time(kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock cluster has no answer to the request. The connector tries again after such an error."""
    monkeypatch.setattr(target_module, "_ANSWER_S", 0.2)
    with pytest.raises(KielGroupsError, match=r"cannot create copy: .*Timed out"):
        target_of(kafka).create("m", [MirroredTopic("a", "copy", 3, {})], 1)


def test_a_target_that_hangs_is_not_only_taken_for_an_old_one() -> None:
    """Its port is open, and the library reports no error of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = TargetCluster({"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"})
        with pytest.raises(NoBrokersError, match=r"answers: .*; does it hang, or is it older than Kafka 0\.11\?"):
            target.partitions(0.2)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"session.timeout.ms": -1}, "session.timeout.ms"),
        ({"acks": "1"}, "Failed to create producer: `acks` must be set to `all`"),
        ({"fetch.min.bytes": 0}, "Failed to create consumer: .*fetch.min.bytes"),
    ],
    ids=["admin client", "producer", "consumer"],
)
def test_settings_that_the_library_refuses_are_one_line(
    kafka: MockKafka, properties: dict[str, object], text: str
) -> None:
    """Some settings are refused for one kind of client only."""

    def open_all() -> None:
        target = TargetCluster({"bootstrap.servers": kafka.servers, **properties})
        TargetWriter(target, WriterSettings("m", False, "none", None, False, ""), 0, 1_000, RecordingTaskContext())
        target.consumer({})

    with pytest.raises(ConfigError, match=f"^target.properties: .*{text}"):
        open_all()


@both_modes
def test_a_batch_is_larger_than_a_queue_of_the_user(kafka: MockKafka, exactly_once: bool) -> None:
    """The limits of the library's queue, which refuse records, do not apply: the batch is in memory as a whole."""
    limits = {"queue.buffering.max.messages": 2, "queue.buffering.max.kbytes": 1}
    target = TargetCluster({"bootstrap.servers": kafka.servers, **FAST, **limits})
    settings = WriterSettings("queue", exactly_once, "none", None, False, "")
    writer = TargetWriter(target, settings, 0, 1_000_000, RecordingTaskContext())
    topic = f"copy-{next(NUMBERS)}"
    try:
        writer.write([batch(topic, *range(1_000))])
    finally:
        writer.close()
    assert [value for _, value in target_of(kafka).read(topic, 0)] == [b"%d" % number for number in range(1_000)]


@pytest.mark.parametrize(
    ("code", "is_passing", "text"),
    [
        (KafkaError.NOT_CONTROLLER, True, "cannot create copy"),
        (KafkaError.THROTTLING_QUOTA_EXCEEDED, True, "cannot create copy"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, "the target refuses to create copy: Broker: Topic authorizat"),
        (KafkaError.POLICY_VIOLATION, False, "the target refuses to create copy: Broker: Policy violation"),
        (KafkaError.TOPIC_ALREADY_EXISTS, False, ""),
    ],
)
def test_faults_while_topics_are_created_or_grow(code: int, is_passing: bool, text: str) -> None:
    """The connector tries again after an error that may pass. Other errors concern one topic."""
    future: Future[None] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    target = TargetCluster({"bootstrap.servers": "new:9092"})
    admin = SimpleNamespace(
        create_topics=lambda _, **__: {"copy": future},
        create_partitions=lambda _, **__: {"copy": future},
        list_topics=lambda timeout: SimpleNamespace(topics={}),
    )
    vars(target).update(_admin=admin)
    topics = [MirroredTopic("a", "copy", 3, {})]
    if is_passing:
        with pytest.raises(RetriableBrokerError, match=text):
            target.create("m", topics, 1)
        with pytest.raises(RetriableBrokerError, match="cannot add partitions to copy"):
            target.grow(topics)
        return
    counts, refused = target.create("m", topics, 1)
    assert counts == ({} if text else {"copy": 3})
    assert [problem.startswith(text) for problem in refused.values()] == [True] * bool(text)
    assert target.grow(topics)["a"].startswith("the target refuses to add partitions to copy, as a on the source has 3")


def test_a_transaction_without_the_right_to_write_is_refused_as_a_whole(kafka: MockKafka) -> None:
    """The library drops its records without a cause. The error has the cause, and no loss of records."""
    refused = partial(kafka.refuse, ADD_PARTITIONS, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KielGroupsError, match=r"refuses to write: .*Topic authorization failed"):
        written(kafka, RecordingTaskContext(), exactly_once=True, fault=refused)


def test_markers_are_no_records() -> None:
    """Between two offsets, only a committed record counts, or an open transaction, which may still be committed."""
    target, asked = TargetCluster({"bootstrap.servers": "new:9092"}), list[int]()
    stable, firsts = {0: 10, 1: 9, 2: 12, 3: 10}, {0: 7, 2: 11}

    def messages(starts: Mapping[TopicPartition, int], *, only_first: bool) -> Iterator[SimpleNamespace]:
        assert only_first
        asked.extend(each.partition for each in starts)
        for topic, number in starts:
            if number in firsts:
                found = {"topic": topic, "partition": number, "offset": firsts[number]}
                yield SimpleNamespace(**{name: repeat(value).__next__ for name, value in found.items()})

    vars(target).update(stable_ends=lambda found: [stable[each.partition] for each in found], _messages=messages)
    ranges = {TopicPartition("a", number): (5, 10) for number in stable} | {TopicPartition("a", 4): (10, 10)}
    assert {each.partition for each in target.with_records(ranges)} == {0, 1}
    assert asked == [0, 2, 3]


def test_a_topic_is_not_copied_to_itself() -> None:
    """A target that is the source, by mistake, would get the records of a topic endlessly, unless names differ."""
    target = TargetCluster({"bootstrap.servers": "new:9092"})
    metadata = SimpleNamespace(topics={}, brokers={0: SimpleNamespace(host="old", port=9092)})
    vars(target).update(_admin=SimpleNamespace(list_topics=lambda timeout: metadata))
    same, other = MirroredTopic("a", "a", 1, {}), MirroredTopic("a", "copy.a", 1, {})
    with pytest.raises(
        ConfigError, match="the broker old:9092 is one of the source, too, so a would be copied to itse"
    ):
        target.check("m", "elsewhere:9092,old", 1, [same, other])
    with pytest.raises(ConfigError, match="would be copied to itself"):
        target.claim("m", "old:9092", [same])
    assert target.check("m", "old:9092", 1, [other]) == ({}, {})
    assert target.check("m", "elsewhere:9092", 1, [same]) == ({}, {})


def test_the_client_of_a_target_ends_with_it() -> None:
    """It does not wait for a garbage collection: meanwhile, its threads would ask the servers again and again."""
    target = TargetCluster({"bootstrap.servers": "127.0.0.1:1", **FAST})
    client = ref(target._admin)
    del target
    assert client() is None


def test_the_library_prints_no_lines_of_its_own(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its callers report in other words that a connection is refused."""
    with closing(TargetCluster({"bootstrap.servers": "127.0.0.1:1", **FAST}).consumer({})) as consumer:
        with pytest.raises(KafkaException):
            consumer.list_topics(timeout=0.3)
        consumer.poll(0.1)
    assert (caplog.records, capfd.readouterr()) == ([], ("", ""))
