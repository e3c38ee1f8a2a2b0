"""The checker of simulated runs: it observes a group from outside, at every commit of ZooKeeper."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeVar

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Change, Kind
from tests.sim.history.history import History
from tests.sim.history.topics import changes_of_topics
from tests.sim.invariants.broker_writes import (
    BrokersWriteOnlyProcessed,
    BrokersWriteOnlyRequested,
    RequestedOnlyProcessed,
    RequestedThroughOpenGate,
    RequestedUnderClaim,
    RequestedWithOperatorsOffset,
)
from tests.sim.invariants.change_following import ChangesFollowedInTime
from tests.sim.invariants.claim_opening import ClaimsOpenedInTime
from tests.sim.invariants.commits import (
    CommittedByOwner,
    CommittedOnlyProcessed,
    FirstOffsetFollowsPolicy,
    NewLogKeepsOperatorsOffset,
    OffsetsNeverMoveBack,
    ResetStoredWhenDrained,
)
from tests.sim.invariants.delivery import (
    DeliveredAfterHook,
    DeliveredUnderClaim,
    NoRecordSkipped,
    NotDeliveredBeforeStored,
    OneOpenGate,
)
from tests.sim.invariants.invariant import Invariant, Violation
from tests.sim.invariants.liveness import EveryMemberLeaves, EveryPartitionOwned, NoMemberStops
from tests.sim.invariants.new_logs import NoOffsetOfOldLog
from tests.sim.invariants.orders import OrdersPerformedByOwner
from tests.sim.invariants.plans import (
    AssignmentsMatchGeneration,
    GenerationsGrow,
    OnePlanPerGeneration,
    PlaceKeptForItsGrace,
)
from tests.sim.invariants.releases import (
    GateShutBeforeClaimEnds,
    ReleaseCommitsNothing,
    ReleasedAtFinishedOffset,
    ReleasedWhenDrained,
    ResetStoredBeforeRelease,
)
from tests.sim.invariants.seeks import AssignedToApplication, DeliveredFromSoughtOffset, PausedUntilResumed
from tests.sim.invariants.sessions import (
    GateShutBeforeSessionEnds,
    NoWriteAfterSessionEnd,
    NoWriteOnReopenedSession,
)

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.logs import Range
    from tests.sim.world import World

__all__ = ["INVARIANTS", "Checker", "Violation"]

T = TypeVar("T", bound=Invariant)

#: All invariants, in the order in which they are checked.
INVARIANTS: tuple[type[Invariant], ...] = (
    # Sessions
    GateShutBeforeSessionEnds,
    NoWriteAfterSessionEnd,
    NoWriteOnReopenedSession,
    # Plans
    GenerationsGrow,
    OnePlanPerGeneration,
    AssignmentsMatchGeneration,
    PlaceKeptForItsGrace,
    # Delivery
    DeliveredUnderClaim,
    DeliveredAfterHook,
    NoRecordSkipped,
    NotDeliveredBeforeStored,
    OneOpenGate,
    DeliveredFromSoughtOffset,
    PausedUntilResumed,
    AssignedToApplication,
    # Commits
    FirstOffsetFollowsPolicy,
    CommittedByOwner,
    OffsetsNeverMoveBack,
    CommittedOnlyProcessed,
    ResetStoredWhenDrained,
    NewLogKeepsOperatorsOffset,
    OrdersPerformedByOwner,
    # Releases
    ReleasedWhenDrained,
    ResetStoredBeforeRelease,
    ReleasedAtFinishedOffset,
    ReleaseCommitsNothing,
    NoOffsetOfOldLog,
    GateShutBeforeClaimEnds,
    # Offsets that brokers write
    RequestedThroughOpenGate,
    RequestedUnderClaim,
    RequestedOnlyProcessed,
    RequestedWithOperatorsOffset,
    BrokersWriteOnlyRequested,
    BrokersWriteOnlyProcessed,
    # Time
    ClaimsOpenedInTime,
    ChangesFollowedInTime,
    NoMemberStops,
    EveryPartitionOwned,
    EveryMemberLeaves,
)


class Checker:
    """Passes each entry of ZooKeeper's log, and each report of a consumer, to the history and to all invariants."""

    def __init__(self, world: World) -> None:
        self.history = History(world)
        self._invariants = [invariant(self.history) for invariant in INVARIANTS]
        self._offsets, self._owners = f"{world.layout.offsets}/", f"{world.layout.owners}/"
        #: The invariants that override each hook. Calling only these saves time: a run has many steps and entries.
        self._by_hook = {
            hook: [each for each in self._invariants if getattr(type(each), hook) is not getattr(Invariant, hook)]
            for hook in dir(Invariant)
            if hook.startswith("on_")
        }

    def invariant(self, kind: type[T]) -> T:
        """Return this checker's invariant of the class ``kind``."""
        (found,) = (each for each in self._invariants if isinstance(each, kind))
        return found

    # Time

    def start(self) -> None:
        """Start checking: the topics exist, the consumers do not yet."""
        for invariant in self._by_hook["on_start"]:
            invariant.on_start()

    def step(self) -> None:
        """Check after a step of the run."""
        for invariant in self._by_hook["on_step"]:
            invariant.on_step()

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Check the state after all members have left. ``partitions`` are the partitions that they owned."""
        for invariant in self._by_hook["on_end"]:
            invariant.on_end(partitions)

    # ZooKeeper's log

    def committed(self, entry: Entry) -> None:
        """Check one entry of ZooKeeper's log, and record it."""
        history = self.history
        history.zxid = entry.zxid
        if not entry.changes and not entry.closes:
            return
        for invariant in self._by_hook["on_entry"]:
            invariant.on_entry(entry)
        if history.sessions.is_member(entry):
            self._plan_written(entry)
        else:
            self._topics_deleted(entry)
        history.record_entry(entry)
        for change in entry.changes:
            if change.path.startswith(self._offsets):
                self._offset_changed(entry, change)
            elif change.path.startswith(self._owners) and change.kind is Kind.DELETED:
                self._owner_deleted(entry, change)

    def _plan_written(self, entry: Entry) -> None:
        write = self.history.plans.write_of(entry)
        if write is not None:
            for invariant in self._by_hook["on_plan"]:
                invariant.on_plan(write)
            self.history.plans.record(write)

    def _topics_deleted(self, entry: Entry) -> None:
        for change in changes_of_topics(entry, Kind.DELETED):
            for invariant in self._by_hook["on_topic_deletion"]:
                invariant.on_topic_deletion(change.path.rpartition("/")[2])

    def _offset_changed(self, entry: Entry, change: Change) -> None:
        partition = self.history.partition_of(change)
        if partition is None:
            self.history.record_folder(change)
            return
        write = self.history.offset_write(entry, change, partition)
        for invariant in self._by_hook["on_offset"]:
            invariant.on_offset(write)
        self.history.record_write(write)

    def _owner_deleted(self, entry: Entry, change: Change) -> None:
        partition = self.history.partition_of(change)
        deletion = None if partition is None else self.history.owners.deletion(entry, change, partition)
        if deletion is not None:
            for invariant in self._by_hook["on_owner_deletion"]:
                invariant.on_owner_deletion(deletion)
            self.history.owners.record(deletion)

    # Reports of consumers

    def session_opened(self, consumer: Consumer, session_id: int, *, is_first: bool) -> None:
        """Record a new session of a consumer. The member may use only the first session of its newest client."""
        self.history.sessions.open(consumer, session_id, is_first=is_first)

    def opened(self, consumer: Consumer, partition: TopicPartition, position: int) -> None:
        """Check the position at which a consumer opens a partition for delivery."""
        opened = self.history.record_open(consumer, partition, position)
        for invariant in self._by_hook["on_open"]:
            invariant.on_open(opened)

    def delivered(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        """Check the delivery of a record."""
        delivery = self.history.record_delivery(consumer, partition, offset)
        for invariant in self._by_hook["on_delivery"]:
            invariant.on_delivery(delivery)

    def processed(self, partition: TopicPartition, epoch: int, offset: int) -> None:
        """Record that the application has processed all records before ``offset``, delivered in ``epoch``."""
        self.history.record_processed(partition, epoch, offset)

    def sought(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        """Record that an application continues at another offset of a partition."""
        self.history.record_seek(consumer, partition, offset)

    def paused(self, consumer: Consumer, partition: TopicPartition) -> None:
        """Record that an application pauses a partition."""
        self.history.seeks.pause(consumer, partition, consumer.token(partition))

    def resumed(self, consumer: Consumer, partition: TopicPartition) -> None:
        """Record that an application ends the pause of a partition."""
        self.history.seeks.resume(consumer, partition)

    def range_reported(self, consumer: Consumer, partition: TopicPartition, token: int, found: Range) -> None:
        """Record that brokers reported the range of a log to a consumer whose position is not in the log."""
        self.history.ranges.report(consumer, partition, token, found)

    def commit_chosen(self, consumer: Consumer, partition: TopicPartition, token: int, offset: int) -> None:
        """Record that an application commits an offset that it chose."""
        self.history.chosen.begin(consumer, partition, token, offset)

    def continued(self, partition: TopicPartition, offset: int) -> None:
        """Record that a consumer continues at an offset that another writer has set, or in a new log."""
        self.history.chosen.start_at(partition, offset)

    def commit_requested(self, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        """Check a consumer's request to brokers to store offsets, when it is sent."""
        for partition, offset in sorted(offsets.items()):
            request = self.history.requests.make(consumer, partition, offset)
            for invariant in self._by_hook["on_commit_request"]:
                invariant.on_commit_request(request)
            self.history.requests.record(request)

    def stopped(self, consumer: Consumer, error: KielGroupsError) -> None:
        """Check an error that a consumer regards as permanent."""
        for invariant in self._by_hook["on_stop"]:
            invariant.on_stop(consumer, error)
