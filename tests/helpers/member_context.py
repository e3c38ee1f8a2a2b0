"""The context of a member without a consumer, for tests of the parts that share it."""

from __future__ import annotations

from typing import Any, cast

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.session.member_context import MemberContext
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.group.member.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics

__all__ = ["member_context"]


def member_context(session: object, tracker: OffsetTracker, handler: object = None) -> MemberContext:
    """Return the context of the member "m" of group "g" on a session, which may be a fake."""
    return MemberContext(
        GroupConfig(group="g"),
        GroupLayout("g"),
        "m",
        cast(Any, session),
        cast(Any, handler),
        tracker,
        TaskSet(print),
        Metrics(),
    )
