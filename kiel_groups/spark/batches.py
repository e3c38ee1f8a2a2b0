"""
Bound batches by the log ends and the options, detect lost messages, and plan the tasks.

The drivers of streams use ``BatchBounds`` for their micro-batches. A driver itself decides which partitions to read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import SHORTER_LOG, Loss, OffsetRange, Positions, Span, ranges_between
from kiel_groups.spark.log_view import LogIdentity, LogView
from kiel_groups.spark.offsets import account_loss, check_bounds, data_loss, resolve
from kiel_groups.spark.options import GROUP, ReadOptions
from kiel_groups.spark.task_planner import ReadTask, TaskBounds, plan_tasks, plan_topic_tasks

log = logging.getLogger(__name__)


def fair_shares(most: int, available: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """
    Return the number of messages to read from each partition: in all at most ``most``, in proportion to ``available``.

    Shares are rounded down. The remaining messages go to the partitions with the largest fractions, one message to each
    partition. So a query progresses even if the bound is below the number of partitions. The same input gives the same
    shares.

    Args:
        most: The bound, at least 1.
        available: The number of messages of each partition, 0 or more.
    """
    total = sum(available.values())
    if total <= most:
        return dict(available)
    shares = {partition: count * most // total for partition, count in available.items()}
    by_loss = sorted(available, key=lambda partition: (-(available[partition] * most % total), partition))
    for partition in by_loss[: most - sum(shares.values())]:
        shares[partition] += 1
    return shares


def waits_for_more(available: int, least: int | None, waited_ms: float, most_wait_ms: int) -> bool:
    """
    Return whether a trigger should read nothing, because too few messages are available.

    Args:
        available: The number of available messages.
        least: The smallest batch to read, or None for no bound.
        waited_ms: The time since the last batch was planned, in milliseconds.
        most_wait_ms: The longest wait, in milliseconds. After this time, a trigger reads the available messages.
    """
    return least is not None and available < least and waited_ms < most_wait_ms


#: The least number of lookups of a log's end before an end below the query's position counts as data loss.
_LOOKUPS = 3
#: The assumed size of a message if no broker tells it.
_UNKNOWN_BYTES = 1_024


class BatchBounds:
    """
    Computes the bounds of one query's micro-batches. The methods block.

    Args:
        view: Looks up partitions and offsets.
        options: What a batch may read, and how to treat data loss.
        record: Called with each loss that the options allow. By default, the loss is logged and, for an archive,
            recorded in its ``_losses``.
    """

    def __init__(self, view: LogView, options: ReadOptions, record: Callable[[Loss], None] | None = None) -> None:
        self._view = view
        self._options = options
        self.identity = LogIdentity(view, options)
        self._target: Mapping[TopicPartition, int] | None = None
        self._advanced_at_s = time.monotonic()
        #: The average size of a message by topic.
        self._sizes: dict[str, float] = {}
        #: The log ends of the last lookup, capped by ``within``, or None before the first lookup.
        self.seen: Positions | None = None
        #: The partitions that the last call of ``continued`` has found lost: their positions are not to be committed.
        self.lost: Collection[TopicPartition] = ()
        #: How many ranges were lost, and how many offsets as far as that is known.
        self.lost_ranges = 0
        self.lost_offsets = 0
        self._record = record or partial(account_loss, options.archive)

    def stop_at_current_ends(self) -> None:
        """Look up the ends of the logs, and end later batches at these ends at the latest."""
        self._target = self._view.latest(self._view.partitions(all_must_exist=False))

    def starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """
        Resolve ``startingOffsets`` to an offset for each partition.

        If a group's offset was stored before the topic was created again, record a loss, and start at the first offset
        of the new log.

        Raises:
            OffsetOutOfRangeError: A group's offset belongs to an earlier log, and ``failOnDataLoss`` is set.
            KielGroupsError: As for ``resolve``.
        """
        options = self._options
        starts = resolve("startingOffsets", options.starting, partitions, self._view, options.group)
        if options.starting == GROUP and options.group is not None:
            outdated = sorted(self.identity.outdated_offsets(options.group, starts))
            for partition in outdated:
                what = f"the group's offset {starts[partition]} is from before the topic was created again"
                self.on_loss(partition, starts[partition], what)
            starts |= self._view.earliest(outdated) if outdated else {}
        return starts

    def continued(
        self, known: Mapping[TopicPartition, Span]
    ) -> tuple[dict[TopicPartition, Span], dict[TopicPartition, int]]:
        """
        Return the spans at which the query can continue, and the ends of the logs, not capped by ``within``.

        A span is dropped, and its loss recorded, if its log was deleted or created again, or if the log no longer has
        the next offset.

        Args:
            known: The position of the query.

        Raises:
            OffsetOutOfRangeError: A span must be dropped, and ``failOnDataLoss`` is set. With ``failOnDataLoss``, this
                method does not check for messages that retention has removed. Workers raise the error for them.
        """
        lost: dict[TopicPartition, str] = self.identity.recreated(known)
        ends = self.ends({partition: span for partition, span in known.items() if partition not in lost})
        for partition, span in known.items():
            if partition not in ends:
                lost[partition] = self.identity.missing(partition)
            elif partition not in lost and ends[partition] < span.to:
                lost[partition] = f"the log ends at {ends[partition]}: {SHORTER_LOG}"
        rest = {partition: span for partition, span in known.items() if partition not in lost}
        advancing = [partition for partition, span in rest.items() if ends[partition] > span.to]
        lost |= self.identity.replaced(rest, advancing)
        firsts: Mapping[TopicPartition, int] = {}
        if advancing and not self._options.fail_on_data_loss:
            firsts = self._view.earliest([partition for partition in advancing if partition not in lost])
        for partition, first in firsts.items():
            if first > known[partition].to:
                lost[partition] = f"the log begins at {first}: retention was faster"
        self.lost = frozenset(lost)
        for partition, what in sorted(lost.items()):
            span = known[partition]
            what = f"offset {span.to} is to be read next, and {what}"
            self.on_loss(partition, span.to, what, firsts.get(partition), span.incarnation)
        return {partition: span for partition, span in known.items() if partition not in lost}, ends

    def ends(self, known: Mapping[TopicPartition, Span]) -> dict[TopicPartition, int]:
        """
        Look up the ends of the logs. Repeat the lookup while an end is unknown or below the query's position.

        A leader that was just elected may not know all of its log yet, and a broker that has just started knows no
        topics. These states are not data loss. So the lookup is repeated for the request timeout, and at least twice,
        before its result is accepted.
        """
        until_s = time.monotonic() + self._options.request_timeout_ms / 1000
        for lookup in count(1):
            ends = self._view.latest(self._view.partitions(all_must_exist=False))
            short = next((each for each, span in known.items() if ends.get(each, -1) < span.to), None)
            if short is None or (lookup >= _LOOKUPS and time.monotonic() > until_s):
                break
            if lookup == _LOOKUPS:
                log.warning(
                    "%s: offset %d is to be read next, but the brokers do not have it; retrying for %d s",
                    short,
                    known[short].to,
                    self._options.request_timeout_ms // 1000,
                )
            time.sleep(self._options.offset_retry_interval_ms / 1000)
        self.seen = Positions({partition: Span(end, end) for partition, end in self.within(ends).items()})
        return ends

    def within(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """
        Cap the ends at the ends that ``stop_at_current_ends`` found, and drop partitions that appeared later.

        Before a call of ``stop_at_current_ends``, return all ends unchanged.
        """
        target = self._target
        if target is None:
            return dict(ends)
        return {partition: min(end, target[partition]) for partition, end in ends.items() if partition in target}

    def on_loss(
        self,
        partition: TopicPartition,
        start: int,
        what: str,
        end: int | None = None,
        incarnation: int | None = None,
        *,
        is_decided: bool = False,
    ) -> None:
        """
        Record a loss of messages, or raise an error about it.

        Args:
            partition: The partition.
            start: The first lost offset.
            what: The reason, for the message.
            end: The offset after the last lost offset, or None if unknown.
            incarnation: The topic's incarnation, or None if unknown.
            is_decided: Whether the group has already continued after the loss, so that an error has no use.

        Raises:
            OffsetOutOfRangeError: ``failOnDataLoss`` is set, and ``is_decided`` is not.
        """
        options = self._options
        group = options.group if options.joins or options.starting == GROUP else None
        loss = Loss(partition, start, end, incarnation, what)
        if options.fail_on_data_loss and not is_decided:
            raise data_loss(loss, None if group is None else GroupLayout(group).offset(partition))
        self._record(loss)
        self.lost_ranges += 1
        self.lost_offsets += loss.size

    def advanced(
        self, spans: Mapping[TopicPartition, Span], ends: Mapping[TopicPartition, int], *, limited: bool
    ) -> dict[TopicPartition, Span]:
        """
        Return the spans advanced to the end of the next batch. Spans do not change while the query waits for more.

        Args:
            spans: The position of the query.
            ends: The ends of the logs.
            limited: Whether the options bound the batch.
        """
        bounded = self.within(ends)
        available = {partition: max(0, bounded.get(partition, 0) - span.to) for partition, span in spans.items()}
        total = sum(available.values())
        options = self._options
        if limited and self._target is None:
            waited_ms = (time.monotonic() - self._advanced_at_s) * 1000
            if waits_for_more(total, options.min_offsets_per_trigger, waited_ms, options.max_trigger_delay_ms):
                return dict(spans)
        if limited and options.max_offsets_per_trigger is not None:
            available = fair_shares(options.max_offsets_per_trigger, available)
        if total:
            self._advanced_at_s = time.monotonic()
        return {partition: span.up_to(span.to + available[partition]) for partition, span in spans.items()}

    def tasks(self, start: Positions, end: Positions, *, blind: bool = False) -> list[ReadTask]:
        """
        Plan the tasks of the batch between two positions.

        Args:
            start: Where the batch starts.
            end: Where the batch ends.
            blind: Whether ``end`` was looked up without knowledge of ``start``. Then this method also detects
                partitions that are missing in ``end``, and topics that were created again.

        Raises:
            OffsetOutOfRangeError: Messages are lost, and ``failOnDataLoss`` is set.
        """
        spans = end.spans
        if not start.initial:
            start = replace(start, spans=self._without_undetected_losses(start.spans, spans, blind))
        if not blind:
            spans = self._unchanged(start, end)
        unknown = [p for p, span in spans.items() if span.token is None and p not in start.spans]
        ranges = ranges_between(start, replace(end, spans=spans), self._view.earliest(unknown) if unknown else {})
        leaders = self._view.leaders({each.topic_partition for each in ranges})
        bounds = TaskBounds.of(self._options)
        if bounds.file_bytes is not None:
            return plan_topic_tasks(ranges, leaders, bounds, self._message_bytes)
        return plan_tasks(ranges, leaders, bounds)

    def _message_bytes(self, found: OffsetRange) -> float:
        """Return the average size of a topic's messages in a sample, or a default. Each topic is sampled once."""
        topic = found.topic_partition.topic
        if topic not in self._sizes:
            self._sizes[topic] = self._view.message_bytes(found.topic_partition, found.start) or _UNKNOWN_BYTES
        return self._sizes[topic]

    def _unchanged(self, start: Positions, end: Positions) -> dict[TopicPartition, Span]:
        """
        Return the spans of ``end`` without those whose topics were created again since the batch was planned.

        Each dropped span is recorded as a loss. An earlier process may have planned the batch.
        """
        ranges = ranges_between(start, end, dict.fromkeys(end.spans, 0))
        spans = {each.topic_partition: end.spans[each.topic_partition] for each in ranges}
        lost = self.identity.others(spans, spans)
        for each in ranges:
            if (what := lost.get(each.topic_partition)) is not None:
                what = f"offsets {each.start} to {each.end} are to be read, and {what}"
                self.on_loss(each.topic_partition, each.start, what, each.end, each.incarnation)
        return {partition: span for partition, span in end.spans.items() if partition not in lost}

    def _without_undetected_losses(
        self, known: Mapping[TopicPartition, Span], ends: Mapping[TopicPartition, Span], blind: bool
    ) -> dict[TopicPartition, Span]:
        lost: dict[TopicPartition, str] = {}
        if blind:
            lost = self.identity.others(known, ends)
        for partition, start in known.items():
            end = ends.get(partition)
            if end is None:
                if blind:
                    lost[partition] = self.identity.missing(partition)
            elif end.token in (None, start.token) and end.to < start.to:
                lost.setdefault(partition, f"the log ended at {end.to}: {SHORTER_LOG}")
        for partition, what in sorted(lost.items()):
            start = known[partition]
            what = f"offset {start.to} is to be read next, and {what}"
            self.on_loss(partition, start.to, what, incarnation=start.incarnation)
        # Without a known start, the new log is read from its beginning.
        restarted = {partition for partition in lost if partition in ends and ends[partition].token is None}
        return {partition: span for partition, span in known.items() if partition not in restarted}


def plan_batch(options: ReadOptions, *, with_incarnations: bool) -> list[ReadTask]:
    """
    Look up the partitions and offsets of a batch query, and plan its tasks.

    Args:
        options: The options of the query.
        with_incarnations: Whether to add the incarnations of the topics to the ranges, if the options name a ZooKeeper.

    Raises:
        ConfigError: The given offsets do not fit the partitions.
        OffsetOutOfRangeError: A log lacks messages of its range, and ``failOnDataLoss`` is set.
        BrokerError: The lookup failed.
    """
    with LogView(options) as view:
        partitions = view.partitions()
        batch = BatchBounds(view, options)
        created = batch.identity.incarnations({each.topic for each in partitions} if with_incarnations else ())
        starts = batch.starts(partitions)
        ends = resolve("endingOffsets", options.ending, partitions, view)
        bounds = check_bounds(
            starts,
            ends,
            view.earliest(partitions),
            view.latest(partitions),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        ranges = [bounds[each]._replace(incarnation=created.get(each.topic)) for each in partitions]
        return plan_tasks(ranges, view.leaders(partitions), TaskBounds.of(options))
