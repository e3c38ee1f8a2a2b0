"""Reports assignments with topics that the member has not subscribed to; the member never claims their partitions."""

from __future__ import annotations

import asyncio
import logging

from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.coordination.session.zk_session import Node
from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import MemberAssignment, MemberInfo
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

__all__ = ["UnsubscribedTopics"]

log = logging.getLogger(__name__)

#: A leader reads a new registration and plans again within this time, in seconds. Until then, an assignment that names
#: other topics is not an error.
REPLANNED_S = 10.0

#: The most topics that a log line names.
MOST_NAMED = 5


class UnsubscribedTopics:
    """Compares the assignments of one member with its subscription."""

    def __init__(self, context: SessionContext) -> None:
        self._session = context.session
        self._group = context.group
        self._member_id = context.member_id
        self._path = context.layout.member(context.member_id)
        self._metrics = context.metrics
        #: The zxid and the log level of the last report: the same assignment is read many times and reported once.
        self._reported: tuple[int, int] = (0, 0)
        #: Since when assignments have named other topics, on the event loop's clock; None if the last one did not.
        self._since_s: float | None = None

    async def check(self, node: Node, found: MemberAssignment, subscribed: frozenset[str]) -> None:
        """
        Log an assignment that names topics the member does not subscribe to; count it once each time it is written.

        The log line is a warning at first: a leader that has not read the latest registration writes such an assignment
        and soon corrects it. If assignments have named other topics for ``REPLANNED_S``, it is an error.

        An assignment older than the member's registration is exempt: it was made for the previous subscription, and the
        leader plans again. An assignment that the registration allows is exempt, too: the member will register again.
        """
        unsubscribed = await self._unsubscribed(node, found, subscribed)
        if not unsubscribed:
            self._since_s = None
            return
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
        level = logging.ERROR if now_s - self._since_s >= REPLANNED_S else logging.WARNING
        if node.mzxid != self._reported[0]:
            self._metrics.count("assignments_of_unsubscribed_topics")
        if (node.mzxid, level) != self._reported:
            self._reported = (node.mzxid, level)
            self._report(level, found, len(unsubscribed), sorted({partition.topic for partition in unsubscribed}))

    async def _unsubscribed(
        self, node: Node, found: MemberAssignment, subscribed: frozenset[str]
    ) -> list[TopicPartition]:
        """Return the partitions whose topics neither ``subscribed`` nor the registration names; [] if exempt."""
        if not ({partition.topic for partition in found.partitions} - subscribed):
            return []
        own = await self._session.get(self._path)
        # zxids order all changes in ZooKeeper: the assignment is older than the registration.
        if own is None or node.mzxid < own.czxid:
            return []
        try:
            allowed = subscribed.union(MemberInfo.parse(self._member_id, own.data, self._path).subscription)
        except ProtocolError:
            # The leader reports a registration that cannot be read.
            return []
        return [partition for partition in found.partitions if partition.topic not in allowed]

    def _report(self, level: int, found: MemberAssignment, count: int, topics: list[str]) -> None:
        log.log(
            level,
            "group %s: the assignment of %s, generation %d, names %s of topics that this member has not"
            " subscribed to: %s%s; they are not claimed. The leader corrects that with its next plan, whether it had"
            " not seen the latest subscription or the znode was written from outside",
            self._group,
            self._member_id,
            found.generation,
            counted(count, "partition"),
            ", ".join(topics[:MOST_NAMED]),
            ", …" if len(topics) > MOST_NAMED else "",
        )
