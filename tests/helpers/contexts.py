"""The contexts of a process, of its session and of its member, without the objects that a test does not use."""

from __future__ import annotations

from typing import Any, cast

from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import MemberContext, ProcessContext, SessionContext, TaskSet

__all__ = ["member_context", "process_context", "session_context"]


def process_context(
    config: GroupConfig | None = None,
    zookeeper: ZooKeeperConfig | None = None,
    *,
    metrics: Metrics | None = None,
    runtime: Runtime | None = None,
) -> ProcessContext:
    """Return the context of a process, by default one of group "g" that never connects."""
    config, zookeeper = config or GroupConfig(group="g"), zookeeper or ZooKeeperConfig(hosts="h:1")
    return ProcessContext(config, zookeeper, metrics or Metrics(), runtime or Runtime())


def session_context(
    session: object,
    *,
    config: GroupConfig | None = None,
    member_id: str = "m",
    tasks: TaskSet | None = None,
    metrics: Metrics | None = None,
    runtime: Runtime | None = None,
) -> SessionContext:
    """Return the context of a process, by default the member "m" of group "g", on a session, which may be a fake."""
    return SessionContext(**_fields(session, config, member_id, tasks, metrics, runtime))


def member_context(
    session: object, tracker: OffsetTracker, handler: object = None, runtime: Runtime | None = None
) -> MemberContext:
    """Return the context of the member "m" of group "g" on a session, which may be a fake."""
    return MemberContext(
        **_fields(session, None, "m", None, None, runtime), handler=cast(Any, handler), tracker=tracker
    )


def _fields(
    session: object,
    config: GroupConfig | None,
    member_id: str,
    tasks: TaskSet | None,
    metrics: Metrics | None,
    runtime: Runtime | None,
) -> dict[str, Any]:
    config = config or GroupConfig(group="g")
    return {
        "config": config,
        "layout": GroupLayout(config.group),
        "member_id": member_id,
        "started_ms": 0,
        "began_s": 0.0,
        "session": session,
        "tasks": tasks or TaskSet(print),
        "metrics": metrics or Metrics(),
        "runtime": runtime or Runtime(),
    }
