"""
The history of one run: facts from ZooKeeper's log, and from the reports of consumers.

The offset of a partition has epochs. An operator's write starts an epoch, and so does the reset after a topic was
created again. Records processed in an earlier epoch do not count in a later epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiel_groups.group.znodes.contents import OrderedOffset
from kiel_groups.model import TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Change, Kind
from tests.sim.history.broker_requests import BrokerRequests
from tests.sim.history.chosen_commits import ChosenCommits
from tests.sim.history.log_ranges import LogRanges
from tests.sim.history.owners import Owners
from tests.sim.history.plans import Plans
from tests.sim.history.records import Delivery, OffsetWrite, WriteKind
from tests.sim.history.seeks import Seek, Seeks
from tests.sim.history.sessions import Sessions
from tests.sim.history.topics import Topics, changes_of_topics

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["History"]


class History:
    """
    Records the facts of one run, and checks nothing.

    The checker first asks for a description of a change (``offset_write`` and similar methods), then calls the
    invariants, and then has the change recorded. So the invariants see the history before the change.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.layout = world.layout
        self._znodes = world.ensemble.tree.znodes
        self.sessions = Sessions()
        self.owners = Owners(world, self.sessions)
        self.topics = Topics(world, self.sessions)
        self.plans = Plans(world.layout)
        self.ranges = LogRanges(world.reset, self.owners)
        self.requests = BrokerRequests(self)
        self.chosen = ChosenCommits(self.owners)
        self.seeks = Seeks()
        #: Whether an operator has made a change after which no member may join.
        self.forbids_joining = False
        #: The zxid of the newest entry of ZooKeeper's log.
        self.zxid = 0
        self.commits = 0
        self.resets = 0
        self.orders = 0
        self.deliveries = 0
        self._epochs: dict[TopicPartition, int] = {}
        self._epoch_at: dict[tuple[TopicPartition, int], int] = {}
        #: The start of each partition's current epoch: the zxid, and the time in seconds.
        self._epoch_began: dict[TopicPartition, tuple[int, float]] = {}
        self._stored: dict[TopicPartition, int] = {}
        #: The next offset after all records that were processed in the current epoch.
        self._processed: dict[TopicPartition, int] = {}
        #: The same for each earlier epoch.
        self._processed_earlier: dict[tuple[TopicPartition, int], int] = {}
        #: The next offset after all records that were processed in any epoch, or a larger offset that a member stored.
        self._reached: dict[TopicPartition, int] = {}
        #: Partitions whose offset was deleted or garbled, and not written since.
        self.damaged: set[TopicPartition] = set()
        #: The zxid at which a partition's offset znode was deleted. The next znode's versions start at 0 again.
        self._removed: dict[TopicPartition, int] = {}
        #: The topics whose folder of offsets was deleted. A group that starts later cannot know that it had offsets.
        self.cleared: set[str] = set()
        #: Every offset that operators have set, by partition.
        self._operators_offsets: dict[TopicPartition, set[int]] = {}
        #: The zxid of each offset that an operator has set and no member or broker has written since.
        self.set_by_operators: dict[TopicPartition, int] = {}

    # Entries of ZooKeeper's log

    def record_entry(self, entry: Entry) -> None:
        """Record the changes that an entry makes to sessions, topics and the plan."""
        self.sessions.record(entry)
        if not self.sessions.is_member(entry):
            self.plans.record_deletion(entry)
            for change in changes_of_topics(entry, Kind.DELETED):
                self.topics.record_deletion(change, self._stored.keys())
            for change in changes_of_topics(entry, Kind.CREATED):
                self.topics.record_creation(entry, change, self._stored.keys())

    def partition_of(self, change: Change) -> TopicPartition | None:
        """
        Return the partition of a changed offset znode or owner znode, or None if a folder above these znodes was
        changed.
        """
        parts = change.path.split("/")
        return TopicPartition(parts[-2], int(parts[-1])) if len(parts) == 6 else None

    def record_folder(self, change: Change) -> None:
        """Record a change of the folder of a topic's offsets."""
        if change.kind is Kind.DELETED:
            self.cleared.add(change.path.rpartition("/")[2])

    def offset_write(self, entry: Entry, change: Change, partition: TopicPartition) -> OffsetWrite:
        """Describe a change of an offset znode."""
        data, stored = change.znode.data, self._stored.get(partition)
        if self.world.brokers.wrote(entry.session_id):
            offset = int(data)
            request, processed = self.requests.find(partition, offset), self.processed(partition)
            return OffsetWrite(
                WriteKind.BROKER, entry, change, partition, None, offset, stored, processed, request=request
            )
        by_member = self.sessions.is_member(entry)
        if change.kind is Kind.DELETED or not (by_member or data.isdigit()):
            return OffsetWrite(WriteKind.DAMAGE, entry, change, partition)
        if not by_member:
            repairs = partition in self.damaged
            return OffsetWrite(WriteKind.OPERATOR, entry, change, partition, None, int(data), stored, repairs=repairs)
        if self.order_deleted(entry, partition) is not None:
            writer = self.sessions.writer(entry)
            return OffsetWrite(WriteKind.ORDER, entry, change, partition, writer, int(data), stored)
        return self._members_write(entry, change, partition, int(data))

    def order_deleted(self, entry: Entry, partition: TopicPartition) -> OrderedOffset | None:
        """Return the order of a partition that an entry deletes, or None."""
        for change in entry.changes:
            path, is_order = change.path, change.path.startswith(f"{self.layout.orders}/")
            if is_order and change.kind is Kind.DELETED and path.endswith(f":{partition}"):
                return OrderedOffset.parse(change.znode.data, path)
        return None

    def _members_write(self, entry: Entry, change: Change, partition: TopicPartition, offset: int) -> OffsetWrite:
        before, processed = self._stored.get(partition), self.processed(partition)
        writer = self.sessions.writer(entry)
        seek = self._seek_stored(entry, partition, offset)
        if seek is not None and partition in self.topics.outdated and before is not None:
            # A commit in a log that is gone, which begins no epoch; ``NoOffsetOfOldLog`` checks it.
            before, processed = min(before, offset), max(processed, seek.reached)
        elif seek is not None:
            return OffsetWrite(
                WriteKind.SEEK, entry, change, partition, writer, offset, before, seek.reached, seek=seek
            )
        may_reset = self._is_reset(entry, partition, offset)
        repairs = partition in self.damaged or self._mistakes_version(entry, partition)
        is_before_seek = self._is_chosen_before_seek(entry, partition, offset)
        is_known = seek is not None or is_before_seek or self._was_reached(partition, offset)
        adopts = repairs and not may_reset and is_known
        if adopts:
            # The writer may have finished more records since it sent this write.
            before, processed = min(self._stored[partition], offset), max(offset, self.reached(partition))
        elif repairs and not may_reset:
            before = None
        is_start = partition in self.topics.outdated and offset in self.world.logs[partition].starts
        if is_start and not self._is_chosen_in_old_log(entry, writer, partition, offset):
            kind = WriteKind.NEW_LOG
        elif before is None:
            kind = WriteKind.FIRST
        elif is_before_seek and not adopts:
            kind = WriteKind.CHOSEN
        else:
            # Without automatic commits, a reset may leave the stored offset as it was, and deliver from a later one. It
            # is written all the same if its data was no number (seed 7000186).
            is_kept = repairs and offset == before
            kind = WriteKind.RESET if may_reset and not is_kept else WriteKind.COMMIT
        return OffsetWrite(
            kind, entry, change, partition, writer, offset, before, processed, repairs, adopts, may_reset
        )

    def _is_chosen_in_old_log(self, entry: Entry, writer: Consumer, partition: TopicPartition, offset: int) -> bool:
        """Return whether an application has chosen an offset that is also the start of a log unknown to the member."""
        state = writer.state_of(partition)
        return state is not None and not state.outdated and self.chosen.allow(entry, writer, partition, offset)

    def _is_chosen_before_seek(self, entry: Entry, partition: TopicPartition, offset: int) -> bool:
        """
        Return whether an owner stores an offset beyond the processed records that its application has chosen.

        It may do so after it has sought further. A commit may store any offset up to the position.
        """
        writer, claim = self.sessions.writer(entry), self.owners.claim(entry, partition)
        if offset <= self.processed(partition) or (claim is None and not self.owners.is_forced(writer, partition)):
            return False
        is_sought = self.seeks.is_beyond(writer, partition, None if claim is None else claim.czxid, offset)
        return is_sought and self.chosen.allow(entry, writer, partition, offset)

    def _seek_stored(self, entry: Entry, partition: TopicPartition, offset: int) -> Seek | None:
        """Return the seek whose offset an owner stores, or None."""
        writer, claim = self.sessions.writer(entry), self.owners.claim(entry, partition)
        if partition not in self._stored:
            return None
        if claim is None and not self.owners.is_forced(writer, partition):
            return None
        return self.seeks.find(writer, partition, None if claim is None else claim.czxid, offset)

    def may_reset(self, consumer: Consumer, partition: TopicPartition, entry: Entry, offset: int) -> bool:
        """Return whether the reset policy may choose ``offset``, after what was processed, or after a seek."""
        seek = self.seeks.newest(consumer, partition)
        known = [self.processed(partition)] + ([] if seek is None else [seek.reached])
        return any(self.ranges.may_reset(consumer, partition, entry, processed, offset) for processed in known)

    def _is_reset(self, entry: Entry, partition: TopicPartition, offset: int) -> bool:
        """
        Return whether an owner stores an offset that a reset may choose, and that no commit would store at this time.

        If an operator has deleted the offsets, the choice may be an offset that was processed before.
        """
        before, processed = self._stored.get(partition), self.processed(partition)
        writer = self.sessions.writer(entry)
        # A reset is stored only while nothing is processed (see ``ResetStoredWhenDrained``).
        cannot_reset = writer.is_processing(partition) or not writer.has_pending_reset(partition)
        if before is None or (cannot_reset and before <= offset <= processed):
            return False
        if cannot_reset and self.chosen.allow(entry, writer, partition, offset):
            return False
        if self.owners.claim(entry, partition) is None and not self.owners.is_forced(writer, partition):
            return False
        return self.may_reset(writer, partition, entry, offset)

    def _mistakes_version(self, entry: Entry, partition: TopicPartition) -> bool:
        """
        Return whether a member overwrites an operator's offset, and claimed the partition before the znode was deleted.
        """
        claim = self.owners.claim(entry, partition) if partition in self.set_by_operators else None
        return claim is not None and claim.czxid < self._removed.get(partition, 0)

    def _was_reached(self, partition: TopicPartition, offset: int) -> bool:
        """
        Return whether a member may continue at ``offset`` after the stored offset was damaged.

        The member may continue at any offset that was ever reached or set by an operator. The damage may have destroyed
        an operator's offset. A member that had not read this offset keeps its own position.
        """
        known = max(self.processed(partition), self.reached(partition))
        if partition not in self._stored:
            return False
        return offset <= known or offset in self._operators_offsets.get(partition, ())

    def record_write(self, write: OffsetWrite) -> None:
        """Record a change of an offset znode."""
        partition, version = write.partition, write.change.znode.version
        if write.kind is WriteKind.DAMAGE:
            if write.change.kind is Kind.DELETED:
                self._removed[partition] = write.entry.zxid
            else:
                # The owner still reads the version of the garbled znode.
                self._epoch_at[partition, version] = self._epochs.get(partition, 0)
            self.damaged.add(partition)
            return
        self.requests.replacing.pop(partition, None)
        if write.kind is WriteKind.BROKER:
            self._record_brokers(write)
        elif write.kind is WriteKind.OPERATOR:
            self._record_operators(write)
        elif write.kind is WriteKind.ORDER:
            self._record_order(write)
        else:
            self._record_members(write)
        self._stored[partition] = write.offset
        self._epoch_at[partition, version] = self._epochs[partition]

    def _record_brokers(self, write: OffsetWrite) -> None:
        """
        Record a broker's write.

        The write may replace an operator's offset, or the start of a new log. If the consumer that requested the write
        does not know of the replaced offset, it may have finished more records since. If it knows of the replaced
        offset, it follows that offset.
        """
        partition, request = write.partition, write.request
        assert request is not None
        self.commits += write.offset != write.before
        replaces = self.requests.replaces_another_epoch(request)
        self.requests.record_write(write, request)
        if replaces:
            self.requests.replacing[partition] = write.entry.zxid
            self._begin_epoch(partition, max(write.offset, self.reached(partition)))
            known = request.consumer.finished(partition)
            if known is not None and known[1] <= self._processed[partition]:
                request.consumer.continue_in_epoch(partition, self._epochs[partition])
        self.damaged.discard(partition)
        self.set_by_operators.pop(partition, None)

    def _record_operators(self, write: OffsetWrite) -> None:
        partition = write.partition
        if self.requests_of_brokers and write.offset == write.before and not write.repairs:
            # The owner cannot tell this write from one that a broker repeats.
            return
        if write.repairs:
            self.damaged.discard(partition)
        self._begin_epoch(partition, write.offset)
        if partition not in self.topics.outdated:
            # A consumer that has reached exactly this offset continues there, notified or not.
            for consumer in self.world.consumers:
                known = consumer.finished(partition)
                if known is not None and known[1] == write.offset:
                    consumer.continue_in_epoch(partition, self._epochs[partition])
        self.set_by_operators[partition] = write.entry.zxid
        self._operators_offsets.setdefault(partition, set()).add(write.offset)

    def _record_order(self, write: OffsetWrite) -> None:
        """Record that an owner has stored an operator's offset. It continues there once it has the answer."""
        partition = write.partition
        self.orders += 1
        self.damaged.discard(partition)
        self._begin_epoch(partition, write.offset)
        self.set_by_operators.pop(partition, None)
        self._operators_offsets.setdefault(partition, set()).add(write.offset)

    def _record_members(self, write: OffsetWrite) -> None:
        partition, zxid = write.partition, write.entry.zxid
        if write.repairs:
            self.damaged.discard(partition)
        if write.adopts:
            self._begin_epoch(partition, write.processed)
            if not self.seeks.is_pending(write.by, partition, write.by.token(partition)):
                write.by.continue_in_epoch(partition, self._epochs[partition])
        if write.kind is WriteKind.COMMIT:
            self.commits += write.offset != write.before
            # A seek in a log that is gone begins no epoch, and the next claim writes its offset again.
            self._processed[partition] = max(self._processed[partition], write.offset)
        elif write.seek is not None:
            self._record_seek(write.by, partition, write.seek)
        else:
            self._begin_epoch(partition, write.offset)
        if write.kind is WriteKind.NEW_LOG:
            self.topics.record_reset(partition, zxid)
        elif write.kind is WriteKind.FIRST:
            self.topics.record_first_offset(partition)
        elif write.kind is WriteKind.RESET:
            self.resets += 1
            self.ranges.record_reset(write.by, partition, zxid)
        self.chosen.record_write(write.by, partition, write.offset)
        self.set_by_operators.pop(partition, None)
        self._reached[partition] = max(self.reached(partition), write.offset)

    def _record_seek(self, consumer: Consumer, partition: TopicPartition, stored: Seek) -> None:
        """Record that the offset of a seek is stored. What was processed since the seek is processed in the epoch."""
        self.damaged.discard(partition)
        self._begin_epoch(partition, stored.reached)
        is_newest = stored is self.seeks.newest(consumer, partition)
        self.seeks.record_stored(consumer, partition, stored)
        if is_newest and consumer.token(partition) == stored.token:
            consumer.continue_in_epoch(partition, self._epochs[partition])

    def _begin_epoch(self, partition: TopicPartition, offset: int) -> None:
        ended = self._epochs.get(partition, 0)
        self._processed_earlier[partition, ended] = self.processed(partition)
        self._epochs[partition] = ended + 1
        self._epoch_began[partition] = (self.zxid, self.world.timeline.now_s)
        self._processed[partition] = offset
        self.chosen.start_at(partition, offset)

    # Reports of consumers

    def record_open(self, consumer: Consumer, partition: TopicPartition, position: int) -> Delivery:
        """Record that a consumer may deliver from a partition from now on."""
        self.owners.open(consumer, partition)
        self.chosen.open(consumer, partition, consumer.token(partition), position)
        return Delivery(consumer, partition, position, consumer.opened[partition])

    def record_delivery(self, consumer: Consumer, partition: TopicPartition, offset: int) -> Delivery:
        """Record that a consumer delivers a record."""
        self.deliveries += 1
        is_set = partition in self.set_by_operators and partition not in self.topics.outdated
        is_sought = self.seeks.of_epoch(consumer.opened[partition]) is not None
        if is_set and not is_sought and offset == self._processed[partition]:
            # The consumer has reached the offset that an operator had set meanwhile.
            consumer.opened[partition] = self._epochs[partition]
        return Delivery(consumer, partition, offset, consumer.opened[partition])

    def record_processed(self, partition: TopicPartition, epoch: int, offset: int) -> None:
        """Record that an application has processed all records before ``offset``, delivered in ``epoch``."""
        self._reached[partition] = max(self.reached(partition), offset)
        if (seek := self.seeks.of_epoch(epoch)) is not None:
            seek.reached = max(seek.reached, offset)
        if epoch == self._epochs.get(partition):
            self._processed[partition] = max(self._processed[partition], offset)
        elif (earlier := self.processed_in(partition, epoch)) is not None:
            self._processed_earlier[partition, epoch] = max(earlier, offset)

    def may_seek(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Return whether the application may seek: it knows the log and the offset, and brokers store no offsets."""
        if self.requests_of_brokers or partition in self.damaged or partition in self.topics.outdated:
            return False
        if self.topics.is_outdated(consumer, partition) or consumer.has_pending_reset(partition):
            return False
        return partition in self._stored and self.owners.owns(consumer, partition)

    def record_seek(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        """Record that an application seeks in a partition."""
        token, stored = consumer.token(partition), self._stored[partition]
        self.seeks.record(consumer, partition, token, offset)
        # In the assigned hook, the claim is open already, at the stored offset.
        self.chosen.open(consumer, partition, token, min(stored, offset))

    def record_reset(self, consumer: Consumer, partition: TopicPartition, position: int) -> None:
        """
        Record that a consumer continues at the ``position`` that the reset policy chose.

        A consumer whose application commits may have stored nothing: the stored offset is still right. Then the next
        commit stores the position in place of the seek before.
        """
        if self._stored.get(partition) == position:
            self.seeks.end(consumer, partition)
        else:
            self.seeks.move(consumer, partition, position)

    # Facts

    @property
    def requests_of_brokers(self) -> bool:
        """Whether brokers store the offsets."""
        return bool(self.world.brokers.all)

    @property
    def generations(self) -> list[int]:
        """The generations that were published, oldest first. 0 stands for the deletion of a plan."""
        return self.plans.generations

    def stored(self, partition: TopicPartition) -> int | None:
        return self._stored.get(partition)

    def stored_partitions(self, topic: str) -> set[TopicPartition]:
        """Return the partitions of a topic that have a stored offset, or had one."""
        return {partition for partition in self._stored if partition.topic == topic}

    def processed(self, partition: TopicPartition) -> int:
        """Return the next offset after all records that were processed in the current epoch."""
        return self._processed.get(partition, 0)

    def processed_in(self, partition: TopicPartition, epoch: int) -> int | None:
        """Return the next offset after all records that were processed in an earlier epoch; None if it is unknown."""
        return self._processed_earlier.get((partition, epoch))

    def reached(self, partition: TopicPartition) -> int:
        """
        Return the next offset after all records that were ever processed, or a larger offset that a member stored.
        """
        return self._reached.get(partition, 0)

    def epoch(self, partition: TopicPartition) -> int | None:
        """Return the current epoch of a partition's offset, or None before the first epoch."""
        return self._epochs.get(partition)

    def epoch_at(self, partition: TopicPartition, version: int) -> int:
        """Return the epoch in which the offset znode got ``version``, or -1 if this is unknown."""
        return self._epoch_at.get((partition, version), -1)

    def epoch_began(self, partition: TopicPartition) -> tuple[int, float]:
        """Return the start of a partition's current epoch: the zxid, and the time in seconds."""
        return self._epoch_began[partition]

    def known(self, consumer: Consumer, partition: TopicPartition) -> int | None:
        """Return the ``processed`` offset if the consumer knows the offset's current epoch, or None."""
        finished = consumer.finished(partition)
        if finished is None:
            return None
        # A garbled offset has a version, but a consumer that reads it learns of no epoch.
        is_damaged = partition in self.damaged
        epoch = consumer.opened.get(partition) if is_damaged else self.epoch_at(partition, finished[0])
        return self._processed[partition] if epoch == self._epochs[partition] else None

    def owner_mistakes_version(self, partition: TopicPartition) -> bool:
        """
        Return whether the owner claimed the partition before its offset znode was deleted. If so, versions may mislead
        the owner.
        """
        owner = self.owners.znode(partition)
        return owner is not None and owner.czxid < self._removed.get(partition, 0)

    def is_set_by_operator(self, partition: TopicPartition) -> bool:
        """Return whether an operator set the stored offset, which was neither overwritten nor damaged since."""
        return partition in self.set_by_operators and partition not in self.damaged
