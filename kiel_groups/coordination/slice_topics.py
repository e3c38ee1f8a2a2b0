"""Reporting slices that name topics which their member has not subscribed to; such partitions are never claimed."""

from __future__ import annotations

import logging

from kiel_groups.coordination.session import Node, Session
from kiel_groups.errors import ProtocolError
from kiel_groups.group.layout import GroupLayout
from kiel_groups.group.znodes import MemberInfo, Slice
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId

__all__ = ["SliceTopics"]

log = logging.getLogger(__name__)

#: How many topics a log line names.
MOST_NAMED = 5


class SliceTopics:
    """Compares the slices of one member with its subscription."""

    def __init__(self, session: Session, layout: GroupLayout, member_id: MemberId, metrics: Metrics) -> None:
        self._session = session
        self._group = layout.group
        self._member_id = member_id
        self._path = layout.member(member_id)
        self._metrics = metrics
        #: The change by which the slice came that was reported last: it is read again at every look.
        self._reported_zxid = 0

    async def check(self, node: Node, found: Slice, subscribed: frozenset[str]) -> None:
        """
        Log and count a slice that names other topics than the member subscribes to, once for each time it is written.

        A slice that is older than the member's registration is exempt: it was made for the subscription before, and the
        leader plans again. So is one that the registration allows: the member is about to register anew.
        """
        if node.mzxid == self._reported_zxid or not ({p.topic for p in found.partitions} - subscribed):
            return
        own = await self._session.get(self._path)
        # zxids are the order of all changes in ZooKeeper.
        if own is None or node.mzxid < own.czxid:
            return
        try:
            allowed = subscribed.union(MemberInfo.parse(self._member_id, own.data, self._path).subscription)
        except ProtocolError:
            # The leader reports a registration that cannot be read.
            return
        foreign = [partition for partition in found.partitions if partition.topic not in allowed]
        if foreign:
            self._reported_zxid = node.mzxid
            self._report(found, len(foreign), sorted({partition.topic for partition in foreign}))

    def _report(self, found: Slice, count: int, topics: list[str]) -> None:
        self._metrics.count("slices_of_other_topics")
        log.error(
            "group %s: the slice of %s, generation %d, names %d partitions of topics that this member has not"
            " subscribed to: %s%s; they are not claimed. The leader corrects that with its next plan, whether it had"
            " not seen the latest subscription or somebody else has written the znode",
            self._group,
            self._member_id,
            found.generation,
            count,
            ", ".join(topics[:MOST_NAMED]),
            ", …" if len(topics) > MOST_NAMED else "",
        )
