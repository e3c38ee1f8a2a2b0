"""Reads the leaders of a member's partitions in ZooKeeper, because a deposed broker may still name itself."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from kiel_groups.config import HostPort
from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.errors import CoordinationError, ProtocolError
from kiel_groups.group.znodes.contents import parse_broker, parse_leader, whole_number
from kiel_groups.group.znodes.layout import BROKER_IDS, partition_state_path
from kiel_groups.model import TopicPartition

__all__ = ["PartitionLeaders", "registered_brokers"]

log = logging.getLogger(__name__)


async def registered_brokers(session: Session) -> dict[int, HostPort]:
    """Return the addresses of the brokers that are registered at this moment, by broker id, ascending."""
    numbers = map(whole_number, await session.children(BROKER_IDS) or [])
    ids = sorted(number for number in numbers if number is not None)
    paths = [f"{BROKER_IDS}/{node_id}" for node_id in ids]
    found = {}
    for node_id, path, node in zip(ids, paths, await session.get_many(paths), strict=True):
        try:
            if node is not None:
                found[node_id] = parse_broker(node.data, path)
        except ProtocolError as error:
            log.warning("%s; ignoring that broker", error)
    return found


class PartitionLeaders:
    """
    Reads the leaders of a member's partitions in ZooKeeper, and passes them to the handler.

    A broker that loses only its connection to ZooKeeper is not notified that it was deposed. It keeps answering fetches
    of partitions that another broker leads, and its consumers miss the records that the new leader accepts. A
    partition's ``state`` znode names the elected leader.
    """

    def __init__(self, context: MemberContext, writer: FencedWriter) -> None:
        self._group = context.group
        self._session = context.session
        self._handler = context.handler
        self._metrics = context.metrics
        self._writer = writer
        self._is_refused = False

    async def pass_on(self, partitions: Collection[TopicPartition]) -> None:
        """
        Read the leaders of these partitions, and pass them on to the handler.

        A leader that is not registered is left out: if all replicas are dead, the znode keeps the last leader, or −1. A
        partition whose znode cannot be parsed is left out, too. For partitions that are left out, the brokers' metadata
        applies. If an ACL denies reading, the metadata applies to all partitions and the member continues, because it
        needs these znodes for nothing else.

        Raises:
            SessionLostError: The session is over.
        """
        if not partitions:
            self._handler.leaders_changed({}, {})
            return
        # A server that lags behind could name a leader that brokers already know to be deposed.
        await self._writer.prove()
        try:
            leaders, brokers = await self._read(sorted(partitions))
        except CoordinationError as error:
            if error.retriable:
                raise
            leaders, brokers = {}, {}
            self._metrics.count("leaders_unreadable")
            if not self._is_refused:
                self._is_refused = True
                text = "group %s: the leaders of partitions cannot be read: %s; using those that brokers name"
                log.warning(text, self._group, error)
        self._handler.leaders_changed(leaders, brokers)

    async def _read(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[int, HostPort]]:
        """Return the registered leaders of partitions, and the addresses of the registered brokers."""
        paths = [partition_state_path(partition) for partition in partitions]
        brokers = await registered_brokers(self._session)
        leaders: dict[TopicPartition, int] = {}
        for partition, path, node in zip(partitions, paths, await self._session.get_many(paths), strict=True):
            try:
                leader = -1 if node is None else parse_leader(node.data, path)
            except ProtocolError as error:
                log.warning("group %s: %s; using the leader that brokers name", self._group, error)
                self._metrics.count("znodes_unreadable")
            else:
                if leader in brokers:
                    leaders[partition] = leader
        return leaders, brokers
