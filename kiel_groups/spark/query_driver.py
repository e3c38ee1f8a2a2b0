"""
The driver's side of a stream that is no member of a group: where it starts, how far each batch goes, what is done.

Lives in the process that Spark keeps for a query, on one thread, and makes its connections when it is first asked. Here
is also the interface that a member's driver has (``kiel_groups.spark.member``).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping
from typing import Protocol

from kiel_groups.model import TopicPartition
from kiel_groups.spark.group_offsets import GroupOffsets, committed_offsets, refuse_live_group
from kiel_groups.spark.limits import shared_out, waits_for_more
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.options import GROUP, ReadOptions
from kiel_groups.spark.planning import ReadTask, plan_tasks
from kiel_groups.spark.positions import Positions, Span, ranges_between
from kiel_groups.spark.resolving import judge_loss, resolve
from kiel_groups.spark.tasks import task_bounds

__all__ = ["LogDriver", "QueryDriver"]

log = logging.getLogger(__name__)

#: How often an end that lies before what was read already is looked up again, before it is believed.
_LOOKS = 3
_QUERY_DIGITS = 12
_TOKEN_BITS = 48


class QueryDriver(Protocol):
    """What a stream reader asks, in the order in which Spark asks it; every call ends within a bounded time."""

    def initial(self) -> Positions:
        """Where a new query starts; the same at every call."""

    def latest(self, start: Positions | None, *, limited: bool) -> Positions:
        """
        Where the next batch ends.

        Args:
            start: Where it starts, which is also how far everything is done; None before Spark 4.2.
            limited: Whether the options bound it; Spark asks for all there is in ``Trigger.Once``.
        """

    def seen(self) -> Positions | None:
        """Where logs ended when ``latest`` looked last, for progress; None before that."""

    def stop_at_present(self) -> None:
        """``Trigger.AvailableNow``: from now on nothing is read that is not there at this moment."""

    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        """What the batch between these reads."""

    def done(self, end: Positions) -> None:
        """Everything up to there was processed."""

    def close(self) -> None:
        """The query ends."""


class LogDriver:
    """Reads everything that the options name, and commits behind the query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._view = LogView(options)
        self._offsets = GroupOffsets(self._view, options)
        refuse_live_group(options)
        self._start: Positions | None = None
        #: Where the last batch ended that was planned here.
        self._planned: Positions | None = None
        self._target: Mapping[TopicPartition, int] | None = None
        self._seen: Positions | None = None
        self._advanced_at_s = time.monotonic()

    # ------------------------------------------------------------------ positions

    def initial(self) -> Positions:
        if self._start is None:
            partitions = self._view.partitions()
            group = self._options.group
            committed = committed_offsets(self._view, group, partitions) if self._options.starting == GROUP else {}
            offsets = resolve("startingOffsets", self._options.starting, partitions, self._view, committed)
            token = _new_token()
            spans = {partition: Span(offset, offset, token) for partition, offset in offsets.items()}
            self._start = Positions(spans, uuid.uuid4().hex[:_QUERY_DIGITS])
            self._offsets.begin(self._group(self._start), offsets)
        return self._start

    def latest(self, start: Positions | None, *, limited: bool) -> Positions:
        if start is not None:
            self.done(start)
        elif self._planned is not None:
            # Spark asks again once the batch is done.
            self.done(self._planned)
        known = start or self._planned or self._start
        ends = self._ends(known.spans if known is not None else {})
        self._seen = Positions({partition: Span(end, end) for partition, end in ends.items()})
        if known is None:
            # Spark before 4.2 does not say where the query stands; it goes on from there.
            return self._seen
        spans = self._without_losses(known.spans, ends)
        spans |= self._beginnings([partition for partition in ends if partition not in spans])
        return Positions(self._advanced(spans, ends, limited=limited), known.query)

    def seen(self) -> Positions | None:
        return self._seen

    def stop_at_present(self) -> None:
        self._target = self._view.latest(self._view.partitions(all_must_exist=False))

    def _ends(self, known: Mapping[TopicPartition, Span]) -> dict[TopicPartition, int]:
        """Where logs end; looked up again where that is before what was read already."""
        for look in range(_LOOKS):
            partitions = self._view.partitions(all_must_exist=False)
            ends = self._view.latest(partitions)
            if all(ends.get(partition, -1) >= span.to for partition, span in known.items()):
                break
            if look < _LOOKS - 1:
                time.sleep(self._options.offset_retry_interval_ms / 1000)
        if self._target is None:
            return ends
        # What is not in the target has come later, and waits for the next run.
        return {
            partition: min(end, self._target[partition]) for partition, end in ends.items() if partition in self._target
        }

    def _without_losses(
        self, known: Mapping[TopicPartition, Span], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Span]:
        """Where reading goes on: where it was, or at the beginning of a log that is another one now."""
        spans = dict(known)
        for partition, span in known.items():
            if partition not in ends:
                if self._target is not None and partition not in self._target:
                    continue
                self._judge(f"{partition}: offset {span.to} is to be read next, and there is no such partition")
                del spans[partition]
            elif ends[partition] < span.to and self._target is None:
                self._judge(f"{partition}: offset {span.to} is to be read next, and the log ends at {ends[partition]}")
                del spans[partition]
        lost = [partition for partition in known if partition not in spans]
        self._offsets.forget(lost)
        return spans

    def _judge(self, what: str) -> None:
        judge_loss(what, fail_on_data_loss=self._options.fail_on_data_loss)

    def _beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Span]:
        """What appears after the query has started is read from where it begins, whatever ``startingOffsets`` says."""
        if not partitions:
            return {}
        token = _new_token()
        return {partition: Span(first, first, token) for partition, first in self._view.earliest(partitions).items()}

    def _advanced(
        self, spans: Mapping[TopicPartition, Span], ends: Mapping[TopicPartition, int], *, limited: bool
    ) -> dict[TopicPartition, Span]:
        """As far as the options let a batch go."""
        available = {partition: max(0, ends.get(partition, 0) - span.to) for partition, span in spans.items()}
        total = sum(available.values())
        options = self._options
        if limited and self._target is None:
            waited_ms = (time.monotonic() - self._advanced_at_s) * 1000
            if waits_for_more(total, options.min_offsets_per_trigger, waited_ms, options.max_trigger_delay_ms):
                return dict(spans)
        if limited and options.max_offsets_per_trigger is not None:
            available = shared_out(options.max_offsets_per_trigger, available)
        if total:
            self._advanced_at_s = time.monotonic()
        return {partition: span.up_to(span.to + available[partition]) for partition, span in spans.items()}

    # ------------------------------------------------------------------ batches

    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        self._planned = end
        unknown = [p for p, span in end.spans.items() if span.token is None and p not in start.spans]
        ranges = ranges_between(start, end, self._view.earliest(unknown) if unknown else {})
        for partition, span in end.spans.items():
            known = start.spans.get(partition)
            if known is not None and span.token in (None, known.token) and span.to < known.to:
                self._judge(f"{partition}: offset {known.to} is to be read next, and the log ended at {span.to}")
        leaders = self._view.leaders({each.topic_partition for each in ranges})
        return plan_tasks(ranges, leaders, task_bounds(self._options))

    def done(self, end: Positions) -> None:
        if self._start is None or end.offsets() != self._start.offsets():
            self._offsets.commit(self._group(end), end.offsets())

    def close(self) -> None:
        self._view.close()

    def _group(self, positions: Positions) -> str | None:
        """The group that was named or, without one, that of the query."""
        if self._options.group is not None or positions.query is None:
            return self._options.group
        return f"kiel-spark-{positions.query}"


def _new_token() -> int:
    """A number that no other interval of reading has."""
    return uuid.uuid4().int & ((1 << _TOKEN_BITS) - 1)
