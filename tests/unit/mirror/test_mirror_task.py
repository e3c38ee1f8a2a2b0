"""The task of ``Mirror`` without a server: what it copies, what waits, and where it begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

import pytest

from kiel_groups.errors import (
    ConfigError,
    KielGroupsError,
    NoBrokersError,
    OffsetOutOfRangeError,
    RetriableBrokerError,
    TaskStoppedError,
)
from kiel_groups.metrics import Metrics
from kiel_groups.mirror import metrics as mirror_metrics
from kiel_groups.mirror import task as module
from kiel_groups.mirror import writer as writer_module
from kiel_groups.mirror.connector import MirrorConnector
from kiel_groups.mirror.metrics import OTHERS, MirrorMetrics
from kiel_groups.mirror.task import MirrorTask, timestamp_of
from kiel_groups.mirror.values import PARTITIONS_KEY, Claim, LostTopicsError, SourceBatch, set_of
from kiel_groups.model import TopicPartition
from kiel_groups.workers.plugins.connector_checks import run_settings
from kiel_groups.workers.plugins.interfaces import SourcePosition
from tests.helpers.connector_contexts import RecordingTaskContext, typed

pytestmark = pytest.mark.unit

CONFIG = {"source.bootstrap.servers": "old:9092", "target.bootstrap.servers": "new:9092", "topics": "a,b*"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"at": 1600000000000}', 1_600_000_000_000),
        (b'{"at": "2020-09-13T12:26:40Z"}', 1_600_000_000_000),
        (b'{"at": "2020-09-13T12:26:40"}', 0),
        (b'{"at": -5}', 0),
        (b'{"at": 1e400}', 0),
        (b'{"at": null}', 0),
        (b'{"other": 1}', 0),
        (b"[1]", 0),
        (b"\xff", 0),
        (b"[" * 100_000, 0),
        (None, 0),
    ],
)
def test_timestamps_of_json_values(value: bytes | None, expected: int) -> None:
    """A value without a legal time has no timestamp, so the record gets the time of mirroring."""
    assert timestamp_of("at", value) == expected


class FakeConsumer:
    """A consumer of the source whose answers are given; an error is raised."""

    is_gone = False

    def __init__(self, *answers: Any, ends: Mapping[TopicPartition, int] = {}) -> None:
        self._answers, self._ends = list(answers), ends
        #: What the ends are in turn, before they are those in ``ends``.
        self.earlier_ends: list[Mapping[TopicPartition, int]] = []
        self.stopped: set[TopicPartition] = set()
        self.seeks: list[tuple[TopicPartition, int]] = []
        self.subscribed: list[Any] = []

    def consume_batches(self, **_: object) -> Any:
        return self._answer()

    def subscribe(self, topic: str, starts: Any, numbers: Any) -> None:
        self._answer()
        self.subscribed.append((topic, starts, numbers))

    def _answer(self) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lag(self) -> dict[TopicPartition, int]:
        return {}

    def topics(self) -> set[str]:
        if self.is_gone:
            raise NoBrokersError
        return {partition.topic for partition in self._ends}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {partition.partition for partition in self._ends if partition.topic == topic}

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        ends = self.earlier_ends.pop() if self.earlier_ends else self._ends
        return {partition: ends[partition] for partition in partitions}

    def paused(self) -> set[TopicPartition]:
        return set(self.stopped)

    def pause(self, *partitions: TopicPartition) -> None:
        self.stopped |= set(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.stopped -= set(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.seeks.append((partition, offset))

    def close(self) -> None: ...


class FakeCheck:
    """The directions of topics: each answer has the topics that are not copied to the target any more."""

    is_due = True

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    def turned(self) -> frozenset[str]:
        return frozenset(self._answers.pop(0) if self._answers else "")


class FakeWriter:
    """A writer that fails with an error, if one is given."""

    def __init__(self, error: Exception | None = None, positions: Mapping[TopicPartition, int] = {}) -> None:
        self.error, self._positions = error, positions
        self.written: list[SourceBatch] = []
        self.begun: dict[TopicPartition, tuple[int, int] | None] = {}
        self.first_offsets = dict.fromkeys(positions, 2)

    def begin(self, beginnings: Mapping[TopicPartition, tuple[int, int] | None]) -> None:
        self.begun |= beginnings

    def write(self, batches: Sequence[SourceBatch]) -> None:
        self.written = [] if self.error is not None else list(batches)
        if self.error is not None:
            raise self.error

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._positions


#: Partitions of two sets of two.
FIRST, SECOND = sorted((TopicPartition("a", number) for number in range(2)), key=lambda each: set_of(each, 2))


def task_of(consumer: FakeConsumer, *writers: FakeWriter, context: RecordingTaskContext) -> MirrorTask:
    task = MirrorTask()
    more = {"partition.sets": "2", "exactly.once": "true"}
    vars(task).update(
        _consumer=consumer,
        _writers=dict(enumerate(writers)),
        _context=context,
        _settings=typed(MirrorConnector, CONFIG | more),
        _names={"a": "a"},
        _partitions=[FIRST, SECOND],
        _progress=MirrorMetrics(context.metrics, [FIRST, SECOND]),
        _check=FakeCheck(),
    )
    return task


def shown(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Return the metrics of a mirror, by name without the prefix, and topic."""
    found = ((name, dict(labels).get("topic", ""), value) for name, labels, value in metrics.samples())
    return {(name.removeprefix("mirror_"), topic): value for name, topic, value in found}


def test_metrics_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A batch is part of the lag until it is written. The checkpoint that counts is the oldest one of those behind. Before
    the source has answered about all partitions of a topic, its lag is not known.
    """
    times = SimpleNamespace(now_s=100.0)
    clock = SimpleNamespace(time=lambda: 1_000 + times.now_s, monotonic=lambda: times.now_s)
    monkeypatch.setattr(mirror_metrics, "time", clock)
    metrics, columns = Metrics(), cast("Any", FakeColumns(40, size_bytes=400, records=40))
    topics = [f"t{number:03}" for number in range(102)]
    progress = MirrorMetrics(metrics, [FIRST, SECOND, *(TopicPartition(topic, 0) for topic in topics)])
    progress.measure(lambda: {FIRST: 10, TopicPartition("t101", 0): 7})
    assert "lag_records" not in {name for name, _ in shown(metrics)}
    batches = [SourceBatch(FIRST, [columns, columns], "a")]
    others = {TopicPartition(topic, 0): 0 for topic in topics}
    progress.begin({FIRST: [columns, columns]}, lambda: {**others, FIRST: 0, SECOND: 100})
    times.now_s += 1.0
    progress.measure(dict)
    assert shown(metrics)["lag_records", "a"] == 180
    progress.end(batches)
    found = shown(metrics)
    assert (found["lag_records", "a"], found["lag_records", OTHERS], found["partitions", OTHERS]) == (100, 7, 3)
    assert (found["records", "a"], found["bytes", "a"]) == (80, 800)
    # The second partition, which is behind, has no checkpoint since the start.
    assert found["checkpoint_timestamp_seconds", "a"] == 1_100
    times.now_s += 1.0
    progress.measure(lambda: {SECOND: 0})
    found = shown(metrics)
    assert (found["records_per_second", "a"], found["lag_records", "a"]) == (40, 0)
    assert found["checkpoint_timestamp_seconds", "a"] == 1_101
    assert len({topic for _, topic in found}) == 101


def test_a_task_waits_for_a_source_that_is_gone() -> None:
    """The status shows the problem once, and its end."""
    context = RecordingTaskContext()
    consumer = FakeConsumer(NoBrokersError(), NoBrokersError(), {}, OffsetOutOfRangeError("lost"))
    task = task_of(consumer, context=context)
    assert [task.poll() for _ in range(3)] == [[], [], []]
    gone = "the source does not answer: none of the brokers answered; trying again"
    assert context.problems == [gone, ""]
    assert context.metrics.counter("mirror_problems") == 1
    # It may also be gone as the task asks where the logs end.
    consumer.is_gone = True
    assert (task.poll(), context.problems) == ([], [gone, "", gone])


def test_the_end_of_a_new_leader_is_no_lost_topic() -> None:
    """A record of one partition was deleted, while the new leader of another one does not know its end yet."""
    context, lost = RecordingTaskContext(), OffsetOutOfRangeError("lost")
    consumer = FakeConsumer(lost, ends={FIRST: 9, SECOND: 9})
    task = task_of(consumer, context=context)
    vars(task).update(_next={FIRST: 7, SECOND: 9})
    consumer.earlier_ends.append({FIRST: 9, SECOND: 8})
    with pytest.raises(KielGroupsError, match="records of the source were deleted before they were mirrored"):
        task.poll()
    assert context.pauses == [module.SETTLED_S]


def test_a_task_that_starts_while_the_source_is_gone_waits() -> None:
    """The task subscribes to its topics as soon as the source answers, at the positions of the start."""
    context = RecordingTaskContext()
    consumer = FakeConsumer(NoBrokersError(), None, {})
    task = task_of(consumer, context=context)
    vars(task).update(_unsubscribed=["a"], _next={FIRST: 7})
    assert [task.poll(), task.poll()] == [[], []]
    assert consumer.subscribed == [("a", {FIRST: 7}, [FIRST.partition, SECOND.partition])]
    assert [bool(problem) for problem in context.problems] == [True, False]


def test_a_task_that_starts_while_the_target_is_gone_waits() -> None:
    """The status shows it. The next try begins anew; a refusal fails the task, and a stop ends the wait."""
    errors: list[Exception] = [NoBrokersError("gone"), NoBrokersError("gone")]
    context, task = RecordingTaskContext(), MirrorTask()
    writer = SimpleNamespace(close=lambda: closed.append(True))
    closed: list[bool] = []

    def start() -> None:
        assert task._writers == {}
        task._writers[0] = cast("Any", writer)
        if errors:
            raise errors.pop()

    vars(task).update(_start=start)
    task.start(context, {"target.bootstrap.servers": "new:9092"})
    assert context.problems == ["gone; trying again", ""]
    assert len(closed) == 2
    task._writers.clear()
    errors.append(KielGroupsError("fenced"))
    with pytest.raises(KielGroupsError, match="fenced"):
        task.start(context, {})
    errors.append(NoBrokersError("gone"))
    with pytest.raises(TaskStoppedError):
        task.start(RecordingTaskContext(stop_after=1), {"target.bootstrap.servers": "new:9092"})


class FakeColumns(NamedTuple):
    """The columns of records up to an offset."""

    next_offset: int
    size_bytes: int = 0
    records: int = 1

    @property
    def first_offset(self) -> int:
        return self.next_offset - self.records

    def __len__(self) -> int:
        return self.records


def test_positions_of_written_sets_are_returned_before_the_error_of_a_later_set() -> None:
    """The worker stores the positions of the first set; the next call raises the error, and reads nothing."""
    columns = [FakeColumns(7, size_bytes=100, records=5)]
    stopped = TaskStoppedError("stopped")
    task = task_of(
        FakeConsumer({FIRST: columns, SECOND: columns}),
        FakeWriter(),
        FakeWriter(stopped),
        context=RecordingTaskContext(),
    )
    task._counts[FIRST] = 2, 40
    assert task.poll() == [SourcePosition(FIRST._asdict(), {"offset": 7, "records": 7, "bytes": 140})]
    with pytest.raises(TaskStoppedError):
        task.poll()


def test_records_of_a_topic_that_was_stopped_wait() -> None:
    """The partition pauses at the first record that was not written, and continues there if the topic is copied on."""
    first = {FIRST: [FakeColumns(7)]}
    consumer = FakeConsumer(first, {}, first)
    task = task_of(consumer, FakeWriter(), FakeWriter(), context=RecordingTaskContext())
    vars(task).update(_check=FakeCheck("a", ""))
    assert task.poll() == []
    assert (consumer.seeks, consumer.stopped) == ([(FIRST, 6)], {FIRST, SECOND})
    assert task.poll() == []
    assert consumer.stopped == set()
    assert [position.source_offset["offset"] for position in task.poll()] == [7]


def test_a_topic_that_the_source_does_not_know_yet_keeps_no_other_topic_waiting() -> None:
    """A broker may learn of a new partition later than the one that the connector has asked."""
    context, other = RecordingTaskContext(), TopicPartition("b", 0)
    missing = ConfigError("partitions: 1 given; a has 0 to 0")
    consumer = FakeConsumer(missing, missing, missing, None, {other: [FakeColumns(7)]}, None, {})
    task = task_of(consumer, FakeWriter(), FakeWriter(), context=context)
    vars(task).update(_unsubscribed=["a", "b"], _names={"a": "a", "b": "b"}, _partitions=[FIRST, SECOND, other])
    task._progress = MirrorMetrics(context.metrics, task._partitions)
    assert task.poll() == []
    assert len(task.poll()) == 1
    assert task.poll() == []
    assert [topic for topic, _, _ in consumer.subscribed] == ["b", "a"]
    assert context.problems[0] == f"the source does not have all partitions of a: {missing}; trying again"


class MadeWriter(FakeWriter):
    """A writer that a task makes. The topic ``copy.a`` is lost on the target."""

    closed: ClassVar[list[FakeWriter]] = []
    is_lost_at_start = False
    is_lost_later = True

    def __init__(self, *_: object) -> None:
        super().__init__(positions={TopicPartition("b", 0): 9})

    def check_ends(self, names: Mapping[str, str]) -> None:
        self._check("copy.a" in names.values() and self.is_lost_at_start)

    def write(self, batches: Sequence[SourceBatch]) -> None:
        self.written = []
        self._check("copy.a" in {batch.topic for batch in batches} and self.is_lost_later)
        self.written = list(batches)

    def _check(self, is_lost: bool) -> None:
        if is_lost:
            raise LostTopicsError({"copy.a": "it is gone"})

    def close(self) -> None:
        self.closed.append(self)


#: What the source answers after its topic was created again, by ``source.auto.offset.reset``.
RESTARTED = {"its log is at 0 again": {FIRST: [FakeColumns(1)]}, "its log is at 5 again": OffsetOutOfRangeError("lost")}


@pytest.mark.parametrize(
    "when", ["later", "short as the task starts", "gone as the task starts", "another topic", *RESTARTED]
)
def test_a_topic_that_is_lost_waits_alone(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    On the source, records of a new log are not taken for the next ones of the old log, and the new topic may have fewer
    partitions. The task begins again without the topic, which has no metrics then, at the positions that it has
    returned: the worker may not have stored these. A task without another topic waits as well.
    """
    context, other, at_start = RecordingTaskContext(), TopicPartition("b", 0), when not in ("later", *RESTARTED)
    first_records = {FIRST: [FakeColumns(7)], SECOND: [FakeColumns(7)]}
    first = FakeConsumer(
        None, None, {other: [FakeColumns(9)]}, first_records, RESTARTED.get(when), ends={FIRST: 5, other: 9}
    )
    lost = OffsetOutOfRangeError("lost", "seek()", code=1)
    second = FakeConsumer(None, {other: [FakeColumns(10)]}, lost, ends={other: 12})
    consumers = [second] if at_start else [first, second]
    claims = {f"copy.{name}": Claim("c", name, "old:9092") for name in "ab"}
    if when == "another topic":
        claims["copy.a"] = claims["copy.a"]._replace(target_id="first")
    limits = {"max.message.bytes": "1000", "cleanup.policy": "delete"}

    def settings(names: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        if "copy.a" in names and when.startswith("gone"):
            raise KielGroupsError("Unknown topic")
        return dict.fromkeys(names, limits)

    target = SimpleNamespace(
        claims=lambda: claims,
        latest_claims=lambda: claims,
        logs=lambda _: {},
        partitions=lambda: {"copy.b": 1},
        settings=settings,
        replaced=lambda known: dict.fromkeys(known, "it is gone"),
    )
    monkeypatch.setattr(module, "target_of", lambda _: target)
    monkeypatch.setattr(module, "SingleConsumer", lambda *_, **__: consumers.pop(0))
    monkeypatch.setattr(writer_module, "TargetWriter", MadeWriter)
    monkeypatch.setattr(MadeWriter, "is_lost_at_start", at_start)
    monkeypatch.setattr(MadeWriter, "is_lost_later", when not in RESTARTED)
    monkeypatch.setattr(MadeWriter, "closed", [])
    config = {**CONFIG, "partition.sets": "2", "target.topic.format": "copy.${topic}"}
    whole = {"name": "c", "connector.class": "Mirror", **config}

    def started(*partitions: TopicPartition) -> MirrorTask:
        task = MirrorTask()
        task.start(
            context, run_settings(MirrorConnector, whole, whole | {PARTITIONS_KEY: json.dumps(partitions)}).settings
        )
        return task

    task, polls = started(FIRST, SECOND, other), list[Any]()
    while polls[-1:] != [10]:
        polls += [position.source_offset["offset"] for position in task.poll()]
    assert polls == [*([] if at_start else [9]), *([7, 7] if when in RESTARTED else []), 10]
    assert second.subscribed == [("b", {} if at_start else {other: 9}, [0])]
    expected = (
        "the target does not show copy.a with its partitions any more" if when.startswith("gone") else "it is gone"
    )
    if when in RESTARTED:
        expected = f"{FIRST} of the source was mirrored up to offset 7, and {when}"
    assert [problem[: len(expected)] for problem in context.problems] == [expected]
    assert len(MadeWriter.closed) == (0 if when.startswith(("gone", "another")) else 2)
    assert {topic for _, topic in shown(context.metrics)} == {"", "b"}
    with pytest.raises(KielGroupsError, match=r"^lost; records of the source were deleted before they were mirrored"):
        task.poll()
    if at_start:
        assert started(FIRST).poll() == []
        assert context.pauses == [module._PAUSE_S]
    task.stop()


@pytest.mark.parametrize(
    ("found", "text"),
    [({FIRST: 6}, "is at offset 6: records would be written again"), ({}, "is missing")],
    ids=["lost in part", "lost"],
)
def test_checkpoints_behind_the_stored_offset_are_lost(found: Mapping[TopicPartition, int], text: str) -> None:
    """Exactly once, a task writes no record again because the target has lost its last checkpoints."""
    context = RecordingTaskContext([(FIRST._asdict(), {"offset": 7})])
    task = task_of(FakeConsumer(), FakeWriter(positions=found), FakeWriter(), context=context)
    with pytest.raises(KielGroupsError, match=f"last checkpoint of a:{FIRST.partition}, which .* 7, {text}"):
        task._positions()
    # The process was killed before it has stored the position. Without it, the partition would show a lag.
    task = task_of(FakeConsumer(), FakeWriter(positions={FIRST: 8}), FakeWriter(), context=context)
    assert task._positions() == {FIRST: 8}
    assert task.poll() == [SourcePosition(FIRST._asdict(), {"offset": 8, "records": 1, "bytes": 0})]
    # The same, before it has stored any position.
    task = task_of(FakeConsumer(), FakeWriter(positions={SECOND: 8, FIRST: 8}), FakeWriter(), context=context)
    assert task._positions() == {FIRST: 8, SECOND: 8}
    assert task._counts == {FIRST: (1, 0), SECOND: (6, 0)}


def test_a_mirror_does_not_continue_on_another_target() -> None:
    """There, the records before the stored positions are missing. At least once, checkpoints may be ahead of these."""
    context = RecordingTaskContext([(FIRST._asdict(), {"offset": 7})])
    task = task_of(FakeConsumer(), FakeWriter(positions={FIRST: 8}), context=context)
    vars(task).update(_settings={**task._settings, "exactly.once": False})
    assert task._positions() == {FIRST: 7}
    vars(task).update(_writers={0: FakeWriter(positions={SECOND: 7})})
    with pytest.raises(
        KielGroupsError, match=f"no checkpoint of {FIRST}, which was mirrored up to offset 7: .* another"
    ):
        task._positions()


@pytest.mark.parametrize(
    ("stored", "starts", "resumes", "begun", "position"),
    [
        (None, "", (), {FIRST: None}, None),
        (None, "9", (), {FIRST: (9, 70)}, 9),
        (4, "9", (), {}, None),
        (4, "", (9, 9), {FIRST: (9, 70)}, 9),
        (None, "5", (9, 9), {FIRST: (9, 70)}, 9),
        (12, "", (9, 9), {}, None),
    ],
    ids=["new", "after a bulk copy", "begun", "turned forward", "turned forward, new", "continued"],
)
def test_where_partitions_begin(
    stored: int | None,
    starts: str,
    resumes: tuple[int, ...],
    begun: Mapping[TopicPartition, tuple[int, int] | None],
    position: int | None,
) -> None:
    """
    What the target has already has a checkpoint at once, and its position is stored by the next poll. After a turn
    forward, that is what was copied back.
    """
    writer, context = FakeWriter(), RecordingTaskContext()
    task = task_of(FakeConsumer({}), writer, FakeWriter(), context=context)
    offsets = json.dumps({"a": {str(FIRST.partition): int(starts)}}) if starts else ""
    vars(task).update(
        _settings={**task._settings, "start.offsets": offsets},
        _partitions=[FIRST],
        _next={} if stored is None else {FIRST: stored},
        _claims={"a": Claim("c", "a", "old:9092", resumes=resumes)},
    )
    task._counts[FIRST] = 3, 30
    target = SimpleNamespace(logs=lambda topics: {FIRST: (0, 70)} if topics else {})
    task._begin(cast("Any", target))
    assert writer.begun == begun
    assert task._next.get(FIRST) == (position or stored)
    found = [SourcePosition(FIRST._asdict(), {"offset": position, "records": 3, "bytes": 30})] if position else []
    assert [task.poll(), task._begun] == [found, []]


def test_a_topic_that_was_turned_as_its_task_began_has_no_first_checkpoint() -> None:
    """
    The end of its log on the target may be behind records that producers have written there since. The task reads its
    claim again, and waits for its new settings.
    """
    writer, context = FakeWriter(), RecordingTaskContext()
    task = task_of(FakeConsumer({}), writer, FakeWriter(), context=context)
    ends: list[int] = []

    class TurnedCheck(FakeCheck):
        def turned(self) -> frozenset[str]:
            # The end must be one that was read before.
            return frozenset("a" if ends else "")

    offsets = json.dumps({"a": {str(FIRST.partition): 9}})
    vars(task).update(_settings={**task._settings, "start.offsets": offsets}, _claims={}, _check=TurnedCheck())
    target = SimpleNamespace(logs=lambda _: ends.append(70) or {FIRST: (0, 70)})
    with pytest.raises(RetriableBrokerError, match="the direction of a has changed since the task began"):
        task._begin(cast("Any", target))
    assert (writer.begun, task._next, task._begun) == ({}, {}, [])
