"""
Store the offsets of a group in the offset znodes of Kafka 0.8: by the member itself, or by brokers on its request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from kiel_groups.errors import ProtocolError
from kiel_groups.group.partition_offsets import Commit, Finding, StoredOffset
from kiel_groups.group.znodes.contents import encode_offset, parse_offset, whole_number
from kiel_groups.group.znodes.transactions import Check, Create, Delete, Failure, Operation, Put
from kiel_groups.members.offsets.owned_offsets import Written
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted
from kiel_groups.zookeeper.fenced_writes import FencedWriter, Outcome, Renew
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import CloseLimit, MemberContext

log = logging.getLogger(__name__)


#: A write that expects this version replaces any.
ANY_VERSION = -1


class OffsetZnodes:
    """
    Stores offsets in the offset znodes of one group, on one session; see ``OffsetStore``.

    Every tool of Kafka 0.8 reads these znodes. A write expects the version of the offset znode that the member last
    saw, in a transaction that also checks the member znode. So ZooKeeper refuses a late write of a former owner, and a
    write that would overwrite an operator's reset.

    Args:
        context: The member. The member's metrics observe ``commit``, the seconds that a commit takes.
        writer: Writes in transactions that require the member znode to exist.
        topics: The incarnations of the member's topics.
    """

    def __init__(self, context: MemberContext, writer: FencedWriter, topics: TopicIncarnations) -> None:
        self._session = context.session
        self._layout = context.layout
        self._tracker = context.tracker
        self._through_brokers = context.tracker.rules.through_brokers
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._writer = writer
        self._topics = topics

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Read the stored offsets. Leave out a partition without an offset znode."""
        nodes = await self._session.get_many([self._layout.offset(partition) for partition in partitions])
        return {
            partition: self.parse(partition, node)
            for partition, node in zip(partitions, nodes, strict=True)
            if node is not None
        }

    async def partitions(self) -> list[TopicPartition]:
        """Return all partitions for which the group has an offset znode, in ascending order."""
        topics = sorted(await self._session.children(self._layout.offsets) or ())
        found = await self._session.children_many([self._layout.topic_offsets(topic) for topic in topics])
        return sorted(
            TopicPartition(topic, number)
            for topic, names in zip(topics, found, strict=True)
            for name in names or ()
            if (number := whole_number(name)) is not None
        )

    def parse(self, partition: TopicPartition, node: Node) -> StoredOffset:
        """
        Return the content of an offset znode. If the data is not an offset, log an error, and return None as the
        offset.
        """
        try:
            offset: int | None = parse_offset(node.data, self._layout.offset(partition))
        except ProtocolError as error:
            self._metrics.count("offsets_unreadable")
            log.error("group %s: %s; treating it as no committed offset", self._layout.group, error)
            offset = None
        return StoredOffset(offset, node.version, node.mzxid)

    async def ensure_parents(self, topics: Collection[str]) -> None:
        """
        Create the parent znodes of the topics' offsets. Call this method before partitions of these topics are claimed.

        If a claim is older than the last change of the parent znode, its owner is assumed to know the offset.
        """
        await self._session.ensure(sorted(map(self._layout.topic_offsets, topics)))

    async def restore_parents(self, dropped: Mapping[TopicPartition, Failure]) -> set[TopicPartition]:
        """
        Create the parent znodes of offset znodes again, if another client has deleted them.

        Args:
            dropped: The partitions whose write was dropped, with the reason.

        Returns:
            The partitions whose write was dropped because the parent znode was missing.
        """
        orphaned = {partition for partition, failure in dropped.items() if failure is Failure.NO_NODE}
        folders = sorted({self._layout.topic_offsets(partition.topic) for partition in orphaned})
        if folders:
            self._metrics.count("offset_folders_restored", len(folders))
            log.warning(
                "group %s: another client deleted %s; storing the finished offsets there again",
                self._layout.group,
                ", ".join(folders),
            )
            await self._session.ensure(folders)
        return orphaned

    # Operations

    def write(self, partition: TopicPartition, offset: int, version: int) -> Operation:
        """Return the operation that writes a partition's offset if the offset znode has this version."""
        return Put(self._layout.offset(partition), encode_offset(offset), version)

    def check(self, partition: TopicPartition, version: int) -> Check:
        """Return the operation that requires that a partition's offset znode has this version."""
        return Check(self._layout.offset(partition), version)

    def creation(self, partition: TopicPartition, offset: int) -> Operation:
        """Return the operation that creates a deleted offset znode again."""
        return Create(self._layout.offset(partition), encode_offset(offset))

    # Writes

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """
        Write offsets as ``put`` does, and report the stored offsets to the tracker. Ignore the text.

        Write no offset that the tracker no longer permits at that time.
        """
        started_s, may_store, sent = self._runtime.boot_time_s(), self._tracker.may_store, self._tracker.sent(commits)
        written = await self.put(commits, lambda partition, write: write if may_store(partition) else None)
        self._tracker.answered(sent, written.stored)
        if commits:
            self._metrics.observe("commit", self._runtime.boot_time_s() - started_s)
        return written

    async def put_ordered(
        self, commits: Mapping[TopicPartition, Commit], orders: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, StoredOffset]:
        """
        Write each offset that an operator ordered, and delete the order in the same transaction.

        The tracker does not count these writes as sent: if the caller is interrupted, the tracker takes the stored
        offset for another writer's offset, and delivery continues at that offset, too.

        Args:
            commits: The offsets.
            orders: The path of the order znode of each partition.

        Returns:
            The offsets that were stored. For any other offset, the order was withdrawn, another writer has changed the
            offset, or the tracker no longer permitted the write.

        Raises:
            SessionLostError: The session is over; nothing more was stored.
        """
        may_store = self._tracker.may_store

        def on_refused(partition: TopicPartition, refused: Operation, failure: Failure) -> tuple[Operation, ...] | None:
            if failure is Failure.NO_NODE and isinstance(refused, Put):
                # Another client deleted the offset.
                return (self.creation(partition, commits[partition].offset), Delete(orders[partition]))
            return None

        outcome = await self._writer.write(
            {p: (self.write(p, *commit), Delete(orders[p])) for p, commit in commits.items()},
            on_refused,
            renew=lambda partition, operations: operations if may_store(partition) else None,
        )
        stored = {
            partition: StoredOffset(commits[partition].offset, versions[0] or 0)
            for partition, versions in outcome.done.items()
        }
        found = await self.read(sorted(outcome.unknown))
        return stored | {partition: each for partition, each in found.items() if commits[partition].has_stored(each)}

    async def put(self, commits: Mapping[TopicPartition, Commit], renew: Renew[TopicPartition]) -> Written:
        """
        Write each offset if its znode has the expected version. Create deleted znodes again.

        A write with an unknown outcome is resolved by reading. Partitions that ``renew`` drops are not in the result.

        Raises:
            SessionLostError: The session is over; no further offset was stored.
        """
        written = Written({}, {})
        waiting = dict(commits)
        while waiting:
            wanted = waiting

            def on_refused(
                partition: TopicPartition, refused: Operation, failure: Failure
            ) -> tuple[Operation, ...] | None:
                if failure is Failure.NO_NODE and not isinstance(refused, Create):
                    return (self.creation(partition, commits[partition].offset),)
                # Another writer changed the znode, or its parent znode is gone.
                return None

            outcome = await self._writer.write(
                {partition: (self.write(partition, *commit),) for partition, commit in wanted.items()},
                on_refused,
                renew=renew,
            )
            for partition, versions in outcome.done.items():
                # A znode that was created again starts at version 0.
                written.stored[partition] = StoredOffset(wanted[partition].offset, versions[0] or 0)
            waiting = {}
            if outcome.dropped or outcome.unknown:
                await self.restore_parents(outcome.dropped)
                waiting = await self._reconcile(wanted, outcome, written)
        return written

    async def _reconcile(
        self, wanted: Mapping[TopicPartition, Commit], outcome: Outcome[TopicPartition], written: Written
    ) -> dict[TopicPartition, Commit]:
        """
        Read the offsets whose write was refused or has an unknown outcome, and add them to ``written``.

        Returns:
            The offsets that were not written and must be tried again.
        """
        again: dict[TopicPartition, Commit] = {}
        partitions = [*outcome.dropped, *sorted(outcome.unknown)]
        current = await self.read(partitions)
        for partition in partitions:
            found = current.get(partition)
            if found is None or found.version == wanted[partition].version:
                again[partition] = wanted[partition]
            elif partition in outcome.unknown and wanted[partition].has_stored(found):
                # After a refusal the offset is another writer's. Even with the same value it is a reset to follow.
                written.stored[partition] = found
            else:
                written.found[partition] = found
        return again

    async def store_starts(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> dict[TopicPartition, StoredOffset]:
        """
        Store the ``earliest`` offsets of a topic that was deleted and created again.

        Each write replaces the version that was just read. If another writer has stored an offset since the topic was
        created, that offset is kept, because an operator has set it in the new log. If brokers store the commits, that
        offset is replaced, too, because the writer might be a late broker.

        Args:
            topic: The topic.
            earliest: The first offset of each partition's new log.
            is_known: Returns whether this member has seen, or written, a stored offset in the old log.
            renew: Drops the writes once the topic was created again.

        Returns:
            The offsets that are stored now, without the offsets that ``renew`` dropped.
        """
        created = self._topics.creation(topic)
        current, waiting = dict[TopicPartition, StoredOffset](), sorted(earliest)
        while waiting:
            for partition, found in (stored := await self.read(waiting)).items():
                is_set = found.offset is not None and found.mzxid > created and not is_known(partition, found)
                if is_set and not self._through_brokers:
                    current[partition] = found
            versions = {p: stored[p].version if p in stored else ANY_VERSION for p in waiting if p not in current}
            commits = {p: Commit(earliest[p], version) for p, version in versions.items()}
            written = await self.put(commits, renew)
            current |= written.stored
            waiting = sorted(written.found)
            if written.stored:
                self._metrics.count("offsets_of_deleted_topic", len(written.stored))
                log.warning(
                    "group %s: topic %s was deleted and created again; %s at the earliest offset",
                    self._layout.group,
                    topic,
                    counted(written.stored, "partition starts", "partitions start"),
                )
        return current

    async def rewrite(
        self,
        partitions: Sequence[TopicPartition],
        known: Mapping[TopicPartition, StoredOffset],
        renew: Renew[TopicPartition],
    ) -> dict[TopicPartition, tuple[int, int]]:
        """
        Rewrite stored offsets unchanged, so that writes of former owners fail. The method reads all offsets first,
        except those in ``known``.

        Returns:
            The offsets that were rewritten, each with the new version of its znode.
        """
        rewritten: dict[TopicPartition, tuple[int, int]] = {}
        waiting: Sequence[TopicPartition] = partitions
        while waiting:
            unread = [partition for partition in waiting if partition not in known]
            stored, known = {**known, **(await self.read(unread))}, {}
            offsets = {partition: found.offset for partition, found in stored.items() if found.offset is not None}
            items = {p: (self.write(p, offset, stored[p].version),) for p, offset in offsets.items()}
            outcome = await self._writer.write(items, lambda *_: None, renew=renew)
            for partition, (version,) in outcome.done.items():
                if version is not None:
                    rewritten[partition] = (offsets[partition], version)
            # Another writer was faster, or the answer was lost: read the current offsets again.
            waiting = [*outcome.dropped, *sorted(outcome.unknown)]
        return rewritten


class BrokerCommits:
    """
    Stores offsets as ``broker-v0``: brokers write the offset znodes on request.

    The member itself writes start offsets and the offsets that a reset chose. A broker does not check the version of
    the znode. A broker that writes late may move an offset back. Then records are repeated, and no record is lost
    (except in a topic that was created again meanwhile). Therefore the member waits for a broker only while its lease
    runs. The member reads the stored offsets before and after each commit, and adopts an offset that another writer has
    changed. An offset that another writer sets between the first of these reads and the broker's write is lost. Only
    the ``zookeeper`` store prevents such a loss.

    Args:
        context: The member. The lease of the member's session limits each wait for brokers.
        znodes: The offset znodes.
        writer: The writer that proves the member's session.
        limit: Limits all waits for brokers once the member leaves.
    """

    def __init__(self, context: MemberContext, znodes: OffsetZnodes, writer: FencedWriter, limit: CloseLimit) -> None:
        self._context = context
        self._znodes = znodes
        self._writer = writer
        self._limit = limit
        self._tracker = context.tracker

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """
        Ask brokers to store next offsets, except offsets that another writer has changed. Then read the stored offsets.

        Right before the request to the brokers, skip the partitions that the tracker no longer permits.

        Returns:
            The offsets that were found. The tracker judges whether a broker stored them for this member.

        Raises:
            SessionLostError: The session is over.
        """
        if not commits:
            return Written({}, {})
        started_s = self._context.runtime.boot_time_s()
        before = await self.read(commits)
        foreign = {partition: stored for partition, stored in before.items() if not self._is_own(partition, stored)}
        await self._writer.wait_ready()
        # The tracker is asked as late as possible: from here on, the only waits are for broker connections and broker
        # answers.
        wanted = {
            partition: commit.offset
            for partition, commit in commits.items()
            if partition not in foreign and self._tracker.may_store(partition)
        }
        if wanted:
            await self._send(wanted, metadata)
        found = foreign | await self.read(wanted)
        self._context.metrics.observe("commit", self._context.runtime.boot_time_s() - started_s)
        return Written({}, found)

    def _is_own(self, partition: TopicPartition, stored: StoredOffset) -> bool:
        """Return whether this member stored the offset. If a broker stored the offset late, inform the tracker."""
        finding = self._tracker.judge(partition, stored)
        if finding is Finding.OWN:
            # The next request replaces the last one, after which this offset would be taken for another writer's.
            self._tracker.read(partition, stored)
        return finding in (Finding.UNCHANGED, Finding.OWN)

    async def _send(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        lease_s = self._context.session.gate.deadline_s - self._context.runtime.boot_time_s()
        self._tracker.requested(offsets)
        try:
            async with self._limit.timeout(lease_s):
                await self._context.handler.send_commit(offsets, metadata)
        except TimeoutError:
            self._context.metrics.count("commits_timed_out")
            log.warning("group %s: brokers did not store offsets in time; reading what is stored", self._context.group)

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Read the offsets that brokers have stored. Skip deleted znodes, which a commit creates again."""
        if not partitions:
            return {}
        # Brokers write on sessions of their own. An answered quorum write makes their writes visible on this session.
        await self._writer.prove()
        return await self._znodes.read(list(partitions))
