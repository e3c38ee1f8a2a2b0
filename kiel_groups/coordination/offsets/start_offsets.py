"""
The first offsets of a group: where partitions start for which none is stored.

A group that is new to a topic starts in all of its partitions at one moment, as its reset policy says. A partition that
gets its first offset later starts at its earliest one: it was added to the topic, or its leader could not be asked at
that moment, and from either the records since are the group's to read. See docs/decisions/0015.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from kiel_groups.coordination.partition_handler import LogOffsets
from kiel_groups.coordination.session.fenced_writes import FencedWriter, Renew, give_up
from kiel_groups.coordination.session.zk_session import Node, Session
from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.group.znodes.contents import encode_offset
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Create, Operation, Put
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some

__all__ = ["LookUp", "StartOffsets"]

log = logging.getLogger(__name__)

#: A new topic's offsets are created in one transaction where they can be: whoever reads in between must not take half
#: of them for a topic that has grown. So many take about 400 kB of the 1 MiB that a server accepts.
MOST_CREATES = 3_000

#: Log lines and errors name so many partitions at most.
_MOST_NAMES = 10

#: Looks up the first ("earliest") or next ("latest") offsets of partitions, as far as they are known.
LookUp = Callable[[Collection[TopicPartition], str], Awaitable[LogOffsets]]


class StartOffsets:
    """
    Looks up and creates the offsets that a group is missing; on one member's session.

    Args:
        session: The member's.
        layout: Where the group's znodes are.
        writer: Writes them, with fences.
        look_up: Asks the brokers.
        reset: The group's ``auto_offset_reset``.
        while_same: For a topic, lets writes pass for as long as no newer topic of that name is heard of.
    """

    def __init__(
        self,
        session: Session,
        layout: GroupLayout,
        writer: FencedWriter,
        look_up: LookUp,
        reset: str,
        while_same: Callable[[str], Renew[object]],
    ) -> None:
        self._session = session
        self._layout = layout
        self._writer = writer
        self._look_up = look_up
        self._reset = reset
        self._while_same = while_same

    async def of_new_logs(self, partitions: Collection[TopicPartition]) -> LogOffsets:
        """Look up where partitions start whose topic was created again: at the beginning, whatever the policy."""
        return await self._look_up(partitions, "earliest")

    async def of_log(self, partitions: Sequence[TopicPartition], *, late: bool) -> LogOffsets:
        """
        Look up where partitions of one topic start that have no offset in a group that is new to it, or ``late``.

        With the policy ``none`` each of them fails with NoOffsetsError, late or not.
        """
        if self._reset == "none":
            return LogOffsets({}, dict.fromkeys(partitions, self._no_offsets(partitions)))
        return await self._look_up(partitions, self._policy(late=late))

    def _policy(self, *, late: bool) -> str:
        # A late one at its latest offset would skip what was written since the group began in the topic.
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
        Create the missing offsets that leaders tell, in ascending order and in one transaction where they fit.

        Offsets are only created: a member that comes second keeps the stored ones. A group starts in all partitions of
        a topic at one moment. After that, a member creates offsets of its own partitions only: if an operator has
        deleted offsets, the owners of the other partitions still know theirs and store them again.

        Args:
            topic: Of which all of these are.
            numbers: Its partitions.
            mine: Those of them that are claimed here and have no offset.

        Returns:
            The partitions of ``mine`` that still have no offset, each with the reason.
        """
        folder = self._layout.topic_offsets(topic)
        stored, node = await self._look_into(folder)
        wanted = set() if stored else await self._claimed_after(topic, numbers, node.pzxid)
        late = len(wanted) < len(numbers)
        wanted |= {partition.partition for partition in mine}
        failures: dict[TopicPartition, KielGroupsError] = {}
        while missing := [number for number in numbers if number in wanted and str(number) not in stored]:
            renew = self._while_same(topic)
            partitions = [TopicPartition(topic, number) for number in missing]
            found, failed = await self.of_log(partitions, late=late)
            failures |= failed
            wanted = {partition.partition for partition in found}
            if not found:
                break
            self._tell(topic, sorted(found), late=late)
            # Whoever is first creates them all; the others look again instead of trying each.
            items = self._creations(found, None if late else node)
            await self._writer.write(items, give_up, renew=renew, most=MOST_CREATES + 2)
            stored, node = await self._look_into(folder)
            if stored:
                # Another was faster, and may know the topic from before it grew: what is missing now is late.
                late = True
        return {p: error for p, error in failures.items() if p in mine and str(p.partition) not in stored}

    def _creations(
        self, offsets: Mapping[TopicPartition, int], folder: Node | None
    ) -> dict[str, tuple[Operation, ...]]:
        """
        The transaction that creates offsets; where the group begins, only in the ``folder`` as it was seen.

        Two members may know the leaders of different partitions, so neither would create a znode that the other one
        creates. The second member would start its partitions later than the group began, and "latest" would skip the
        records in between. So the transaction also writes the folder: its new version makes the second one fail.
        """
        items: dict[str, tuple[Operation, ...]] = {}
        if folder is not None:
            path = self._layout.topic_offsets(min(offsets).topic)
            items[path] = (Put(path, folder.data, folder.version),)
        for partition in sorted(offsets):
            path = self._layout.offset(partition)
            items[path] = (Create(path, encode_offset(offsets[partition])),)
        return items

    def _tell(self, topic: str, partitions: Sequence[TopicPartition], *, late: bool) -> None:
        policy = self._policy(late=late)
        start = counted(partitions, "partition")
        log.info("group %s: %s of %s: start at %s", self._layout.group, start, topic, policy)
        if policy != self._reset:
            log.warning(
                "group %s: %s: these start at the earliest offset, although auto_offset_reset is %r. Other partitions"
                " of %s have offsets of the group, so these were added to the topic, or no leader told their offsets"
                " when the others were stored. Nothing is skipped; records may be delivered that are older than the"
                " group, or that it has processed before",
                self._layout.group,
                some(partitions, _MOST_NAMES),
                self._reset,
                topic,
            )

    async def _look_into(self, folder: str) -> tuple[set[str], Node]:
        """The names in a folder, which is made where it is missing, and then the folder itself."""
        while True:
            # The names are read before the folder: a change in between then makes the folder's pzxid newer, not older.
            # The claims of the caller are older than that change, so they count as made before the group began.
            names, node = await asyncio.gather(self._session.children(folder), self._session.get(folder))
            if node is not None and names is not None:
                return set(names), node
            await self._session.ensure([folder])

    async def _claimed_after(self, topic: str, numbers: Sequence[int], zxid: int) -> set[int]:
        """Which of a topic's partitions nobody owns, or not longer than since then."""
        owners = await self._session.exists_many([self._layout.owner(TopicPartition(topic, n)) for n in numbers])
        return {n for n, owner in zip(numbers, owners, strict=True) if owner is None or owner.czxid > zxid}
