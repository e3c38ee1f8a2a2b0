"""
Look up and create the first offsets of a group, for partitions without a stored offset.

A group that is new to a topic starts in all of its partitions at one moment, as its reset policy says. A partition that
gets its first offset later starts at its earliest one: either it was added to the topic, or its leader did not answer
at that moment. In both cases the group must read the records written since. See docs/decisions/0015.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.partition_handler import LogOffsets
from kiel_groups.coordination.session.fenced_writes import FencedWriter, give_up
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.coordination.session.zk_session import Node
from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.group.znodes.contents import encode_offset
from kiel_groups.group.znodes.transactions import Create, Operation, Put
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some

__all__ = ["StartOffsets"]

log = logging.getLogger(__name__)

#: The most offsets of a topic that one transaction creates. A reader that saw only some of a topic's offsets would
#: conclude that the topic has grown. 3,000 offsets take about 400 kB of the 1 MiB that a server accepts.
MOST_CREATES = 3_000

#: The most partitions that a log line or an error names.
_MOST_NAMES = 10


class StartOffsets:
    """
    Looks up and creates a group's missing offsets, on one member's session.

    Args:
        context: The member; its handler asks the brokers, and its group's ``auto_offset_reset`` is the reset policy.
        writer: The member's fenced writer.
        topics: Drops writes once a topic was created again.
    """

    def __init__(self, context: MemberContext, writer: FencedWriter, topics: TopicIncarnations) -> None:
        self._session = context.session
        self._layout = context.layout
        self._writer = writer
        self._look_up = context.handler.log_offsets
        self._reset = context.config.auto_offset_reset
        self._topics = topics

    async def of_new_logs(self, partitions: Collection[TopicPartition]) -> LogOffsets:
        """Look up the earliest offsets of partitions whose topic was created again, whatever the reset policy is."""
        return await self._look_up(partitions, "earliest")

    async def of_log(self, partitions: Sequence[TopicPartition], *, late: bool) -> LogOffsets:
        """
        Look up start offsets of partitions of one topic that have no stored offset.

        ``late`` means that the group has already started in the topic. With the policy ``none``, each of the partitions
        fails with NoOffsetsError, late or not.
        """
        if self._reset == "none":
            return LogOffsets({}, dict.fromkeys(partitions, self._no_offsets(partitions)))
        return await self._look_up(partitions, self._policy(late=late))

    def _policy(self, *, late: bool) -> str:
        # A late partition must not start at "latest": that skips the records since the group started in the topic.
        return "earliest" if late else self._reset

    def _no_offsets(self, partitions: Sequence[TopicPartition]) -> NoOffsetsError:
        folder = self._layout.topic_offsets(partitions[0].topic)
        return NoOffsetsError(
            f"group {self._layout.group} has no offsets of {some(partitions, _MOST_NAMES)}, and auto_offset_reset is"
            f" 'none'; write them to {folder} first, or choose 'earliest' or 'latest'"
        )

    async def create(
        self, topic: str, numbers: Sequence[int], mine: Collection[TopicPartition]
    ) -> dict[TopicPartition, KielGroupsError]:
        """
        Create the missing offsets that leaders return, in ascending order, and in one transaction if they fit.

        Stored offsets are not changed, so a second member keeps those of the first. The first member creates the
        offsets of all partitions, because a group starts in all partitions of a topic at one moment. After that, a
        member creates offsets of its own partitions only: if an operator has deleted offsets, the owners of the other
        partitions still know theirs and store them again.

        Args:
            topic: The topic of all of these partitions.
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
            found, failed = await self.of_log(partitions, late=late)
            failures |= failed
            wanted = {partition.partition for partition in found}
            if not found:
                break
            self._log_start(topic, sorted(found), late=late)
            # The first member creates all offsets. Others are refused, and read again instead of trying each offset.
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
        Build the items that create offsets; they succeed only if a given ``folder`` is unchanged.

        The caller passes the folder if the group starts in the topic. Two members may then reach the leaders of
        different partitions, and would create different znodes. The second member's partitions would start later than
        the group, and "latest" would skip the records in between. So each transaction also writes the folder, whose
        new version makes the second transaction fail.
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
        """Read the names of the offset znodes of a topic, and their parent znode, which is created if missing."""
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
