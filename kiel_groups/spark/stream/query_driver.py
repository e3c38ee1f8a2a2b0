"""
The driver's side of a stream that is not a member of a group: its start, the end of each batch, and its commits.

The driver runs on one thread of the process that Spark keeps for a query. ``QueryDriver`` is the interface that it
shares with the driver of a group's member (``kiel_groups.spark.stream.member_driver``).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.layout import SPARK_GROUPS
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import Positions, Span, is_done, new_token
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.member import default_on_sigterm, on_sigterm
from kiel_groups.spark.offsets import GroupOffsets, committed_offsets, refuse_live_group, resolve
from kiel_groups.spark.options import GROUP, ReadOptions
from kiel_groups.spark.stream.microbatches import BatchBounds
from kiel_groups.spark.tasks.task_planner import ReadTask

__all__ = ["LogDriver", "QueryDriver", "group_name"]

log = logging.getLogger(__name__)

_QUERY_DIGITS = 12


class QueryDriver(Protocol):
    """The driver of a stream, as the stream reader calls it; every call returns in bounded time."""

    def initial(self) -> Positions:
        """Return the start of a new query, the same at every call."""

    def latest(self, start: Positions | None, *, limited: bool) -> Positions:
        """
        Return the end of the next batch.

        Args:
            start: The start of the batch, before which everything is done, or None before Spark 4.2.
            limited: Whether the options bound the batch; in ``Trigger.Once``, Spark asks for all messages.
        """

    def seen(self) -> Positions | None:
        """
        Return the log ends of the last lookup, for progress reports, or None before the first lookup.

        The ends are capped at the ends that ``stop_at_current_ends`` found.
        """

    def stop_at_current_ends(self) -> None:
        """From now on, read nothing beyond the present ends of the logs, as ``Trigger.AvailableNow`` asks."""

    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        """Plan the tasks of the batch between two positions."""

    def done(self, end: Positions) -> None:
        """Record that everything before ``end`` was processed."""

    def close(self) -> None:
        """End the query, and close its connections."""


class LogDriver:
    """A QueryDriver that reads every partition that the options name, and commits batches that are done."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._view = LogView(options)
        self._offsets = GroupOffsets(self._view, options)
        refuse_live_group(options)
        self._start: Positions | None = None
        self._start_is_stored = False
        #: The id of the query, in case the end of a batch does not contain it.
        self._query: str | None = None
        #: The end of the last batch that this process planned.
        self._planned: Positions | None = None
        self._bounds = BatchBounds(self._view, options)
        self._ending = False
        if options.checkpoint is not None:
            on_sigterm(self._end)

    # ------------------------------------------------------------------ positions

    def initial(self) -> Positions:
        start = self._resolved()
        if not self._start_is_stored:
            self._start_is_stored = self._offsets.begin(self._group(start), start.offsets())
        return start

    def _resolved(self) -> Positions:
        if self._start is None:
            partitions = self._view.partitions()
            group = self._options.group
            committed = committed_offsets(self._view, group, partitions) if self._options.starting == GROUP else {}
            offsets = resolve("startingOffsets", self._options.starting, partitions, self._view, committed)
            token = new_token()
            spans = {partition: Span(offset, offset, token) for partition, offset in offsets.items()}
            self._start = Positions(spans, uuid.uuid4().hex[:_QUERY_DIGITS], initial=True)
        return self._start

    def latest(self, start: Positions | None, *, limited: bool) -> Positions:
        if start is not None:
            self.done(start)
        elif self._planned is not None:
            # Spark before 4.2 asks for the next end only once the batch is done.
            self.done(self._planned)
        known = start or self._planned
        if known is None:
            return self._latest_of_unknown()
        ends = self._bounds.ends(known.spans)
        spans = self._bounds.without_losses(known.spans, ends)
        self._offsets.forget([partition for partition in known.spans if partition not in spans])
        spans |= self._beginnings([partition for partition in self._bounds.within(ends) if partition not in spans])
        return Positions(self._bounds.advanced(spans, ends, limited=limited), known.query or self._query)

    def _latest_of_unknown(self) -> Positions:
        """Return the end of the first batch. Before Spark 4.2, a new query looks like a resumed query here."""
        try:
            # Starts are resolved before the ends: Spark calls ``initialOffset`` of a new query only after this.
            starts = self._resolved().offsets()
        except ConfigError:
            # A new query fails in ``initialOffset``; a resumed one may have partitions that its options do not name.
            starts = {}
        ends = self._bounds.within(self._bounds.ends({}))
        return Positions(
            {partition: Span(min(starts.get(partition, end), end), end) for partition, end in ends.items()}
        )

    def seen(self) -> Positions | None:
        return self._bounds.seen

    def stop_at_current_ends(self) -> None:
        self._bounds.stop_at_current_ends()

    def _beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Span]:
        """Return spans of partitions that appeared later. They start at the first offsets, whatever the options say."""
        if not partitions:
            return {}
        token = new_token()
        return {partition: Span(first, first, token) for partition, first in self._view.earliest(partitions).items()}

    # ------------------------------------------------------------------ batches

    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        self._planned = end
        self._query = end.query or start.query
        # An end without the id of the query and without tokens was looked up without knowledge of the start.
        blind = end.query is None and all(span.token is None for span in end.spans.values())
        return self._bounds.tasks(start, end, blind=blind)

    def done(self, end: Positions) -> None:
        if self._start is None or end.offsets() != self._start.offsets():
            self._offsets.commit(self._group(end), end.offsets())

    def close(self) -> None:
        if self._end():
            default_on_sigterm()

    def _end(self) -> bool:
        """
        Commit the last batch if it is known to be done, and close. Return False if an earlier call has begun to close.

        The handler of SIGTERM may call this function during such a call.
        """
        if self._ending:
            return False
        self._ending = True
        checkpoint, planned = self._options.checkpoint, self._planned
        try:
            if checkpoint is not None and planned is not None and is_done(checkpoint, planned):
                self.done(planned)
        finally:
            self._view.close()
        return True

    def _group(self, positions: Positions) -> str | None:
        return group_name(self._options.group, replace(positions, query=positions.query or self._query))


def group_name(named: str | None, positions: Positions) -> str | None:
    """Return the group ``named`` in the options, or the query's own group, or None while the query's id is unknown."""
    if named is not None or positions.query is None:
        return named
    return f"{SPARK_GROUPS}{positions.query}"
