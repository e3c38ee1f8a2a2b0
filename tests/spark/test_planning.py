"""Plans of tasks, of partition shares under a limit, and of ranges between two offsets, with generated cases."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.config import HostPort
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.batches import fair_shares, waits_for_more
from kiel_groups.spark.checkpoint import Mark, OffsetRange, Positions, Span, ranges_between, without_reading
from kiel_groups.spark.log_view import bytes_per_offset
from kiel_groups.spark.task_planner import TaskBounds, plan_tasks, plan_topic_tasks
from kiel_groups.wire.message_sets.encoder import encode_message_set
from tests.helpers.examples import examples

pytestmark = pytest.mark.spark

#: Few cases without a deadline, for slow computers.
few_cases = settings(deadline=None, max_examples=examples(60))

BROKERS = [HostPort("a", 1), HostPort("b", 2), None]

partitions = st.builds(TopicPartition, st.sampled_from(["clicks", "orders"]), st.integers(0, 50))
sizes = st.dictionaries(partitions, st.integers(0, 400), max_size=20)
few = st.none() | st.integers(1, 40)


@st.composite
def bounds(draw: st.DrawFn) -> TaskBounds:
    least, most = draw(few), draw(few)
    if least is not None and most is not None and least > most:
        least, most = most, least
    return TaskBounds(draw(st.integers(1, 16)), least, most, draw(st.none() | st.integers(20, 300)))


def ranges_of(wanted: dict[TopicPartition, int]) -> list[OffsetRange]:
    return [OffsetRange(partition, 7, 7 + size) for partition, size in sorted(wanted.items())]


def leaders_of(wanted: dict[TopicPartition, int]) -> dict[TopicPartition, HostPort | None]:
    return {partition: BROKERS[partition.partition % 3] for partition in wanted}


@few_cases
@given(sizes, bounds())
def test_every_offset_is_in_exactly_one_task_of_its_leader(
    wanted: dict[TopicPartition, int], asked: TaskBounds
) -> None:
    """However ranges are split and merged, no offset is left out or read twice."""
    leaders = leaders_of(wanted)
    covered: Counter[TopicPartition] = Counter()
    ends: dict[TopicPartition, list[tuple[int, int]]] = {}
    for task in plan_tasks(ranges_of(wanted), leaders, asked):
        assert task.size > 0
        assert len(set(task.leaders.values())) == 1
        assert task.leaders == {each.topic_partition: leaders[each.topic_partition] for each in task.ranges}
        for each in task.ranges:
            covered[each.topic_partition] += each.size
            ends.setdefault(each.topic_partition, []).append((each.start, each.end))
    assert covered == Counter({partition: size for partition, size in wanted.items() if size})
    for partition, pieces in ends.items():
        pieces.sort()
        assert pieces[0][0] == 7
        assert pieces[-1][1] == 7 + wanted[partition]
        assert all(before[1] == after[0] for before, after in pairwise(pieces))


@few_cases
@given(sizes, bounds())
def test_the_number_of_tasks_respects_the_options(wanted: dict[TopicPartition, int], asked: TaskBounds) -> None:
    """
    There are at least the minimum number of tasks if there are enough offsets. There are at most the maximum number,
    but at least one for each leader.
    """
    tasks = plan_tasks(ranges_of(wanted), leaders_of(wanted), asked)
    total, leaders = sum(wanted.values()), set(leaders_of(wanted).values())
    if asked.most_records is None:
        if asked.least_tasks is not None:
            assert len(tasks) >= min(asked.least_tasks, total)
        most = asked.most_tasks or max(asked.parallelism, asked.least_tasks or 0)
        assert len(tasks) <= max(most, len(leaders))
    elif asked.least_tasks is None:
        assert all(task.size <= asked.most_records for task in tasks)


@few_cases
@given(sizes, bounds())
def test_a_plan_does_not_depend_on_the_order_of_its_input(wanted: dict[TopicPartition, int], asked: TaskBounds) -> None:
    """A repeated batch has the same tasks."""
    ranges = ranges_of(wanted)
    assert plan_tasks(ranges, leaders_of(wanted), asked) == plan_tasks(ranges[::-1], leaders_of(wanted), asked)


def test_a_hundred_partitions_share_a_few_tasks_of_the_same_size() -> None:
    """Small ranges share tasks, because each task costs tens of milliseconds, whatever its size."""
    for size, tasks in ((10, 1), (25, 3), (100, 4)):
        wanted = {TopicPartition("clicks", number): size for number in range(100)}
        found = plan_tasks(ranges_of(wanted), dict.fromkeys(wanted, BROKERS[0]), TaskBounds(4))
        assert len(found) == tasks
        assert max(task.size for task in found) - min(task.size for task in found) <= size


def test_a_large_partition_is_split_only_on_demand() -> None:
    """A split loses the order of records, so only minPartitions and maxRecordsPerPartition cause one."""
    wanted = {TopicPartition("clicks", 0): 1_000}
    ranges, leaders = ranges_of(wanted), dict.fromkeys(wanted, BROKERS[0])
    assert len(plan_tasks(ranges, leaders, TaskBounds(8))) == 1
    assert [task.size for task in plan_tasks(ranges, leaders, TaskBounds(1, least_tasks=4))] == [250] * 4
    assert sorted(task.size for task in plan_tasks(ranges, leaders, TaskBounds(1, most_records=400))) == [333, 333, 334]


@few_cases
@given(sizes, st.integers(1, 16), st.integers(1, 500))
def test_a_topic_has_few_tasks_for_a_sink_of_files(
    wanted: dict[TopicPartition, int], parallelism: int, file_bytes: int
) -> None:
    """
    Every offset is in one task, with the leader of its partition. There are at most as many tasks as can run at once,
    and a topic has at most one task for each file of the wanted size.
    """
    leaders, asked = leaders_of(wanted), TaskBounds(parallelism, file_bytes=file_bytes)
    tasks = plan_topic_tasks(ranges_of(wanted), leaders, asked, lambda each: 2.0)
    read = [each for task in tasks for each in task.ranges]
    assert sorted(read) == [each for each in ranges_of(wanted) if each.size]
    assert all(task.leaders == {at: leaders[at] for at, *_ in task.ranges} for task in tasks)
    assert len(tasks) <= parallelism
    for topic in ("clicks", "orders"):
        total = sum(size for partition, size in wanted.items() if partition.topic == topic)
        found = sum(any(each.topic_partition.topic == topic for each in task.ranges) for task in tasks)
        assert found <= max(1, -(-2 * total // file_bytes))


def test_a_large_topic_has_more_tasks_than_small_ones() -> None:
    """The large topic keeps all cores busy. The small ones are not looked at, and share tasks."""
    wanted = {TopicPartition("clicks", number): 1_000 for number in range(8)}
    wanted |= {TopicPartition(f"small-{topic}", number): 1 for topic in range(6) for number in range(8)}
    looked_at = []

    def message_bytes(found: OffsetRange) -> float:
        looked_at.append(found.topic_partition)
        return 100.0

    for file_bytes, files in ((1, 4), (400_000, 2), (800_000, 1)):
        tasks = plan_topic_tasks(
            ranges_of(wanted), leaders_of(wanted), TaskBounds(4, file_bytes=file_bytes), message_bytes
        )
        topics = Counter(topic for task in tasks for topic in {each.topic_partition.topic for each in task.ranges})
        assert topics == {"clicks": files, **{f"small-{topic}": 1 for topic in range(6)}}
        assert len(tasks) == 4
    assert set(looked_at) == {TopicPartition("clicks", 0)}


def test_the_size_of_messages_is_that_of_a_set() -> None:
    """The set may end within a message. Without a message, the size is unknown."""
    data = encode_message_set([None] * 8, [b"x" * 74] * 8)
    positions = [(number, 100 * number) for number in range(8)]
    data = b"".join(struct.pack(">q", offset) + data[at + 8 : at + 100] for offset, at in positions)
    assert len(data) == 800
    for size in (800, 750, 100, 20):
        assert bytes_per_offset(memoryview(data[:size])) == 100
    assert bytes_per_offset(memoryview(data[:8])) is None


def test_a_split_into_too_many_tasks_is_refused() -> None:
    """The limit is ten thousand tasks. The error has the numbers and a value that works."""
    wanted = {TopicPartition("clicks", 0): 30_001, TopicPartition("clicks", 1): 0}
    ranges, leaders = ranges_of(wanted), dict.fromkeys(wanted, BROKERS[0])
    assert len(plan_tasks(ranges, leaders, TaskBounds(1, most_records=4))) <= 10_000
    with pytest.raises(
        ConfigError, match=r"3 given, and the batch has 30001 offsets, which makes 10001 tasks.* Give 4"
    ):
        plan_tasks(ranges, leaders, TaskBounds(1, most_records=3))


@few_cases
@given(st.integers(1, 5_000), st.dictionaries(partitions, st.integers(0, 2_000)))
def test_a_bound_is_divided_in_proportion(most: int, available: dict[TopicPartition, int]) -> None:
    """
    No share exceeds the available offsets. The shares add up to the bound, and each differs from its exact share by
    less than 1.
    """
    shares = fair_shares(most, available)
    total = sum(available.values())
    assert shares.keys() == available.keys()
    assert sum(shares.values()) == min(most, total)
    for partition, count in available.items():
        assert 0 <= shares[partition] <= count
        if total > most:
            assert abs(shares[partition] * total - count * most) < total


def test_a_trigger_waits_for_enough_messages_for_a_bounded_time() -> None:
    """minOffsetsPerTrigger is the number of messages, and maxTriggerDelay the longest wait."""
    assert waits_for_more(9, 10, 0, 1_000)
    assert not waits_for_more(10, 10, 0, 1_000)
    assert not waits_for_more(9, 10, 1_000, 1_000)
    assert not waits_for_more(0, None, 0, 1_000)


spans = st.one_of(
    st.builds(lambda at: Span(at, at), st.integers(0, 99)),
    st.builds(
        lambda at, more, *identity: Span(at, at + more, *identity),
        st.integers(0, 99),
        st.integers(0, 99),
        st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.none() | st.integers(1, 9),
        st.none() | st.builds(Mark, st.integers(0, 99), st.integers(0, 9)),
    ),
)
positions = st.builds(Positions, st.dictionaries(partitions, spans), st.none() | st.just("3f9c"), st.booleans())


@few_cases
@given(positions)
def test_positions_survive_the_checkpoint(before: Positions) -> None:
    """
    Positions survive the checkpoint. Equal positions have the same text, by which Spark decides whether there are new
    records.
    """
    text = json.dumps(before.to_json())
    assert Positions.from_json(json.loads(text)) == before
    shuffled = replace(before, spans=dict(reversed(before.spans.items())))
    assert json.dumps(shuffled.to_json()) == text


@pytest.mark.parametrize("document", [{"t": 5}, {"t": {"0": 5}}, {"t": {"x": {"to": 5}}}, {"t": {"0": {"from": 1}}}])
def test_offsets_of_another_source_are_refused(document: dict[str, object]) -> None:
    """A checkpoint belongs to the source that wrote it."""
    with pytest.raises(ProtocolError, match="needs a checkpoint of its own"):
        Positions.from_json(document)


P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


@pytest.mark.parametrize(
    ("start", "end", "begins"),
    [
        (Span(10, 42, 5), Span(10, 50, 5), 42),
        (Span(10, 42, 5), Span(30, 50, 6), 30),
        (Span(10, 42, 5), Span(60, 70, 6), 60),
        (Span(42, 42), Span(50, 50), 42),
        (Span(10, 42, 5), Span(50, 50), 42),
        (Span(42, 42), Span(30, 50, 6), 30),
        (None, Span(30, 50, 6), 30),
        (None, Span(50, 50), 3),
    ],
    ids=[
        "the interval continues",
        "another interval started before",
        "another interval started behind",
        "no interval is known, at either end",
        "no interval is known at the end",
        "no interval is known at the start",
        "a new partition",
        "a new partition without an interval",
    ],
)
def test_a_batch_starts_at_the_previous_end_or_the_start_of_its_interval(
    start: Span | None, end: Span, begins: int
) -> None:
    """A repeated batch has the same records, whatever the group has committed since."""
    before = Positions({} if start is None else {P0: start})
    assert ranges_between(before, Positions({P0: end}), {P0: 3}) == [OffsetRange(P0, begins, end.to)]


@pytest.mark.parametrize(("end", "begins"), [(Span(10, 50), 10), (Span(50, 50), 50), (Span(60, 70, 6), 60)])
def test_a_repeated_first_batch_starts_at_the_same_offset(end: Span, begins: int) -> None:
    """The batch starts at the same offset even if its interval was not known yet. The current start does not count."""
    start = Positions({P0: Span(30, 30, 9)}, initial=True)
    ranges = [OffsetRange(P0, begins, end.to)] if begins < end.to else []
    assert ranges_between(start, Positions({P0: end}), {}) == ranges


def test_unchanged_and_deleted_partitions_are_not_read() -> None:
    """Partitions with empty ranges get no tasks."""
    assert ranges_between(Positions({P0: Span(1, 5, 2), P1: Span(1, 5, 2)}), Positions({P0: Span(1, 5, 2)}), {}) == []


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [
        ({}, {P0: Span(0, 9, 1)}, {P0: Span(0, 0, 1)}),
        ({P0: Span(0, 9, 1, mark=Mark(8, 1))}, {P0: Span(0, 20, 1)}, {P0: Span(0, 9, 1, mark=Mark(8, 1))}),
        ({P0: Span(0, 9, 1)}, {P0: Span(12, 20, 2)}, {P0: Span(0, 9, 1)}),
        ({P0: Span(0, 9, 1)}, {}, {P0: Span(0, 9, 1)}),
        ({P0: Span(9, 9)}, {P0: Span(20, 20)}, {P0: Span(9, 9)}),
        ({}, {P0: Span(20, 20)}, {}),
    ],
    ids=[
        "a new partition",
        "the interval continues",
        "another interval, after a loss",
        "a deleted partition",
        "no interval is known",
        "a new partition without an interval",
    ],
)
def test_a_changed_batch_reads_nothing_of_some_topics(
    start: dict[TopicPartition, Span], end: dict[TopicPartition, Span], left: dict[TopicPartition, Span]
) -> None:
    """These topics keep their positions, as if the batch had not been planned. Others are read as planned."""
    other = TopicPartition("orders", 0)
    before, after = Positions({other: Span(0, 1, 3), **start}), Positions({other: Span(0, 7, 3), **end}, "q")
    changed = without_reading({"clicks"}, before, after)
    assert changed == Positions({other: Span(0, 7, 3), **left}, "q")
    assert ranges_between(before, changed, {}) == [OffsetRange(other, 1, 7)]


@pytest.mark.parametrize("end", [Span(5, 20, 1), Span(5, 20), Span(20, 20)])
def test_a_changed_first_batch_keeps_its_start(end: Span) -> None:
    """The first batch has the start of the query, even with Spark before 4.2, which does not pass it."""
    changed = without_reading({"clicks"}, None, Positions({P0: end}))
    assert changed.spans == {P0: end._replace(to=end.begin)}
    assert ranges_between(Positions({P0: Span(30, 30)}, initial=True), changed, {}) == []
