"""
The invariants of a simulated group that brokers coordinate.

============================  ========================================================================================
one open gate                 At most one consumer whose lease runs has opened a partition. In-flight records do not
                              count: the application may still process records of a partition that was lost.
delivery                      Nothing is delivered while the gate is shut, or before the assigned hook has ended. No
                              record is skipped: a delivery starts at or before the first record that is not processed.
commits                       Commits are sent under an open gate, and accepted only of partitions of the sender's
                              assignment. They never pass what was processed. They go back only by the application's
                              choice, after an expiry, or because a request arrived that its sender had given up.
joins                         A member joins when it has given everything back, with no other request under way.
hooks                         Each ``complete`` is followed by one ``prepare`` or ``lost`` (``_WatchedHooks``).
topics created again          No record of a new log is skipped, except after a warning, or where no answer of a broker
                              has shown the new log to the member that read, or to the one that stored the offset.
                              Nothing restarts in a log that is not new.
the end                       Within a time limit after the last fault each partition has one owner, all records are
                              processed and committed, and members that leave keep no task and send nothing more.
============================  ========================================================================================
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import FencingToken, TopicPartition
from kiel_groups.wire.consumer_protocol import ConsumerAssignment
from kiel_groups.wire.group_requests import DescribeGroupsRequest, JoinGroupRequest, LeaveGroupRequest
from kiel_groups.wire.offsets import OffsetCommitRequestV2
from tests.fakes.fake_coordinator import AcceptedCommit
from tests.sim.coordinated.member_network import Call
from tests.sim.invariants.invariant import Violation

if TYPE_CHECKING:
    from tests.sim.coordinated.broker_world import BrokerWorld
    from tests.sim.coordinated.member_process import BrokerConsumer

__all__ = ["BrokerChecker"]

#: How long after a close tasks that it has cancelled may take to end, in seconds.
ENDING_S = 1.0
#: Requests that change no offset and no membership but the sender's end. A description only serves for the words of an
#: error. The heartbeat's thread leaves if the time limit of a close is over.
HARMLESS = (LeaveGroupRequest, DescribeGroupsRequest)


class BrokerChecker:
    """Checks a run: consumers, their networks and the coordinator report what happens."""

    def __init__(self, world: BrokerWorld) -> None:
        self._world = world
        self.deliveries = self.commits = 0
        #: The first offset that is not processed, of partitions that the group has started.
        self._processed: dict[TopicPartition, int] = {}
        #: Partitions whose offset has expired, and was not committed since.
        self._expired: set[TopicPartition] = set()
        #: Partitions whose last commit was given up by its sender, who does not know that it has replaced a later one.
        self._late: set[TopicPartition] = set()
        #: The offsets that applications have chosen to commit, and that may go back.
        self._chosen: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        #: Partitions that more than one consumer has opened. Each step checks only these partitions.
        self._contested: set[TopicPartition] = set()
        self._executing: Call | None = None
        #: The offsets that are processed of each log of a topic that was created again, and the partitions of which
        #: records may be skipped.
        self._covered: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        self._excused: set[TopicPartition] = set()
        #: Partitions whose last commit was the beginning of a new log, because its owner gave them back before it could
        #: restart there. It may have read the new log already without knowing it.
        self._begun: set[TopicPartition] = set()
        self._restarts: Counter[tuple[str, TopicPartition]] = Counter()

    def violation(self, text: str) -> Violation:
        """Create a violation, and record it, so that it ends the run even if the product's code catches it."""
        violation = Violation(text)
        self._world.timeline.failures.append(violation)
        return violation

    # Reports of consumers

    def opened(self, consumer: BrokerConsumer, partition: TopicPartition, position: int) -> None:
        """Check the position at which a consumer opens a partition."""
        self._check_position(consumer, partition, position)
        self.assigned(consumer, partition)
        if sum(partition in each.opened for each in self._world.consumers) > 1:
            self._contested.add(partition)
        self.step()

    def assigned(self, consumer: BrokerConsumer, partition: TopicPartition) -> None:
        """
        Excuse a member that nothing has shown the deletion of the topic when it gets a partition or its hook ends.

        Coordinators of 0.9 keep the offsets of deleted topics. Others have what a member has stored since, or this one
        starts where it was, and reports a lost offset.
        """
        if not consumer.asks_ids and self._world.incarnations[partition.topic] and not consumer.lacked(partition):
            self._excused.add(partition)

    def delivered(self, consumer: BrokerConsumer, partition: TopicPartition, position: int) -> None:
        """Check a delivery of records from ``position`` on."""
        self.deliveries += 1
        if not consumer.lease_runs:
            raise self.violation(f"{consumer.name} delivers {partition} with a shut gate")
        if partition not in consumer.hooked:
            raise self.violation(f"{consumer.name} delivers {partition}, and its assigned hook has not ended")
        self._check_position(consumer, partition, position)
        consumer.opened[partition] = self._world.incarnations[partition.topic]
        consumer.note_delivery(partition, position)

    # Topics that are created again

    def recreated(self, topic: str) -> None:
        """Record that a topic was created again. Owners of whose fetches none has failed cannot know it in 0.9."""
        for partition in [each for each in self._world.all_partitions() if each.topic == topic]:
            self._covered[partition].clear()
            self._excused.discard(partition)
            self._processed[partition] = 0
            # A member that does not notice stores its offset again when it refreshes all.
            (self._expired.discard if self._world.coordinator.early else self._expired.add)(partition)

    def unnoticed(self, consumer: BrokerConsumer, topic: str) -> None:
        """Record that no answer will show a member without the topic's id that the topic is another one now."""
        if not consumer.has_former_id(topic):
            self._excused.update(partition for partition in consumer.opened if partition.topic == topic)

    def restarted(self, consumer: BrokerConsumer, partition: TopicPartition, offset: int) -> None:
        """Check that a partition that restarts has a new log."""
        self._restarts[consumer.name, partition] += 1
        if self._restarts[consumer.name, partition] > self._world.incarnations[partition.topic]:
            raise self.violation(f"{consumer.name} restarts {partition} at {offset}, and its log is not new")

    def covered(self, partition: TopicPartition, incarnation: int, start: int, until: int) -> None:
        """Record that the application has processed these records of one incarnation of the topic."""
        if incarnation == self._world.incarnations[partition.topic]:
            self._covered[partition].update(range(start, until))

    def warned(self, partitions: Collection[TopicPartition]) -> None:
        """Record that a warning names these partitions, records of which may be skipped."""
        self._excused.update(partitions)

    def record_reset(self, consumer: BrokerConsumer, partition: TopicPartition, offset: int) -> None:
        """Record that a position that the log lacked was reset, and reported."""
        self._excused.add(partition)

    def range_reported(self, *_: object) -> None:
        """Do nothing: what a reset stores is checked as a commit."""

    def _skipped(self) -> list[TopicPartition]:
        """Return the partitions of topics that were created again, records of which are skipped without a warning."""
        renewed = [each for each in self._world.partitions() if self._world.incarnations[each.topic]]
        return [
            partition
            for partition in renewed
            if partition not in self._excused
            and not self._covered[partition].issuperset(range(self._world.logs[partition].end))
        ]

    def _check_position(self, consumer: BrokerConsumer, partition: TopicPartition, position: int) -> None:
        processed = self._processed.get(partition)
        if self._world.incarnations[partition.topic]:
            # Whether records are skipped shows at the end: this member may learn of the new log later.
            return
        if processed is None:
            raise self.violation(f"{consumer.name} opens {partition} at {position}, and no start is committed")
        if position > processed:
            raise self.violation(
                f"{consumer.name} continues in {partition} at {position}, and only what is before {processed} was"
                " processed"
            )

    def processed(self, partition: TopicPartition, epoch: int, offset: int) -> None:
        """Record that the application has processed all records before ``offset``."""
        if epoch != self._world.incarnations[partition.topic]:
            return
        self._processed[partition] = max(self._processed.get(partition, 0), offset)

    def commit_chosen(
        self, consumer: BrokerConsumer, partition: TopicPartition, token: FencingToken, offset: int
    ) -> None:
        """Record that an application commits an offset that it has chosen."""
        self._chosen[partition].add(offset)

    def paused(self, consumer: BrokerConsumer, partition: TopicPartition) -> None:
        """Do nothing: pauses change no guarantee."""

    resumed = paused

    def stopped(self, consumer: BrokerConsumer, error: KielGroupsError) -> None:
        """Report an error that a consumer regards as permanent."""
        raise self.violation(f"{consumer.name} stops for good: {error}")

    def closed(self, consumer: BrokerConsumer) -> None:
        """Check soon that a member that has left keeps no task."""
        self._world.timeline.after(ENDING_S, self._check_tasks, consumer)

    def _check_tasks(self, consumer: BrokerConsumer) -> None:
        if consumer.process.killed:
            return
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(consumer.process.loop)]
        # A commit of the application may wait for its answer, and a reset for its next try: a client would end both.
        left = [name for name in names if not name.startswith(("Application.", "Fetches."))]
        if left and not consumer.process.frozen:
            raise self.violation(f"{consumer.name} has left, and keeps {len(left)} tasks: {left[0]}")

    # Reports of networks

    def sent(self, consumer: BrokerConsumer, call: Call) -> None:
        """Check a request that a member sends."""
        if consumer.closed and not isinstance(call.request, HARMLESS):
            raise self.violation(f"{consumer.name} has left, and sends {call.request}")
        match call.request:
            case JoinGroupRequest():
                self._check_join(consumer)
            case OffsetCommitRequestV2(generation=generation, member_id=member_id):
                token = None if consumer.gate is None else consumer.gate.token
                if not consumer.lease_runs:
                    raise self.violation(f"{consumer.name} commits with a shut gate")
                if token != (generation, member_id):
                    raise self.violation(f"{consumer.name} commits as {(generation, member_id)}, and is {token}")
            case _:
                pass

    def _check_join(self, consumer: BrokerConsumer) -> None:
        if consumer.lease_runs:
            raise self.violation(f"{consumer.name} joins with an open gate")
        if consumer.opened:
            raise self.violation(f"{consumer.name} joins, and has {sorted(consumer.opened)} open")
        if consumer.in_flight:
            raise self.violation(f"{consumer.name} joins, and processes {sorted(consumer.in_flight)}")
        pending = [*consumer.network.pending("aside"), *consumer.network.pending("membership")]
        # A member that is closed right after it has decided to join may send both requests; the join is then refused.
        if beside := [call for call in pending if not isinstance(call.request, HARMLESS)]:
            raise self.violation(f"{consumer.name} joins beside {type(beside[0].request).__name__}")

    def executing(self, call: Call) -> None:
        """Record which request a broker executes now."""
        self._executing = call

    # Reports of the coordinator

    def committed(self, commit: AcceptedCommit) -> None:
        """Check a commit that the coordinator accepts."""
        self.commits += 1
        request, group = commit.request, commit.group
        if group is None or request.member_id not in group.members:
            raise self.violation(f"a commit of {request.member_id!r}, which is no member")
        assigned = ConsumerAssignment.parse(group.members[request.member_id].assignment, "the assignment").partitions
        for partition, stored in request.offsets.items():
            if partition.partition not in assigned.get(partition.topic, ()):
                raise self.violation(f"{request.member_id} commits {partition}, which it was not assigned")
            self._check_offset(request.member_id, partition, stored.offset)

    def _check_offset(self, member_id: str, partition: TopicPartition, offset: int) -> None:
        assert self._executing is not None
        (self._late.add if self._executing.given_up else self._late.discard)(partition)
        before = self._world.coordinator.offsets[self._world.group].get(partition)
        processed = self._processed.get(partition)
        sender = next((each for each in self._world.consumers if each.member.member_id == member_id), None)
        if self._world.incarnations[partition.topic]:
            state = None if sender is None else sender.state_of(partition)
            is_begun = offset == 0 and state is not None and state.outdated
            (self._begun.add if is_begun else self._begun.discard)(partition)
            self._expired.discard(partition)
            if not self._covered[partition].issuperset(range(offset)):
                self._misled(sender, member_id, partition, offset)
            return
        if processed is None:
            self._start(member_id, partition, offset)
        elif partition in self._expired:
            self._expired.discard(partition)
            if offset > processed:
                self._start(member_id, partition, offset)
        elif offset > processed:
            raise self.violation(f"{member_id} commits {offset} of {partition}, and only {processed} are processed")
        elif before is not None and offset < before.offset and not self._may_go_back(partition, offset):
            raise self.violation(f"{member_id} commits {offset} of {partition} over {before.offset}")

    def _misled(self, sender: BrokerConsumer | None, member_id: str, partition: TopicPartition, offset: int) -> None:
        """Excuse a partition of which a member stores an offset of a former log, as far as it cannot know better."""
        assert self._executing is not None
        knew = self._executing.knew.get(partition.topic, -1)
        if self._executing.given_up or sender is None or knew < self._world.incarnations[partition.topic]:
            self._excused.add(partition)
            return
        # A process that has never known the former topic starts as ``auto_offset_reset`` says.
        is_first = partition not in self._world.coordinator.offsets[self._world.group] and self._world.reset == "latest"
        # One that has never been told its id, either, reports the offsets that it remembers as lost.
        is_reported = sender.metrics.total("offsets_expired") > 0
        if (is_first or is_reported) and not sender.knows_former(partition):
            self._excused.add(partition)
        elif partition not in self._excused and sender.has_former_id(partition.topic):
            raise self.violation(f"{member_id} commits {offset} of {partition}, whose new log it knows")

    def _start(self, member_id: str, partition: TopicPartition, offset: int) -> None:
        log = self._world.logs[partition]
        if offset not in (log.starts if self._world.reset == "earliest" else log.starts | log.ends):
            raise self.violation(f"{member_id} starts {partition} at {offset}, which no policy chooses")
        self._processed[partition] = offset

    def _may_go_back(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether the application has chosen the offset, or a request is executed that was given up."""
        assert self._executing is not None
        return offset in self._chosen[partition] or self._executing.given_up

    def expired(self, partition: TopicPartition) -> None:
        """Record that the coordinator has forgotten an offset."""
        self._expired.add(partition)

    # Time

    def step(self) -> None:
        """Check after a step of the run."""
        for partition in list(self._contested):
            opened = [consumer for consumer in self._world.consumers if partition in consumer.opened]
            names = [consumer.name for consumer in opened if consumer.lease_runs]
            if len(names) > 1:
                raise self.violation(f"two gates are open for {partition}: {' and '.join(names)}")
            if len(opened) < 2:
                self._contested.discard(partition)

    # The end; each method returns what is missing, or ""

    def unowned(self) -> str:
        """Return the partitions without exactly one owner, and the members that are not settled."""
        running = self._world.running
        unsettled = [consumer.name for consumer in running if not consumer.member.settled]
        unowned = [
            partition
            for partition in self._world.partitions()
            if sum(partition in consumer.opened and consumer.gate_is_open for consumer in running) != 1
        ]
        if not (unowned or unsettled):
            return ""
        return f"{len(unowned)} partitions are not owned by one, first {unowned[:3]}; not settled: {unsettled}"

    def unfinished(self) -> str:
        """Return the partitions with records that are not processed and committed; have the applications do so."""
        left = [p for p in self._world.partitions() if self._finished(p) != self._world.logs[p].end]
        left += self._uncommitted(self._world.partitions()) + self._skipped()
        for consumer in self._world.running:
            consumer.get_many(1_000, 0.01)
            if not (self._world.autocommit or consumer.committing):
                consumer.process.start(consumer.commit_if_allowed({}))
        return f"{len(left)} partitions are not finished, first {left[:3]}" if left else ""

    def _finished(self, partition: TopicPartition) -> int | None:
        """Return what the owner of a partition has finished; None without an owner."""
        states = (consumer.state_of(partition) for consumer in self._world.running if partition in consumer.opened)
        return next((state.finished for state in states if state is not None), None)

    def _uncommitted(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions whose stored offset is not the end of their log, without a late write or an expiry."""
        offsets = self._world.coordinator.offsets[self._world.group]
        return [
            partition
            for partition in partitions
            if partition not in self._expired | self._late
            and (partition not in offsets or offsets[partition].offset != self._world.logs[partition].end)
        ]

    def unclosed(self) -> str:
        """Return the members that were asked to leave and have not left."""
        left = [
            each.name for each in self._world.consumers if each.closing and not (each.closed or each.process.killed)
        ]
        return f"{left} have not left" if left else ""

    def check_committed(self, partitions: list[TopicPartition]) -> None:
        """Check that all records are committed after all members have left; new logs may be delivered once more."""
        if left := [partition for partition in self._uncommitted(partitions) if partition not in self._begun]:
            raise self.violation(f"the offsets of {len(left)} partitions, first {left[:3]}, are not those of the end")
