"""
The driver's side of a stream that is a member of a group: reads what the group's leader gives it, and hands over.

The group keeps the place of every partition: a query starts, and goes on after it has lost a partition, where the group
has got to. The checkpoint keeps what each batch reads; it decides where nobody else has read on in between.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import cast

from kiel_groups.admin.group_inspection import read_settings
from kiel_groups.config import CLIENT_ID, GroupConfig, ResetPolicy
from kiel_groups.errors import GroupConfigError
from kiel_groups.group.znodes.contents import GroupSettings
from kiel_groups.spark.checkpoint.last_batch import is_done
from kiel_groups.spark.checkpoint.query_offsets import Positions
from kiel_groups.spark.member.process_exit import default_on_sigterm, on_sigterm
from kiel_groups.spark.member.query_member import SparkMember
from kiel_groups.spark.offsets.log_view import LogView
from kiel_groups.spark.options.read_options import EARLIEST, GROUP, ReadOptions
from kiel_groups.spark.stream.microbatches import BatchBounds
from kiel_groups.spark.tasks.task_planner import ReadTask

__all__ = ["MemberDriver"]

log = logging.getLogger(__name__)

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


class MemberDriver:
    """
    A QueryDriver that joins when it is first asked for offsets.

    Args:
        options: With a group, and where its ZooKeeper is.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._view = LogView(options)
        self._bounds = BatchBounds(self._view, options)
        self._member: SparkMember | None = None
        self._leaving = False
        #: Where the last batch ended that was planned here.
        self._planned: Positions | None = None

    # ------------------------------------------------------------------ positions

    def initial(self) -> Positions:
        # The group's offsets are where it starts, and stand there once it has joined.
        self._joined()
        return Positions()

    def latest(self, start: Positions | None, *, limited: bool) -> Positions:
        member = self._joined()
        known = start or self._planned or Positions()
        # Before 4.2 Spark does not say where it stands, but asks again only once the batch is done.
        reached = None if start is None else start.spans
        standing = member.next_batch(self._topics(), reached, known.spans)
        ends = self._bounds.ends(standing)
        spans = self._bounds.without_losses(standing, ends)
        if anew := [partition for partition in standing if partition in ends and partition not in spans]:
            spans |= member.restart(self._view.earliest(anew), known.spans)
        planned = Positions(member.plan(self._bounds.advanced(spans, ends, limited=limited)))
        self._planned = planned
        return planned

    def seen(self) -> Positions | None:
        return self._bounds.seen

    def stop_at_present(self) -> None:
        self._bounds.stop_at_present()

    # ------------------------------------------------------------------ batches

    def tasks(self, start: Positions, end: Positions) -> list[ReadTask]:
        # Also one that was planned by an earlier process: it is done when Spark asks for the next.
        self._planned = end
        return self._bounds.tasks(start, end)

    def done(self, end: Positions) -> None:
        """Told by the next ``latest``, which is where partitions are let go, too."""

    def close(self) -> None:
        if self._leave():
            default_on_sigterm()

    def _leave(self) -> bool:
        """Leave the group, and end; False where that was begun already. A SIGTERM may call it anywhere in itself."""
        if self._leaving:
            return False
        self._leaving = True
        if self._member is not None:
            self._member.close(self._done().spans)
        self._view.close()
        return True

    def _done(self) -> Positions:
        """How far the last batch is known to be done, now that the query ends."""
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
                _group_config(options),
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
            log.info("group %s: this query reads as %s", options.group, member.member_id)
        return self._member

    def _topics(self, *, all_must_exist: bool = False) -> Collection[str]:
        if self._options.topics and not all_must_exist:
            return self._options.topics
        return sorted({partition.topic for partition in self._view.partitions(all_must_exist=all_must_exist)})


def _group_config(options: ReadOptions) -> GroupConfig:
    """As the group has it, as far as the query does not say otherwise; named after the job, for operators."""
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
        # A batch takes as long as it takes; that it holds up a hand-over is an alarm of the group's leader.
        max_poll_interval_ms=0,
    )
