"""
The invariants of simulated sinks.

============================  ========================================================================================
calls                         The methods of a task run one at a time, ``stop`` last. ``put`` and ``flush`` are called
                              under the claim of the task's fencing token.
records                       A task gets records of partitions that are open, in the order of their logs, from an
                              offset on before which all is written.
commits                       No offset is committed beyond what tasks have written, and none moves back. A task commits
                              nothing of a partition that its consumer has given back or lost.
the end                       All records of the topic are written and committed within a time limit after the last
                              fault. No consumer is left.
============================  ========================================================================================

Records count as written when the ``flush`` after their ``put`` returns. A task drops what is not written at ``close``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kiel_groups.model import Record, TopicPartition

if TYPE_CHECKING:
    from tests.sim.worker_groups.recording_connectors import Run
    from tests.sim.worker_groups.sink_groups import SinkGroup
    from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["SinkChecker", "SinkCalls"]


class SinkChecker:
    """What the sinks of a world have written, and their consumers committed."""

    def __init__(self, world: WorkerWorld) -> None:
        self.world = world
        #: The offset of each partition before which all is written, by the connector.
        self.written: defaultdict[str, defaultdict[TopicPartition, int]] = defaultdict(lambda: defaultdict(int))
        self.puts = self.commits = 0

    def committing(self, group: SinkGroup, offsets: Mapping[TopicPartition, int]) -> None:
        """Check offsets that a group is about to store."""
        self.commits += 1
        for partition, offset in offsets.items():
            written, before = self.written[group.connector][partition], group.committed[partition]
            if offset > written:
                raise self.world.checker.violation(
                    f"{group.connector} commits {offset} of {partition}, and has written what is before {written}"
                )
            if offset < before:
                raise self.world.checker.violation(f"{group.connector} commits {offset} of {partition} after {before}")

    def uncommitted(self) -> str:
        """Return which records of a running sink are not written and committed; "" if there are none."""
        cluster = self.world.cluster
        for connector in self.world.checker.running_sinks():
            committed = cluster.group(connector).committed
            for partition, end in cluster.ends.items():
                if committed[partition] != end:
                    return f"{connector} has committed {committed[partition]} of {end} records of {partition}"
        return ""

    def unclosed(self) -> str:
        """Return which consumer of a process that runs is still a member of its group."""
        for group in self.world.cluster.groups.values():
            for member in group.members:
                if not member.process.killed:
                    return f"a consumer of {group.connector} is left in {member.process.name}"
        return ""


class SinkCalls:
    """
    The calls of one task, which reports them.

    Args:
        run: The run of the task.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._world = run.world
        self._running = ""
        self._is_over = False
        #: The next offset of each open partition; None before its first record.
        self._open: dict[TopicPartition, int | None] = {}
        #: The first and the next offset of what is not written yet.
        self._kept: dict[TopicPartition, tuple[int, int]] = {}
        self._written = run.world.sinks.written[run.work.rpartition("-")[0]]

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Check a call from its beginning to its end."""
        if self._running or self._is_over:
            raise self._violation(f"calls {method} beside or after {self._running or 'stop'}")
        if method in {"put", "flush"}:
            self._world.checker.check_claim(self._run.work, self._run.token, f"calls {method}")
        self._running = method
        try:
            yield
        finally:
            self._running, self._is_over = "", method == "stop"

    def opened(self, partitions: Collection[TopicPartition]) -> None:
        if both := self._open.keys() & set(partitions):
            raise self._violation(f"opens {sorted(both)} again")
        self._open |= dict.fromkeys(partitions)

    def closed(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._open.pop(partition, None)
            self._kept.pop(partition, None)

    def put(self, records: Sequence[Record]) -> None:
        """Keep records for the next ``flush``."""
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if partition not in self._open:
                raise self._violation(f"puts {record.offset} of {partition}, which is not open")
            following = self._open[partition]
            if following is None and record.offset > self._written[partition]:
                raise self._violation(f"begins {partition} at {record.offset}, after {self._written[partition]}")
            if following not in (None, record.offset):
                raise self._violation(f"puts {record.offset} of {partition} in place of {following}")
            self._open[partition] = record.offset + 1
            first, _ = self._kept.get(partition, (record.offset, 0))
            self._kept[partition] = first, record.offset + 1
            self._world.sinks.puts += 1

    def flushing(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Check the offsets of a ``flush``, and return what it writes."""
        for partition, offset in offsets.items():
            if (self._open.get(partition) or 0) < offset:
                raise self._violation(f"flushes {partition} to {offset}; it is at {self._open.get(partition)}")
        return dict(self._kept)

    def wrote(self, kept: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Note the end of a ``flush``."""
        for partition, (first, following) in kept.items():
            if first <= self._written[partition]:
                self._written[partition] = max(self._written[partition], following)
            self._kept.pop(partition, None)

    def _violation(self, text: str) -> Exception:
        return self._world.checker.violation(f"{self._run.work} with token {self._run.token} {text}")
