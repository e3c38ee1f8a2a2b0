"""
Plan the tasks that read ranges of offsets. Small ranges share a task; large ranges are split if the options ask for it.

A Spark task costs tens of milliseconds of overhead, and a topic may have a hundred partitions with a few messages each.
So ranges whose partitions have the same leader share tasks. The tasks are of about equal size, and about as many as can
run at once. A range is split only if the user asks for that, because its messages would no longer be read in order.

A sink of files writes at least one file for each topic of a task. For such a sink, a topic has as few tasks as its size
allows, and a task may read from several leaders.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from kiel_groups.config import HostPort
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import OffsetRange
from kiel_groups.spark.options import ReadOptions

#: The most tasks that ``maxRecordsPerPartition`` may cause: Spark's driver keeps every task of a batch in memory.
_MOST_TASKS = 10_000
#: Tasks of a batch for each core: with more than one, tasks of different lengths still keep all cores busy.
_TASKS_PER_CORE = 2
#: A batch has one task for each so many offsets, at most: reading fewer takes less time than the overhead of a task.
#: The number is not larger because messages may be large.
_OFFSETS_WORTH_A_TASK = 1_000
_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class TaskBounds:
    """
    The bounds on the tasks of a batch, from the options and the machine.

    ``parallelism`` is the most tasks if ``most_tasks`` is None. ``most_records`` bounds the offsets of a task: larger
    ranges are split, and ranges are not merged beyond this bound. ``file_bytes`` asks for few files of about this size.
    """

    parallelism: int
    least_tasks: int | None = None
    most_tasks: int | None = None
    most_records: int | None = None
    file_bytes: int | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> TaskBounds:
        """
        Return the bounds that the options set.

        Spark does not tell a source the number of executors or cores. So without ``maxPartitions``, the driver's own
        number of cores decides.
        """
        return cls(
            parallelism=_TASKS_PER_CORE * (os.cpu_count() or 1),
            least_tasks=options.min_partitions,
            most_tasks=options.max_partitions,
            most_records=options.max_records_per_partition,
            file_bytes=None if options.file_mb is None else options.file_mb * _MB,
        )


@dataclass(frozen=True, slots=True)
class ReadTask:
    """
    The ranges that one task reads.

    ``leaders`` has the broker that led each partition when the task was planned, or None if it was unknown.
    """

    leaders: Mapping[TopicPartition, HostPort | None]
    ranges: tuple[OffsetRange, ...]

    @property
    def size(self) -> int:
        """The number of offsets in all ranges."""
        return sum(each.size for each in self.ranges)


def plan_tasks(
    ranges: Sequence[OffsetRange], leaders: Mapping[TopicPartition, HostPort | None], bounds: TaskBounds
) -> list[ReadTask]:
    """
    Plan the tasks of one batch. Every offset of the ranges is in exactly one task.

    There are at most ``most_tasks`` tasks, unless the number of leaders or ``most_records`` requires more. There are at
    least ``least_tasks``, unless there are fewer offsets. The same input gives the same tasks.

    Raises:
        ConfigError: ``most_records`` is so small that Spark's driver could not manage the tasks.
    """
    _check_size(sum(each.size for each in ranges), bounds.most_records)
    by_leader: dict[HostPort | None, list[OffsetRange]] = defaultdict(list)
    for piece in _split(sorted(ranges), bounds):
        by_leader[leaders.get(piece.topic_partition)].append(piece)
    wanted = _task_counts(by_leader, bounds)
    tasks = []
    for leader in sorted(by_leader, key=lambda leader: (leader is None, leader)):
        tasks += [_task(bin_, leaders) for bin_ in _pack(by_leader[leader], wanted[leader], bounds.most_records)]
    return tasks


def _task(ranges: Iterable[OffsetRange], leaders: Mapping[TopicPartition, HostPort | None]) -> ReadTask:
    found = tuple(sorted(ranges))
    return ReadTask({each.topic_partition: leaders.get(each.topic_partition) for each in found}, found)


def plan_topic_tasks(
    ranges: Sequence[OffsetRange],
    leaders: Mapping[TopicPartition, HostPort | None],
    bounds: TaskBounds,
    message_bytes: Callable[[OffsetRange], float],
) -> list[ReadTask]:
    """
    Plan the tasks of one batch for a sink that writes a file for each topic of a task.

    A topic has one task for each ``file_bytes`` of its messages, but no more tasks than its share of all tasks. Small
    topics share tasks.

    Args:
        ranges: The ranges of the batch.
        leaders: The leader of each partition.
        bounds: The number of tasks, and the size of files; ``file_bytes`` must be given.
        message_bytes: Returns the average size of the messages in a range. It is called only for topics whose share is
            more than one task.
    """
    assert bounds.file_bytes is not None
    by_topic: dict[str, list[OffsetRange]] = defaultdict(list)
    for each in sorted(ranges):
        if each.size:
            by_topic[each.topic_partition.topic].append(each)
    total = sum(each.size for pieces in by_topic.values() for each in pieces)
    most = min(bounds.most_tasks or bounds.parallelism, -(-total // _OFFSETS_WORTH_A_TASK))
    parts: list[tuple[int, tuple[OffsetRange, ...]]] = []
    for pieces in by_topic.values():
        size = sum(each.size for each in pieces)
        count = min(len(pieces), round(most * size / total))
        if count > 1:
            topic_bytes = size * message_bytes(max(pieces, key=lambda each: each.size))
            count = min(count, math.ceil(topic_bytes / bounds.file_bytes))
        parts += [(sum(each.size for each in part), part) for part in _pack(pieces, max(1, count), None)]
    # The largest part first, into the smallest task.
    tasks: list[tuple[int, int, list[OffsetRange]]] = [(0, number, []) for number in range(min(most, len(parts)))]
    for size, part in sorted(parts, reverse=True):
        load, number, found = tasks[0]
        heapq.heapreplace(tasks, (load + size, number, [*found, *part]))
    return [_task(found, leaders) for _, _, found in sorted(tasks, key=lambda each: each[1])]


def _check_size(total: int, most_records: int | None) -> None:
    if most_records is not None and total > most_records * _MOST_TASKS:
        raise ConfigError(
            f"maxRecordsPerPartition: {most_records} given, and the batch has {total} offsets, which makes"
            f" {-(-total // most_records)} tasks; {_MOST_TASKS} are the most. Give {-(-total // _MOST_TASKS)} or more,"
            " or smaller batches (streams: maxOffsetsPerTrigger; batches: endingOffsets)"
        )


def _split(ranges: Sequence[OffsetRange], bounds: TaskBounds) -> list[OffsetRange]:
    pieces = [each for each in ranges if each.size]
    if bounds.most_records is not None:
        pieces = [piece for each in pieces for piece in _cut(each, -(-each.size // bounds.most_records))]
    least = bounds.least_tasks
    if least is not None and len(pieces) < least:
        total = sum(piece.size for piece in pieces)
        pieces = [piece for each in pieces for piece in _cut(each, -(-each.size * least // total))]
    return pieces


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """
    Split a range into ``parts`` ranges whose sizes differ by one offset at most.

    If the range has fewer than ``parts`` offsets, return a range for each offset.
    """
    parts = max(1, min(parts, whole.size))
    cuts = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    return [whole._replace(start=start, end=end) for start, end in pairwise(cuts)]


def _task_counts(
    by_leader: Mapping[HostPort | None, Sequence[OffsetRange]], bounds: TaskBounds
) -> dict[HostPort | None, int]:
    """
    Return the number of tasks for each leader.

    Each leader gets one task. Each further task goes to the leader whose tasks would be largest.
    """
    sizes = {leader: sum(piece.size for piece in pieces) for leader, pieces in by_leader.items()}
    worthwhile = -(-sum(sizes.values()) // _OFFSETS_WORTH_A_TASK)
    wanted = max(min(bounds.most_tasks or bounds.parallelism, worthwhile), bounds.least_tasks or 0)
    counts = dict.fromkeys(by_leader, 1)
    for _ in range(wanted - len(counts)):
        divisible = [leader for leader, pieces in by_leader.items() if counts[leader] < len(pieces)]
        if not divisible:
            break
        counts[max(divisible, key=lambda leader: sizes[leader] / counts[leader])] += 1
    return counts


def _pack(pieces: Sequence[OffsetRange], tasks: int, most_records: int | None) -> list[tuple[OffsetRange, ...]]:
    """Put each range, largest first, into the smallest task. If that task would exceed ``most_records``, add a task."""
    loads: list[tuple[int, int]] = [(0, number) for number in range(tasks)]
    bins: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    for piece in sorted(pieces, key=lambda each: (-each.size, each)):
        load, number = loads[0]
        if most_records is not None and load and load + piece.size > most_records:
            bins.append([piece])
            heapq.heappush(loads, (piece.size, len(bins) - 1))
            continue
        bins[number].append(piece)
        heapq.heapreplace(loads, (load + piece.size, number))
    return [tuple(sorted(bin_)) for bin_ in bins if bin_]


def task_partitions(tasks: Sequence[ReadTask]) -> list[InputPartition]:
    """Wrap tasks for Spark. Without tasks, return one empty task, because Spark would otherwise create its own task."""
    return [InputPartition(task) for task in tasks] or [InputPartition(ReadTask({}, ()))]
