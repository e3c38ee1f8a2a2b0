"""
Decide on the driver where a stream starts and where each batch ends, and commit its offsets.

A query reads the partitions that its options name (``LogDriver``), or is a member of a group (``MemberDriver``).
"""

from __future__ import annotations

import logging
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from kiel_groups.config import CLIENT_ID, GroupConfig, ResetPolicy
from kiel_groups.errors import ConfigError, GroupConfigError, KielGroupsError
from kiel_groups.group.znodes.contents import GroupSettings
from kiel_groups.group.znodes.layout import SPARK_GROUPS
from kiel_groups.model import TopicPartition
from kiel_groups.ops.zookeeper_reader import read_settings
from kiel_groups.spark.batches import BatchBounds
from kiel_groups.spark.checkpoint import Positions, Span, is_done, new_token, query_id
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.member import CLOSE_S, SETTLE_S, SparkMember, default_on_sigterm, on_sigterm
from kiel_groups.spark.offsets import GroupOffsets, refuse_live_group
from kiel_groups.spark.options import EARLIEST, GROUP, ReadOptions
from kiel_groups.spark.task_planner import ReadTask
from kiel_groups.wording import some

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long one call of a member may take, in seconds; the session's own timeouts are shorter.
_CALL_S = 60.0
_QUERY_DIGITS = 12
_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


def open_driver(options: ReadOptions) -> QueryDriver:
    """Create the driver of a query: a ``MemberDriver`` if the options join a group, or else a ``LogDriver``."""
    return MemberDriver(options) if options.joins else LogDriver(options)


class QueryDriver(ABC):
    """
    The driver of a stream. The stream reader calls its methods. Each method returns in bounded time.

    The driver runs on one thread of the process that Spark keeps for a query.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._view = LogView(options)
        self._bounds = BatchBounds(self._view, options)
        self._identity = self._bounds.identity
        #: The end of the last batch that this process planned.
        self._planned: Positions | None = None
        #: The end that ``latest`` returned last. Spark asks for a progress report before it plans that batch.
        self._newest_end: Positions | None = None
        self._ending = False

    @abstractmethod
    def initial(self) -> Positions:
        """Return the positions at which a new query starts. Every call returns the same positions."""

    @abstractmethod
    def latest(self, start: Positions | None, *, limited: bool) -> Positions:
        """
        Return the end of the next batch.

        Args:
            start: The start of the batch; None with Spark before 4.2. All messages before the start are done.
            limited: Whether the options bound the batch. In ``Trigger.Once``, Spark asks for all messages.

        Raises:
            OffsetOutOfRangeError: Messages were lost before they were read, and ``failOnDataLoss`` is set.
            KielGroupsError: A lookup failed, or an earlier commit failed and ``failOnCommitError`` is set.
        """

    def seen(self) -> Positions | None:
        """
        Return the log ends of the last lookup, for progress reports, or None before the first lookup.

        The ends are capped at the ends that ``stop_at_current_ends`` found.
        """
        return self._bounds.seen

    def behind(self) -> dict[str, float]:
        """
        Return the least, the largest and the average number of offsets that partitions have after the next batch.

        The numbers are for progress reports. The mapping is empty while they are unknown.
        """
        if self._newest_end is None or (seen := self.seen()) is None:
            return {}
        ends = seen.offsets()
        behind = [max(0, ends[each] - at) for each, at in self._newest_end.offsets().items() if each in ends]
        found = {"min": min(behind), "max": max(behind), "avg": sum(behind) / len(behind)} if behind else {}
        return {f"{name}OffsetsBehindLatest": number for name, number in found.items()}

    def lost(self) -> dict[str, int]:
        """
        Return the number of lost ranges and the known number of lost offsets, for progress reports.

        Without a loss, the mapping is empty.
        """
        bounds = self._bounds
        return {"ranges": bounds.lost_ranges, "offsets": bounds.lost_offsets} if bounds.lost_ranges else {}

    def stop_at_current_ends(self) -> None:
        """Look up the ends of the logs, and never read beyond these ends. ``Trigger.AvailableNow`` needs this."""
        self._bounds.stop_at_current_ends()

    @abstractmethod
    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        """Plan the tasks of the batch between two positions. Raise OffsetOutOfRangeError for a loss, as ``latest``."""

    @abstractmethod
    def done(self, end: Positions) -> None:
        """Record that all messages before ``end`` were processed."""

    def close(self) -> None:
        """End the query, and close its connections."""
        if self._end():
            default_on_sigterm()

    def _end(self) -> bool:
        """
        End the query, and close its connections. Do nothing and return False after the first call.

        The handler of SIGTERM may call this method during another call.
        """
        if self._ending:
            return False
        self._ending = True
        checkpoint, planned = self._options.checkpoint, self._planned
        try:
            self._leave(planned if checkpoint and planned and is_done(checkpoint, planned) else None)
        finally:
            self._view.close()
        return True

    @abstractmethod
    def _leave(self, done: Positions | None) -> None:
        """
        Commit ``done``, and leave the group if the query is a member.

        ``done`` is the end of the last batch, or None if the checkpoint does not prove that this batch is done.
        """


class LogDriver(QueryDriver):
    """A driver for a query that reads all partitions that its options name. It commits batches that are done."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._offsets = GroupOffsets(self._view, options)
        refuse_live_group(options)
        self._start: Positions | None = None
        self._start_is_stored = False
        #: The id of the query, in case the end of a batch does not contain it.
        self._query = None if options.checkpoint is None else query_id(options.checkpoint)
        if options.commits:
            on_sigterm(self._end)

    # ------------------------------------------------------------------ positions

    def initial(self) -> Positions:
        start = self._resolved()
        if not self._start_is_stored:
            offsets = self._read(start).offsets()
            self._start_is_stored = self._offsets.commit(self._group(start), offsets, only_missing=True)
        return start

    def _resolved(self) -> Positions:
        if self._start is None:
            partitions = self._view.partitions()
            # Incarnations are read before offsets: if a topic is created again in between, that is noticed later.
            created = self._identity.incarnations({each.topic for each in partitions})
            token = new_token()
            spans = {
                each: Span(offset, offset, token, incarnation=created.get(each.topic))
                for each, offset in self._bounds.starts(partitions).items()
            }
            spans |= self._options.held.spans
            if self._options.group is not None:
                # Members do not trust these offsets either.
                self._offsets.forget(self._identity.outdated_offsets(self._options.group, partitions))
            self._start = Positions(spans, self._query or uuid.uuid4().hex[:_QUERY_DIGITS], initial=True)
        return self._start

    def latest(self, start: Positions | None, *, limited: bool) -> Positions:
        # Spark before 4.2 does not pass the start, and asks for the next end only once the planned batch is done.
        known = start or self._planned
        if known is None:
            return self._latest_of_unknown()
        read = self._read(known).spans
        check_topics(self._options, read)
        try:
            spans, ends = self._bounds.continued(read)
        finally:
            # Not before: this has found the positions in lost logs, which are not to be committed.
            self.done(known)
        self._offsets.forget(self._bounds.lost)
        self._bounds.lost = ()
        spans |= self._beginnings([partition for partition in self._bounds.within(ends) if partition not in spans])
        advanced = self._bounds.advanced(spans, ends, limited=limited)
        identified = self._identity.identified(advanced, read)
        end = Positions({**identified, **self._options.held.spans}, known.query or self._query)
        if end.offsets() == known.offsets():
            # No batch delays the end of a query: it may be the last trigger of ``availableNow``.
            self._offsets.flush()
        self._newest_end = end
        return end

    def _read(self, positions: Positions) -> Positions:
        """
        Return the positions of the topics that the query reads.

        These are all topics except those that the archive job excludes (``kiel.archive.held``).
        """
        topics = self._options.held.topics
        return replace(positions, spans={p: span for p, span in positions.spans.items() if p.topic not in topics})

    def _latest_of_unknown(self) -> Positions:
        """
        Return the end of the first batch that this process plans, with Spark before 4.2.

        Then a source does not know whether the query is new or resumed, so the batch ends at the ends of the logs.
        """
        try:
            # Starts are resolved before the ends: Spark calls ``initialOffset`` of a new query only after this.
            starts = self._resolved().offsets()
        except ConfigError:
            # A new query fails in ``initialOffset``; a resumed one may have partitions that its options do not name.
            starts = {}
        ends = self._bounds.within(self._bounds.ends({}))
        spans = {partition: Span(min(starts.get(partition, end), end), end) for partition, end in ends.items()}
        return Positions({**self._identity.identified(spans, {}), **self._options.held.spans})

    def _beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Span]:
        """Return spans that start at the first offsets, for partitions that appeared after the start of the query."""
        if not partitions:
            return {}
        created = self._identity.incarnations({partition.topic for partition in partitions}, again=True)
        token = new_token()
        return {
            each: Span(first, first, token, incarnation=created.get(each.topic))
            for each, first in self._view.earliest(partitions).items()
        }

    # ------------------------------------------------------------------ batches

    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        self._planned = end
        self._query = end.query or start.query or self._query
        read = self._read(start)
        check_topics(self._options, read.spans)
        if start == end:
            # Spark 4.0 and 4.1 pass the position of a resumed query in this way. ``latest`` then checks its logs.
            return []
        # An end without the id of the query and without tokens was looked up without knowledge of the start.
        blind = end.query is None and all(span.token is None for span in end.spans.values())
        return self._bounds.tasks(read, self._read(end), blind=blind)

    def done(self, end: Positions) -> None:
        if self._start is None or end.offsets() != self._start.offsets():
            # An offset of a deleted log would be taken for one of the new log, as it is younger than the topic.
            read = self._read(end)
            outdated = {*self._identity.recreated(read.spans), *self._bounds.lost}
            offsets = {partition: offset for partition, offset in read.offsets().items() if partition not in outdated}
            self._offsets.commit_soon(self._group(end), offsets)

    def _leave(self, done: Positions | None) -> None:
        try:
            if done is not None:
                self.done(done)
            self._offsets.flush(2 * CLOSE_S)
        except (KielGroupsError, TimeoutError) as error:
            log.error("the last offsets may not be committed; the next run commits them: %s", error)

    def _group(self, positions: Positions) -> str | None:
        return group_name(self._options, replace(positions, query=positions.query or self._query))


def check_topics(options: ReadOptions, known: Collection[TopicPartition]) -> None:
    """
    Check that a checkpoint has at least one topic of the query. An empty checkpoint passes.

    With the checkpoint of another query, all records of its topics would seem to be lost.

    Raises:
        ConfigError: The options name no topic of the checkpoint.
    """
    read = {partition.topic for partition in known}
    named = {*options.topics, *(partition.topic for partition in options.assigned)}
    pattern = options.topic_pattern
    if read and not any(topic in named or (pattern is not None and pattern.search(topic)) for topic in read):
        wanted = some(sorted(named)) if pattern is None else f"topics that match {pattern.pattern!r}"
        raise ConfigError(
            f"checkpointLocation: this checkpoint is of {some(sorted(read))}, and the query reads {wanted}; give it a"
            " checkpoint of its own"
        )


def group_name(options: ReadOptions, positions: Positions) -> str | None:
    """
    Return the group that the options name, or else the query's own group.

    The name of the query's own group contains the query's id. While that is unknown, return None.
    """
    if options.group is not None or positions.query is None:
        return options.group
    prefix = SPARK_GROUPS if options.group_prefix is None else f"{options.group_prefix}-"
    return f"{prefix}{positions.query}"


class MemberDriver(QueryDriver):
    """
    A driver for a query that is a member of a group. It reads the partitions that the group's leader assigns.

    It joins its group when Spark first asks for offsets. The query starts to read a claimed partition at the group's
    committed offset. The checkpoint stores what each batch reads. If no other member has read the partition since the
    query's last batch, the query continues at the checkpoint's offset instead.

    Args:
        options: Must name a group and its ZooKeeper.
    """

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._member: SparkMember | None = None

    # ------------------------------------------------------------------ positions

    def initial(self) -> Positions:
        # The query starts at the group's offsets, which ``latest`` gets from the member.
        self._joined()
        return Positions()

    def latest(self, start: Positions | None, *, limited: bool) -> Positions:
        member = self._joined()
        known = start or self._planned or Positions()
        # Before 4.2, Spark does not pass its position, but asks again only once the batch is done.
        reached = None if start is None else start.spans
        positions = self._on_loop(member.next_batch(self._topics(), reached, known.spans))
        spans, ends = self._bounds.continued(positions)
        self._account_new_logs(known.spans, positions)
        if recreated := [partition for partition in positions if partition in ends and partition not in spans]:
            spans |= self._on_loop(member.restart(self._view.earliest(recreated), known.spans))
        advanced = self._bounds.advanced(spans, ends, limited=limited)
        planned = Positions(self._on_loop(member.plan(self._identity.identified(advanced, known.spans))))
        self._planned = self._newest_end = planned
        return planned

    def _account_new_logs(self, known: Mapping[TopicPartition, Span], positions: Mapping[TopicPartition, Span]) -> None:
        """Record a loss for each deleted log that the query has read, if the group now reads the new log instead."""
        renewed = self._identity.recreated(known)
        for partition in sorted(renewed.keys() & positions.keys()):
            if positions[partition].incarnation is None:
                span = known[partition]
                what = f"offset {span.to} was to be read next, and {renewed[partition]}"
                self._bounds.on_loss(partition, span.to, what, incarnation=span.incarnation, is_decided=True)

    # ------------------------------------------------------------------ batches

    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        # The batch may have been planned by an earlier process; that batch is done when Spark asks for the next.
        self._planned = end
        return self._bounds.tasks(start, end)

    def done(self, end: Positions) -> None:
        """Do nothing: the next call of ``latest`` tells the member that the batch is done."""

    def _leave(self, done: Positions | None) -> None:
        if self._member is not None:
            try:
                self._on_loop(self._member.close((done or Positions()).spans), 2 * CLOSE_S)
            except TimeoutError:
                log.error(
                    "group %s: ZooKeeper does not answer; the session will expire by its timeout", self._options.group
                )

    # ------------------------------------------------------------------ membership

    def _joined(self) -> SparkMember:
        if self._member is None:
            options = self._options
            assert options.zookeeper is not None
            on_sigterm(self._end)
            member = SparkMember(
                self._view.cluster,
                group_config(options),
                options.zookeeper,
                fail_on_commit_error=options.fail_on_commit_error,
            )
            try:
                self._on_loop(member.start(self._topics(all_must_exist=True)), SETTLE_S + _CALL_S)
            except GroupConfigError as error:
                raise GroupConfigError(
                    f"{error} (of a query, startingOffsets says where a group without offsets starts; 'group' follows"
                    " the group)"
                ) from error
            self._member = member
            log.info("group %s: this query has joined as member %s", options.group, member.member_id)
        return self._member

    def _on_loop(self, call: Coroutine[Any, Any, T], limit_s: float = _CALL_S) -> T:
        return self._view.loop.run(call, limit_s)

    def _topics(self, *, all_must_exist: bool = False) -> Collection[str]:
        if self._options.topics and not all_must_exist:
            return self._options.topics
        return sorted({partition.topic for partition in self._view.partitions(all_must_exist=all_must_exist)})


def group_config(options: ReadOptions) -> GroupConfig:
    """
    Return the member's configuration.

    Its store is the store of the group in ZooKeeper. Its start policy is that of the query, or with ``group`` that of
    the group. Its job name contains the client id.

    Raises:
        CoordinationError: ZooKeeper did not answer.
    """
    assert options.group is not None
    assert options.zookeeper is not None
    settings = read_settings(options.zookeeper.hosts, options.group) or GroupSettings(
        store="zookeeper", mode="cooperative", auto_offset_reset=EARLIEST
    )
    policy = settings.auto_offset_reset if options.starting == GROUP else options.starting
    job = "" if options.client_id == CLIENT_ID else f"-{_ILLEGAL.sub('-', options.client_id)}"
    return GroupConfig(
        group=options.group,
        store=settings.store,
        auto_offset_reset=cast(ResetPolicy, policy),
        client="spark",
        job=f"spark{job}",
        # A batch may take any time; if it delays a rebalance, the group's leader raises the alarm.
        max_poll_interval_ms=0,
    )
