"""Open claims: find or create the stored offset of each claimed partition, and rewrite it unchanged in ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.group.partition_offsets import Commit, StartOrigin, StartPosition, StoredOffset
from kiel_groups.group.znodes.contents import encode_offset, parse_topic
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import Create, Operation, Put
from kiel_groups.members.offsets.owned_offsets import Starts
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import OffsetZnodes
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.fenced_writes import FencedWriter, Renew, give_up
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import MemberContext

log = logging.getLogger(__name__)


#: The most offsets of a topic that one transaction creates. A reader that saw only some of a topic's offsets would
#: conclude that the topic has grown. 3,000 offsets take about 400 kB of the 1 MiB that a server accepts.
MOST_CREATES = 3_000

#: The most partitions that a log line or an error names.
_MOST_NAMES = 10


class _ClaimOffsets(NamedTuple):
    """
    The claims of one topic, divided by whether their offsets can be rewritten now.

    ``created`` is the topic's creation zxid, 0 if the topic does not exist. ``ready`` are the partitions to rewrite,
    and ``stored`` has their offsets, if these were read already. ``failures`` has the reason for each claim that has no
    offset.
    """

    created: int
    ready: list[TopicPartition]
    stored: dict[TopicPartition, StoredOffset]
    failures: dict[TopicPartition, KielGroupsError]


@dataclass(eq=False, slots=True)
class _Rewrite:
    """Claims of one topic whose offsets must be rewritten. ``rewritten`` has the result, or None before the rewrite."""

    claims: _ClaimOffsets
    renew: Renew[object]
    rewritten: dict[TopicPartition, tuple[int, int]] | None = None


class ClaimOpener:
    """
    Opens the claims of one member on its session: finds or creates the offsets, and rewrites these offsets unchanged.

    After that, the writes of former owners fail, because the offset znode has a new version.

    Args:
        context: The member. The member's handler asks the brokers. The group's ``auto_offset_reset`` is the reset
            policy.
        writer: Writes in transactions that require the member znode to exist.
        topics: Drops writes once a topic was created again.
        znodes: The offset znodes.
    """

    def __init__(
        self, context: MemberContext, writer: FencedWriter, topics: TopicIncarnations, znodes: OffsetZnodes
    ) -> None:
        self._session = context.session
        self._layout = context.layout
        self._tracker = context.tracker
        self._handler = context.handler
        self._reset = context.config.auto_offset_reset
        self._writer = writer
        self._topics = topics
        self._znodes = znodes
        #: The topics whose offsets are rewritten, or wait for that; and the lock held by the rewrite under way.
        self._rewrites: list[_Rewrite] = []
        self._rewriting = asyncio.Lock()

    async def open(self, topic: str, partitions: Sequence[TopicPartition]) -> Starts:
        """
        Open freshly claimed partitions of a topic, given in ascending order, and return their start positions.

        If some partitions have a valid stored offset, the opener opens only these partitions, because it need not ask a
        broker. Otherwise, the opener looks up missing offsets for the whole topic, and stores the offsets that leaders
        return. So the group starts in all partitions at one moment, and tools that count offset znodes see all of them.

        Raises:
            NoOffsetsError: Brokers store the commits, and refuse the group's offsets permanently.
        """
        if self._tracker.rules.through_brokers:
            # A broker that refuses to read the offsets would also refuse to write them. The answer is not used: a
            # broker also reports "no offset" for a topic that it does not know yet.
            await self._handler.fetch_offsets(partitions)
        while True:
            await self._topics.catch_up()
            seen = self._topics.creation(topic)
            self._tracker.claim(partitions, seen)
            renew = self._topics.unless_recreated(topic)
            claims = await self._find_or_create(topic, partitions)
            rewritten = await self._rewrite(_Rewrite(claims, renew))
            if self._topics.creation(topic) == seen:
                break
        origin = StartOrigin.STORED if claims.stored else StartOrigin.FIRST
        opened = sorted(rewritten)
        owners = await self._session.exists_many([self._layout.owner(partition) for partition in opened])
        found = {
            partition: StartPosition(*rewritten[partition], owner.czxid, claims.created, origin)
            for partition, owner in zip(opened, owners, strict=True)
            if owner is not None and owner.owner == self._session.id
        }
        return Starts(found, claims.failures)

    async def _rewrite(self, mine: _Rewrite) -> dict[TopicPartition, tuple[int, int]]:
        """
        Rewrite the offsets of one topic, together with the offsets of other topics that wait for a rewrite.

        This saves transactions: a member of a large group may own one partition in each of a hundred topics.
        """
        self._rewrites.append(mine)
        try:
            async with self._rewriting:
                if mine.rewritten is None:
                    together = [each for each in self._rewrites if each.rewritten is None]
                    renews = {partition: each.renew for each in together for partition in each.claims.ready}
                    known = {partition: found for each in together for partition, found in each.claims.stored.items()}
                    rewritten = await self._znodes.rewrite(sorted(renews), known, lambda p, write: renews[p](p, write))
                    for each in together:
                        each.rewritten = {p: rewritten[p] for p in each.claims.ready if p in rewritten}
        finally:
            self._rewrites.remove(mine)
        assert mine.rewritten is not None
        return mine.rewritten

    async def _find_or_create(self, topic: str, mine: Sequence[TopicPartition]) -> _ClaimOffsets:
        """
        Return the partitions of ``mine`` that have valid offsets. If no partition of ``mine`` has a valid offset,
        create the offsets.

        The created offsets are those that the partitions' leaders return for the reset policy. If a stored offset
        belongs to a deleted topic of the same name, the new topic's earliest offset replaces the stored offset,
        regardless of the policy. With the missing offsets of ``mine``, the method also creates the offsets of
        partitions that no member owns yet.
        """
        renew = self._topics.unless_recreated(topic)
        topic_node, nodes = await asyncio.gather(
            self._session.exists(topic_path(topic)),
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
            # These partitions start at their earliest offset, regardless of the reset policy.
            offsets = await self._handler.log_offsets(outdated, "earliest")
            await self._znodes.store_starts(
                topic, offsets.found, lambda p, found: found.version == stored[p].version, renew
            )
            failures |= offsets.failures
        if unreadable := [partition for partition in stored if partition not in outdated]:
            offsets = await self._of_log(unreadable, late=True)
            await self._znodes.put({p: Commit(offset, stored[p].version) for p, offset in offsets.found.items()}, renew)
            failures |= offsets.failures
        if missing := [partition for partition in mine if partition not in stored]:
            topic_node = await self._session.get(topic_path(topic))
            numbers = parse_topic(topic_node.data, topic_path(topic)) if topic_node is not None else ()
            numbers = tuple(sorted({*numbers, *(partition.partition for partition in mine)}))
            failures |= await self._create(topic, numbers, missing)
        return _ClaimOffsets(created, [partition for partition in mine if partition not in failures], {}, failures)

    # ------------------------------------------------------------------ the first offsets of a group
    #
    # A group that is new to a topic starts in all of its partitions at one moment, as its reset policy says. A
    # partition that gets its first offset later starts at its earliest one: either it was added to the topic, or its
    # leader did not answer at that moment. In both cases the group must read the records written since. See
    # docs/decisions/0015.

    async def _of_log(self, partitions: Sequence[TopicPartition], *, late: bool) -> LogOffsets:
        """
        Look up start offsets of partitions of one topic that have no stored offset.

        ``late`` means that the group has already started in the topic. With the policy ``none``, each of the partitions
        fails with NoOffsetsError, late or not.
        """
        if self._reset == "none":
            return LogOffsets({}, dict.fromkeys(partitions, self._no_offsets(partitions)))
        return await self._handler.log_offsets(partitions, self._policy(late=late))

    def _policy(self, *, late: bool) -> str:
        # A late partition must not start at "latest": that skips the records since the group started in the topic.
        return "earliest" if late else self._reset

    def _no_offsets(self, partitions: Sequence[TopicPartition]) -> NoOffsetsError:
        folder = self._layout.topic_offsets(partitions[0].topic)
        return NoOffsetsError(
            f"group {self._layout.group} has no offsets of {some(partitions, _MOST_NAMES)}, and auto_offset_reset is"
            f" 'none'; write them to {folder} first, or choose 'earliest' or 'latest'"
        )

    async def _create(
        self, topic: str, numbers: Sequence[int], mine: Collection[TopicPartition]
    ) -> dict[TopicPartition, KielGroupsError]:
        """
        Create the missing offsets that leaders return, in ascending order, and in one transaction if the offsets fit.

        Stored offsets are not changed, so a second member keeps the offsets of the first member. The first member
        creates the offsets of all partitions, because a group starts in all partitions of a topic at one moment. After
        that, a member creates offsets of its own partitions only: if an operator has deleted offsets, the owners of the
        other partitions still know their offsets and store them again.

        Args:
            topic: The topic of these partitions.
            numbers: The numbers of the topic's partitions.
            mine: The partitions without an offset that this member has claimed.

        Returns:
            The partitions of ``mine`` that still have no offset, each with the reason.
        """
        folder = self._layout.topic_offsets(topic)
        stored, node = await self._read_folder(folder)
        wanted = set() if stored else await self._claimed_after(topic, numbers, node.pzxid)
        late = len(wanted) < len(numbers)
        wanted |= {partition.partition for partition in mine}
        failures: dict[TopicPartition, KielGroupsError] = {}
        while missing := [number for number in numbers if number in wanted and str(number) not in stored]:
            renew = self._topics.unless_recreated(topic)
            partitions = [TopicPartition(topic, number) for number in missing]
            found, failed = await self._of_log(partitions, late=late)
            failures |= failed
            wanted = {partition.partition for partition in found}
            if not found:
                break
            self._log_start(topic, sorted(found), late=late)
            # The first member creates all offsets. Other members are refused, and read again instead of trying each
            # offset.
            items = self._creations(found, None if late else node)
            await self._writer.write(items, give_up, renew=renew, most=MOST_CREATES + 2)
            stored, node = await self._read_folder(folder)
            if stored:
                # Another member was faster, perhaps before the topic grew: a partition without an offset is late now.
                late = True
        return {p: error for p, error in failures.items() if p in mine and str(p.partition) not in stored}

    def _creations(
        self, offsets: Mapping[TopicPartition, int], folder: Node | None
    ) -> dict[str, tuple[Operation, ...]]:
        """
        Build the items that create offsets. If ``folder`` is given, the items succeed only if that znode is unchanged.

        ``folder`` is the parent znode of the topic's offset znodes. The caller passes ``folder`` if the group starts in
        the topic. Two members may then reach the leaders of different partitions, and would create different znodes.
        The second member's partitions would start later than the group, and "latest" would skip the records in between.
        So each transaction also writes the folder. The folder's new version makes the second transaction fail.
        """
        items: dict[str, tuple[Operation, ...]] = {}
        if folder is not None:
            path = self._layout.topic_offsets(min(offsets).topic)
            items[path] = (Put(path, folder.data, folder.version),)
        for partition in sorted(offsets):
            path = self._layout.offset(partition)
            items[path] = (Create(path, encode_offset(offsets[partition])),)
        return items

    def _log_start(self, topic: str, partitions: Sequence[TopicPartition], *, late: bool) -> None:
        policy = self._policy(late=late)
        start = counted(partitions, "partition")
        log.info("group %s: %s of %s without a stored offset: starting at %s", self._layout.group, start, topic, policy)
        if policy != self._reset:
            log.warning(
                "group %s: %s: starting at the earliest offset, although auto_offset_reset is %r. Other partitions"
                " of %s have offsets of the group, so these were added to the topic, or no leader returned their"
                " offsets when the others were stored. Nothing is skipped; records may be delivered that are older than"
                " the group, or that it has processed before",
                self._layout.group,
                some(partitions, _MOST_NAMES),
                self._reset,
                topic,
            )

    async def _read_folder(self, folder: str) -> tuple[set[str], Node]:
        """Return the names of a topic's offset znodes, and the parent znode. Create a missing parent znode."""
        while True:
            # The names are read before the folder, so a change in between makes its pzxid too new, not too old. Claims
            # older than that change then count as opened, so the missing offsets are late ones: nothing is skipped.
            names, node = await asyncio.gather(self._session.children(folder), self._session.get(folder))
            if node is not None and names is not None:
                return set(names), node
            await self._session.ensure([folder])

    async def _claimed_after(self, topic: str, numbers: Sequence[int], zxid: int) -> set[int]:
        """Return the partitions of a topic that have no owner, or that were claimed after ``zxid``."""
        owners = await self._session.exists_many([self._layout.owner(TopicPartition(topic, n)) for n in numbers])
        return {n for n, owner in zip(numbers, owners, strict=True) if owner is None or owner.czxid > zxid}
