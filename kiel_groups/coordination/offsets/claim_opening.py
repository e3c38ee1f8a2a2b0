"""
Open claims: find or create the stored offset of each claimed partition, and rewrite it unchanged.

The new version of the offset znode fences every older writer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from kiel_groups.coordination.offsets.broker_commits import BrokerCommits
from kiel_groups.coordination.offsets.new_logs import NewLogs
from kiel_groups.coordination.offsets.offset_store import Starts
from kiel_groups.coordination.offsets.offset_znodes import OffsetZnodes
from kiel_groups.coordination.offsets.start_offsets import StartOffsets
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.member.partition_offsets import Commit, StartOrigin, StartPosition, StoredOffset
from kiel_groups.group.znodes.contents import parse_topic
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.model import TopicPartition

__all__ = ["ClaimOpener"]


class _ClaimOffsets(NamedTuple):
    """
    The claims of one topic, divided by whether their offsets can be rewritten now.

    ``created`` is the topic's creation zxid, 0 if the topic is gone. ``ready`` are the partitions to rewrite, and
    ``stored`` their offsets as far as they were read already. ``failures`` has the reason for each claim without one.
    """

    created: int
    ready: list[TopicPartition]
    stored: dict[TopicPartition, StoredOffset]
    failures: dict[TopicPartition, KielGroupsError]


class _OpenedClaims(NamedTuple):
    """The opened claims of a topic with their offsets and new versions, and the reasons why others have no offset."""

    created: int
    versions: dict[TopicPartition, int]
    offsets: dict[TopicPartition, int]
    origin: StartOrigin
    failures: dict[TopicPartition, KielGroupsError]


class ClaimOpener:
    """Opens the claims of one member on its session."""

    def __init__(
        self,
        context: MemberContext,
        znodes: OffsetZnodes,
        brokers: BrokerCommits | None,
        topics: TopicIncarnations,
        start_offsets: StartOffsets,
        new_logs: NewLogs,
    ) -> None:
        self._session = context.session
        self._layout = context.layout
        self._tracker = context.tracker
        self._znodes = znodes
        self._brokers = brokers
        self._topics = topics
        self._start_offsets = start_offsets
        self._new_logs = new_logs

    async def start(self, partitions: Collection[TopicPartition]) -> Starts:
        """
        Open freshly claimed partitions, and return their start positions.

        First, brokers are asked whether they serve the group's offsets, if they store the commits.

        If some partitions of a topic have a valid stored offset, only those are opened, because they need no broker.
        Otherwise, missing offsets are looked up for the whole topic, and stored as far as leaders return them: so the
        group starts at one moment, and tools that count offset znodes see all of them. The member rewrites the offsets
        of its own claims unchanged: the new version fences every older writer.
        """
        if self._brokers is not None:
            await self._brokers.check_served(partitions)
        by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition in sorted(partitions):
            by_topic[partition.topic].append(partition)
        starts = Starts({}, {})
        for topic, listed in by_topic.items():
            claims = await self._open_claims(topic, listed)
            starts.failures.update(claims.failures)
            opened = sorted(claims.versions)
            owners = await self._session.exists_many([self._layout.owner(partition) for partition in opened])
            for partition, owner in zip(opened, owners, strict=True):
                if owner is not None and owner.owner == self._session.id:
                    version, origin = claims.versions[partition], claims.origin
                    starts.found[partition] = StartPosition(
                        claims.offsets[partition], version, owner.czxid, claims.created, origin
                    )
        return starts

    async def _find_or_create(self, topic: str, mine: Sequence[TopicPartition]) -> _ClaimOffsets:
        """
        Return the partitions of ``mine`` with valid offsets; if there are none, create offsets that leaders return.

        Offsets of partitions that no member owns yet are created together with the missing ones of ``mine``.
        """
        renew = self._topics.unless_recreated(topic)
        topic_node, nodes = await asyncio.gather(
            self._session.get(topic_path(topic)),
            self._session.get_many([self._layout.offset(partition) for partition in mine]),
        )
        created = 0 if topic_node is None else topic_node.czxid
        stored = {p: self._znodes.parse(p, node) for p, node in zip(mine, nodes, strict=True) if node is not None}
        # Offsets older than the topic belong to a deleted topic of the same name.
        outdated = [p for p, found in stored.items() if not self._tracker.may_store(p) or found.mzxid < created]
        sound = {p: found for p, found in stored.items() if found.offset is not None and p not in outdated}
        if sound:
            return _ClaimOffsets(created, list(sound), sound, {})
        failures: dict[TopicPartition, KielGroupsError] = {}
        if outdated:
            offsets = await self._start_offsets.of_new_logs(outdated)
            await self._new_logs.store_starts(
                topic, offsets.found, lambda p, found: found.version == stored[p].version, renew
            )
            failures |= offsets.failures
        if unreadable := [partition for partition in stored if partition not in outdated]:
            offsets = await self._start_offsets.of_log(unreadable, late=True)
            await self._znodes.put({p: Commit(offset, stored[p].version) for p, offset in offsets.found.items()}, renew)
            failures |= offsets.failures
        if missing := [partition for partition in mine if partition not in stored]:
            numbers = parse_topic(topic_node.data, topic_path(topic)) if topic_node is not None else ()
            numbers = tuple(sorted({*numbers, *(partition.partition for partition in mine)}))
            failures |= await self._start_offsets.create(topic, numbers, missing)
        return _ClaimOffsets(created, [partition for partition in mine if partition not in failures], {}, failures)

    async def _open_claims(self, topic: str, partitions: Sequence[TopicPartition]) -> _OpenedClaims:
        """Open the claims of one topic: find or create their offsets, and rewrite those that are known."""
        while True:
            await self._topics.catch_up()
            seen = self._topics.creation(topic)
            self._tracker.claim(partitions, seen)
            renew = self._topics.unless_recreated(topic)
            claims = await self._find_or_create(topic, partitions)
            rewritten = await self._znodes.rewrite(claims.ready, claims.stored, renew)
            if self._topics.creation(topic) == seen:
                origin = StartOrigin.STORED if claims.stored else StartOrigin.FIRST
                return _OpenedClaims(claims.created, rewritten.versions, rewritten.offsets, origin, claims.failures)
