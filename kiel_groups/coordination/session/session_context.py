"""Define what the parts of a process share: across its sessions, on one session, and those of a member."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.group.member.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId

__all__ = ["ProcessContext", "SessionContext", "MemberContext"]

#: The spread of the interval between audits, so that a thousand members do not read their assignments at once.
AUDIT_JITTER = 0.33


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """
    A process in one group, as all of its sessions see it.

    Args:
        config: The settings of the group, and of this process in it.
        zookeeper: How to connect to ZooKeeper.
        metrics: Receives the counters and gauges.
        runtime: Clocks, randomness, threads, and the ZooKeeper client.
    """

    config: GroupConfig
    zookeeper: ZooKeeperConfig
    metrics: Metrics
    runtime: Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """
    A process on one session, as its parts see it.

    ``started_ms`` is when the session was opened, in milliseconds since 1970; ``began_s`` is when the process began to
    join with it, in seconds of boot time. ``tasks`` runs the tasks that end with the session.
    """

    config: GroupConfig
    layout: GroupLayout
    member_id: MemberId
    started_ms: int
    began_s: float
    session: Session
    tasks: TaskSet
    metrics: Metrics
    runtime: Runtime

    @property
    def group(self) -> str:
        """The group's name."""
        return self.config.group

    def audit_interval_s(self) -> float:
        """Return the seconds until the next audit: the configured interval, longer or shorter by up to a third."""
        jitter = self.runtime.uniform(1 - AUDIT_JITTER, 1 + AUDIT_JITTER)
        return self.config.reconcile_interval_ms / 1000 * jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberContext(SessionContext):
    """
    A member on one session, as its parts see it.

    ``handler`` is the consumer that the member belongs to, and ``tracker`` has the offsets of its partitions.
    """

    handler: PartitionHandler
    tracker: OffsetTracker

    @classmethod
    def of(cls, shared: SessionContext, handler: PartitionHandler, tracker: OffsetTracker) -> MemberContext:
        """Add what only a member has to the context of its session."""
        return cls(
            **{field.name: getattr(shared, field.name) for field in fields(SessionContext)},
            handler=handler,
            tracker=tracker,
        )
