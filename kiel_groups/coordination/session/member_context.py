"""Define what all parts of one member share on one session."""

from __future__ import annotations

from dataclasses import dataclass

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.group.member.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId

__all__ = ["MemberContext"]


@dataclass(frozen=True, slots=True)
class MemberContext:
    """
    A member on one session, as its parts see it.

    ``handler`` is the consumer that the member belongs to, ``tracker`` has the offsets of its partitions, and ``tasks``
    runs the tasks that end with the session.
    """

    config: GroupConfig
    layout: GroupLayout
    member_id: MemberId
    session: Session
    handler: PartitionHandler
    tracker: OffsetTracker
    tasks: TaskSet
    metrics: Metrics

    @property
    def group(self) -> str:
        """The group's name."""
        return self.config.group
