"""
The driver's side of a stream that is a member of a group: it reads the partitions that the group's leader assigns.

The group stores an offset for every partition: a query starts to read each claimed partition at the group's offset.
The checkpoint stores what each batch reads. If no other member has read a partition since the last batch, the query
continues at the checkpoint's offset instead.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import cast

from kiel_groups.config import CLIENT_ID, GroupConfig, ResetPolicy
from kiel_groups.errors import GroupConfigError
from kiel_groups.group.znodes.contents import GroupSettings
from kiel_groups.ops.zookeeper_reader import read_settings
from kiel_groups.spark.checkpoint import Positions, is_done
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.member import SparkMember, default_on_sigterm, on_sigterm
from kiel_groups.spark.options import EARLIEST, GROUP, ReadOptions
from kiel_groups.spark.stream.microbatches import BatchBounds
from kiel_groups.spark.tasks.task_planner import ReadTask

__all__ = ["MemberDriver", "group_config"]

log = logging.getLogger(__name__)

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


class MemberDriver:
    """
    A QueryDriver that joins its group when Spark first asks for offsets.

    Args:
        options: Must name a group and its ZooKeeper.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._view = LogView(options)
        self._bounds = BatchBounds(self._view, options)
        self._member: SparkMember | None = None
        self._leaving = False
        #: The end of the last batch that this process planned.
        self._planned: Positions | None = None

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
        positions = member.next_batch(self._topics(), reached, known.spans)
        ends = self._bounds.ends(positions)
        spans = self._bounds.without_losses(positions, ends)
        if recreated := [partition for partition in positions if partition in ends and partition not in spans]:
            spans |= member.restart(self._view.earliest(recreated), known.spans)
        planned = Positions(member.plan(self._bounds.advanced(spans, ends, limited=limited)))
        self._planned = planned
        return planned

    def seen(self) -> Positions | None:
        return self._bounds.seen

    def stop_at_current_ends(self) -> None:
        self._bounds.stop_at_current_ends()

    # ------------------------------------------------------------------ batches

    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        # The batch may have been planned by an earlier process; that batch is done when Spark asks for the next.
        self._planned = end
        return self._bounds.tasks(start, end)

    def done(self, end: Positions) -> None:
        """Do nothing: the next ``latest`` reports the batch as done to the member, and releases revoked partitions."""

    def close(self) -> None:
        if self._leave():
            default_on_sigterm()

    def _leave(self) -> bool:
        """
        Leave the group and close the connections. Return False if an earlier call has begun to leave.

        The handler of SIGTERM may call this function during such a call.
        """
        if self._leaving:
            return False
        self._leaving = True
        if self._member is not None:
            self._member.close(self._done().spans)
        self._view.close()
        return True

    def _done(self) -> Positions:
        """Return the end of the last batch if the checkpoint proves that the batch is done, or empty positions."""
        checkpoint, planned = self._options.checkpoint, self._planned
        return planned if checkpoint and planned and is_done(checkpoint, planned) else Positions()

    # ------------------------------------------------------------------ membership

    def _joined(self) -> SparkMember:
        if self._member is None:
            options = self._options
            assert options.zookeeper is not None
            on_sigterm(self._leave)
            member = SparkMember(
                self._view.loop,
                self._view.cluster,
                group_config(options),
                options.zookeeper,
                fail_on_commit_error=options.fail_on_commit_error,
            )
            try:
                member.start(self._topics(all_must_exist=True))
            except GroupConfigError as error:
                raise GroupConfigError(
                    f"{error} (of a query, startingOffsets says where a group without offsets starts; 'group' follows"
                    " the group)"
                ) from error
            self._member = member
            log.info("group %s: this query has joined as member %s", options.group, member.member_id)
        return self._member

    def _topics(self, *, all_must_exist: bool = False) -> Collection[str]:
        if self._options.topics and not all_must_exist:
            return self._options.topics
        return sorted({partition.topic for partition in self._view.partitions(all_must_exist=all_must_exist)})


def group_config(options: ReadOptions) -> GroupConfig:
    """
    Return the member's configuration.

    The configuration has the settings that the group stores, the query's start policy unless that is ``group``, and a
    job name.
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
