"""Open claims: find or create the stored offset of each claimed partition, and rewrite it unchanged."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.group.partition_offsets import Commit, StartOrigin, StartPosition, StoredOffset
from kiel_groups.group.znodes.contents import encode_offset, parse_topic
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import Create, Operation, Put
from kiel_groups.members.offsets.owned_offsets import Starts
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import BrokerCommits, OffsetZnodes
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.fenced_writes import FencedWriter, Renew, give_up
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import MemberContext

__all__ = [
    "NewLogs",
    "StartOffsets",
    "ClaimOpener",
]

log = logging.getLogger(__name__)


ANY_VERSION = -1


class NewLogs:
    """Stores the start offsets of new logs for one group, on one member's session."""

    def __init__(self, context: MemberContext, znodes: OffsetZnodes, topics: TopicIncarnations) -> None:
        self._group = context.group
        self._rules = context.tracker.rules
        self._metrics = context.metrics
        self._znodes = znodes
        self._topics = topics

    async def store_starts(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> dict[TopicPartition, StoredOffset]:
        """
        Store the ``earliest`` offsets of a topic that was deleted and created again.

        Each replaces the version that was just read. An offset that another writer has stored since the topic was
        created is kept, because an operator has set it in the new log; not so if brokers store the commits, because
        the writer might be a late broker.

        Args:
            topic: The topic.
            earliest: The first offset of each partition's new log.
            is_known: Returns whether this member has seen, or written, a stored offset in the old log.
            renew: Drops the writes once the topic was created again.

        Returns:
            The offsets that are stored now, without those that ``renew`` dropped.
        """
        created = self._topics.creation(topic)
        current, waiting = dict[TopicPartition, StoredOffset](), sorted(earliest)
        while waiting:
            for partition, found in (stored := await self._znodes.read(waiting)).items():
                is_set = found.offset is not None and found.mzxid > created and not is_known(partition, found)
                if is_set and not self._rules.through_brokers:
                    current[partition] = found
            versions = {p: stored[p].version if p in stored else ANY_VERSION for p in waiting if p not in current}
            commits = {p: Commit(earliest[p], version) for p, version in versions.items()}
            written = await self._znodes.put(commits, renew)
            current |= written.stored
            waiting = sorted(written.found)
            if written.stored:
                self._metrics.count("offsets_of_deleted_topic", len(written.stored))
                log.warning(
                    "group %s: topic %s was deleted and created again; %s at the earliest offset",
                    self._group,
                    topic,
                    counted(written.stored, "partition starts", "partitions start"),
                )
        return current


# Look up and create the first offsets of a group, for partitions without a stored offset.
#
# A group that is new to a topic starts in all of its partitions at one moment, as its reset policy says. A partition
# that gets its first offset later starts at its earliest one: either it was added to the topic, or its leader did not
# answer at that moment. In both cases the group must read the records written since. See docs/decisions/0015.


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


# Open claims: find or create the stored offset of each claimed partition, and rewrite it unchanged.
#
# The new version of the offset znode fences every older writer.


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
