"""
Simulated groups whose offsets are in Kafka (the store ``broker-v1``): their coordinator, and what must hold of them.

The members, their ZooKeeper and their applications are those of all simulated groups. The checker of those groups
follows the offset znodes, of which these groups have none; so they have a checker of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from kiel_groups.config import BROKER_V1
from kiel_groups.errors import BrokerError, KielGroupsError
from kiel_groups.group.commit_note import CommitNote, NotedText
from kiel_groups.group.znodes.contents import FirstOffsets, OrderedOffset
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.members.partition_handler import KafkaOffsets, ReadOffsets, StoreAnswer
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Kind
from tests.sim.commits import commit, process_all
from tests.sim.consumer import Consumer
from tests.sim.garbage_collection import deferred_collection
from tests.sim.history.sessions import Sessions
from tests.sim.invariants.invariant import Violation
from tests.sim.logs import END
from tests.sim.operations import perform
from tests.sim.scenario import CHANGES, FAULTS, RECONCILE_FAULTS, Event, Scenario, make_scenario
from tests.sim.world import AT_REST, World

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KafkaConsumer", "KafkaWorld", "OffsetCoordinator", "kafka_group", "play_kafka_group"]

T = TypeVar("T")

#: How long a client waits for the coordinator's answer, and how often it reads, in seconds and tries.
ANSWER_S, TRIES, READ_PAUSE_S = 3.0, 10, 0.6
#: The longest time, in seconds, for which a request or its answer is in flight.
WAY_S = 0.02


class OffsetCoordinator:
    """
    The coordinator of the group, which stores what it is asked to store, and checks nothing.

    ``stored`` are the offsets, and ``lost`` counts the next answers that are lost. While it ``refuses`` to store, it
    still returns offsets. It refuses texts of more than ``longest_text`` characters.
    """

    def __init__(self, world: KafkaWorld) -> None:
        self._world = world
        self.stored: dict[TopicPartition, OffsetAndMetadata] = {}
        self.lost = 0
        self.refuses = False
        self.longest_text = 4_096
        self._held_until_s = 0.0
        self._away_until_s = 0.0

    def hold(self, duration_s: float) -> None:
        """Perform requests that are sent within ``duration_s`` seconds only when this time has passed."""
        self._held_until_s = max(self._held_until_s, self._world.timeline.now_s + duration_s)

    def move(self, duration_s: float) -> None:
        """Refuse requests for ``duration_s`` seconds, as while the coordinator moves."""
        self._away_until_s = max(self._away_until_s, self._world.timeline.now_s + duration_s)

    def fail(self, fault: str, duration_s: float) -> None:
        """Inflict one of ``COORDINATOR_FAULTS``."""
        if fault == "hold":
            self.hold(duration_s)
        elif fault == "move":
            self.move(duration_s)
        else:
            self.lost += 1 + int(duration_s) % 4

    def heal(self) -> None:
        """Perform new requests at once, and lose no more answers. Requests that are held stay so."""
        self._held_until_s, self._away_until_s, self.lost = 0.0, 0.0, 0

    async def request(self, consumer: KafkaConsumer, perform: Callable[[], T]) -> T | None:
        """Have the coordinator perform a request of a consumer. Return its answer, None if none came or it refused."""
        timeline = self._world.timeline
        answered: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        back_s = timeline.random.uniform(0.0, WAY_S)

        def arrive() -> None:
            found = None if timeline.now_s < self._away_until_s else perform()
            if self.lost:
                self.lost -= 1
                return
            timeline.after(back_s, consumer.process.run_on_loop, consumer.process.call, _settle, answered, found)

        timeline.at(max(timeline.now_s + timeline.random.uniform(0.0, WAY_S), self._held_until_s), arrive)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answered
        except TimeoutError:
            return None


def _settle(answered: asyncio.Future[T | None], found: T | None) -> None:
    if not answered.done():
        answered.set_result(found)


class _Offsets:
    """The offsets in Kafka, as one consumer asks for them."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self._world = consumer.world

    async def read(self, partitions: Collection[TopicPartition]) -> ReadOffsets:
        for _ in range(TRIES):
            found = await self._world.coordinator.request(self._consumer, lambda: self._stored(partitions))
            if found is not None:
                return ReadOffsets(found, {})
            await asyncio.sleep(READ_PAUSE_S)
        return ReadOffsets({}, {partition: BrokerError(f"no coordinator for {partition}") for partition in partitions})

    def _stored(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        stored = self._world.coordinator.stored
        return {partition: stored[partition] for partition in partitions if partition in stored}

    async def store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, StoreAnswer]:
        for partition, value in offsets.items():
            self._world.checker.requested(self._consumer, partition, value)

        def perform() -> bool:
            coordinator = self._world.coordinator
            if not coordinator.refuses:
                coordinator.stored |= offsets
            return not coordinator.refuses

        if max(len(value.metadata) for value in offsets.values()) > self._world.coordinator.longest_text:
            return dict.fromkeys(offsets, StoreAnswer.TOO_LONG)
        performed = await self._world.coordinator.request(self._consumer, perform)
        return dict.fromkeys(offsets, StoreAnswer.STORED if performed else StoreAnswer.UNKNOWN)


class KafkaConsumer(Consumer):
    """A process with one member, whose offsets are in Kafka. Its epochs are the incarnations of the topics."""

    world: KafkaWorld

    @property
    def kafka_offsets(self) -> KafkaOffsets:
        return _Offsets(self)

    def _epoch(self, partition: TopicPartition) -> int:
        return self.created(partition)


class _Topics:
    """What ``EveryPartitionOwned`` asks the history about topics."""

    def __init__(self, world: KafkaWorld) -> None:
        self._world = world

    def is_outdated(self, consumer: Consumer, partition: TopicPartition) -> bool:
        return consumer.created(partition) < self._world.incarnation(partition.topic)


class _Seeks:
    """What consumers tell the history about seeks, of which these groups have none."""

    def end(self, consumer: Consumer, partition: TopicPartition) -> None: ...


class _History:
    """What consumers and invariants use of the history of other groups."""

    def __init__(self, world: KafkaWorld) -> None:
        self.world = world
        self.sessions = Sessions()
        self.topics = _Topics(world)
        self.seeks = _Seeks()


class KafkaChecker:
    """
    Checks a group from outside.

    1. A consumer starts and delivers at no offset beyond the records that were processed in this log: nothing is
       skipped. A group begins where the reset policy says, and in a topic that was created again at its beginning.
    2. A consumer delivers only from partitions that it owns, and at most one has an open gate for a partition.
    3. A consumer asks for commits only through its open gate, of partitions that it owns, up to what was processed.
    4. A claim ends only while nothing of the partition is in flight, unless its gate is shut.
    5. An order is acknowledged only by a member that has asked to store the ordered offset. Then, and if it has died in
       between, delivery continues there.
    """

    def __init__(self, world: KafkaWorld) -> None:
        self._world = world
        #: Whether changes in ZooKeeper's log are checked; a test that plays the operator sets it to False.
        self.is_strict = True
        self.history: Any = _History(world)
        #: The next offset after all records that were processed, by partition and incarnation of its topic.
        self.processed_to: dict[tuple[TopicPartition, int], int] = {}
        #: The first offsets that the group has decided on, by topic.
        self._begins: dict[str, FirstOffsets] = {}
        #: The offsets that were ordered, and those that a consumer has asked to store.
        self._ordered: set[tuple[TopicPartition, int]] = set()
        self._requested: set[tuple[Consumer, TopicPartition, int]] = set()
        #: How many orders were acknowledged.
        self.acknowledged = 0

    def invariant(self, kind: Callable[[Any], T]) -> T:
        return kind(self.history)

    def start(self) -> None:
        """Start checking: nothing to do."""

    def step(self) -> None:
        """Check after a step of the run."""

    def end(self, finished: Mapping[TopicPartition, int]) -> None:
        """Check that what the last owners have finished is stored, after all members have left."""
        for partition, offset in finished.items():
            stored = self._world.coordinator.stored[partition]
            note = NotedText.parse(stored.metadata).note
            if note is None or (note.created, stored.offset) != (self._world.incarnation(partition.topic), offset):
                self._fail(f"{partition} is left at {stored}, finished is {offset}")

    def _fail(self, text: str) -> None:
        violation = Violation(text)
        self._world.timeline.failures.append(violation)
        raise violation

    # ZooKeeper's log

    def committed(self, entry: Entry) -> None:
        """Check that the claims that end are not delivered from."""
        self.history.sessions.record(entry)
        if not self.is_strict:
            return
        for change in entry.changes:
            if change.path.startswith(f"{self._world.layout.starts}/"):
                self._begin_changes(change.path.rpartition("/")[2], FirstOffsets.parse(change.znode.data, change.path))
            if change.path.startswith(f"{self._world.layout.owners}/") and change.path.count("/") == 5:
                topic, number = change.path.rsplit("/", 2)[1:]
                self._claim_changes(TopicPartition(topic, int(number)))
            if change.path.startswith(f"{self._world.layout.orders}/"):
                topic, number = change.path.rsplit(":", 2)[1:]
                offset = OrderedOffset.parse(change.znode.data, change.path).offset
                self._order_changes(entry, change.kind, TopicPartition(topic, int(number)), offset)

    def _order_changes(self, entry: Entry, kind: Kind, partition: TopicPartition, offset: int) -> None:
        if kind is not Kind.DELETED:
            self._ordered.add((partition, offset))
        elif self.history.sessions.is_member(entry):
            self.acknowledged += 1
            writer = self.history.sessions.writer(entry)
            if (writer, partition, offset) not in self._requested:
                self._fail(f"{writer.name} acknowledges the order of {partition}, and has not stored {offset}")

    def _begin_changes(self, topic: str, first: FirstOffsets) -> None:
        begins = {END if self._world.reset == "latest" and topic not in self._begins else 0}
        if not set(first.offsets.values()) <= begins:
            self._fail(f"the group begins {topic} at {first}")
        self._begins[topic] = first

    def _claim_changes(self, partition: TopicPartition) -> None:
        for consumer in self._world.consumers:
            if partition in consumer.opened and consumer.gate_is_open:
                self._fail(f"the claim of {partition} changes, and {consumer.name} may deliver from it")

    # Reports of consumers

    def opened(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        created = consumer.created(partition)
        if (partition, created) not in self.processed_to and offset != self._begin(partition, created):
            self._fail(f"{consumer.name} begins {partition} at {offset}")
        self.processed_to.setdefault((partition, created), offset)
        self._check_position(consumer, partition, offset)

    def _begin(self, partition: TopicPartition, created: int) -> int:
        """Return where a group begins a partition. A topic that was created again begins at its beginning."""
        first = self._begins.get(partition.topic)
        return first.offsets.get(partition.partition, 0) if first is not None and first.created == created else 0

    def delivered(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        self._check_position(consumer, partition, offset)
        if self._world.layout.owner(partition) not in self._world.owned_by(consumer):
            self._fail(f"{consumer.name} delivers {partition}, and its claim is not there")
        if partition not in consumer.hooked:
            self._fail(f"{consumer.name} delivers {partition}, and its assigned hook has not ended")
        others = [each.name for each in self._world.consumers if partition in each.opened and each.gate_is_open]
        if others != [consumer.name]:
            self._fail(f"{others} may deliver {partition}")

    def _check_position(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        processed = self.processed_to[partition, consumer.created(partition)]
        if (partition, offset) in self._ordered:
            self.processed_to[partition, consumer.created(partition)] = max(offset, processed)
        elif offset > processed:
            self._fail(f"{consumer.name} continues in {partition} at {offset}, processed is {processed}")

    def processed(self, partition: TopicPartition, epoch: int, until: int) -> None:
        self.processed_to[partition, epoch] = max(self.processed_to[partition, epoch], until)

    def requested(self, consumer: Consumer, partition: TopicPartition, value: OffsetAndMetadata) -> None:
        """Check a consumer's request to store an offset."""
        note = NotedText.parse(value.metadata).note
        self._requested.add((consumer, partition, value.offset))
        what = f"{consumer.name} asks to store {value} of {partition}"
        if not consumer.gate_is_open:
            self._fail(f"{what}, and its gate is shut")
        claim = self._world.owned_by(consumer).get(self._world.layout.owner(partition))
        if note is None and len(CommitNote(0, 0, 0).after("")) > self._world.coordinator.longest_text:
            return
        if note is None or claim != note.claim:
            self._fail(f"{what}, and its claim is {claim}")
        elif (partition, value.offset) not in self._ordered and value.offset > self.processed_to.get(
            (partition, note.created), END
        ):
            self._fail(f"{what}, processed is {self.processed_to[partition, note.created]}")

    def continued(self, partition: TopicPartition, offset: int) -> None:
        """Record the restart of a partition in a new log, or at an ordered offset."""
        log = (partition, self._world.incarnation(partition.topic))
        known = self.processed_to.setdefault(log, offset)
        if (partition, offset) in self._ordered:
            self.processed_to[log] = max(known, offset)

    def commit_chosen(self, consumer: Consumer, partition: TopicPartition, token: int, offset: int) -> None:
        """Nothing to check: the request is."""

    def session_opened(self, consumer: Consumer, session_id: int, *, is_first: bool) -> None:
        """Record a session."""
        self.history.sessions.open(consumer, session_id, is_first=is_first)

    def stopped(self, consumer: Consumer, error: KielGroupsError) -> None:
        self._fail(f"{consumer.name} stops for good: {error}")


class KafkaWorld(World):
    """The group of one scenario, with its environment, and with a coordinator that keeps its offsets."""

    consumer_class = KafkaConsumer
    checker_class: Any = KafkaChecker
    checker: Any

    def __init__(self, scenario: Scenario) -> None:
        self.coordinator = OffsetCoordinator(self)
        super().__init__(replace(scenario, store=BROKER_V1))

    def incarnation(self, topic: str) -> int:
        """Return the czxid of a topic, 0 if it is deleted at the moment."""
        znode = self.ensemble.tree.znodes.get(topic_path(topic))
        return 0 if znode is None else znode.czxid

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the stored offsets."""
        return {partition: each.offset for partition, each in sorted(self.coordinator.stored.items())}

    def heal(self) -> None:
        super().heal()
        self.coordinator.heal()


#: The events of other groups' scenarios that concern these groups, too: all but those of offsets in znodes, of claims
#: that are deleted by hand, of logs that lose records, and of applications that seek.
EVENTS = FAULTS.keys() | CHANGES.keys() | RECONCILE_FAULTS.keys() | {"work", "order_offsets"}
EVENTS -= {"reset_offset", "garble_offset", "delete_offsets", "force_release"}
#: The faults of the coordinator, how often each occurs at most, and for how long, in seconds.
COORDINATOR_FAULTS, MOST_FAULTS, LONGEST_S = ("hold", "move", "lose"), 3, 20.0
#: The longest time for which requests may be held, and the limits of the last steps, in seconds.
FLUSHED_S, SETTLED_S, LEAVING_S = 40.0, 60.0, 40.0


def play_kafka_group(seed: int) -> KafkaWorld:
    """
    Play a scenario with faults of the group and of the coordinator, and then have all members commit and leave.

    Raises:
        Violation: Something does not hold.
    """
    drawn = make_scenario(seed)
    events = tuple(event for event in drawn.events if event.operation in EVENTS)
    random = Random(f"coordinator of {seed}")
    faults = [
        (random.uniform(0.0, events[-1].at_s), fault) for fault in FAULTS for _ in range(random.randint(0, MOST_FAULTS))
    ]
    with deferred_collection() as killed:
        world = KafkaWorld(replace(drawn, events=(), poison_every=0))
        try:
            for at_s, fault in sorted([*((event.at_s, event) for event in events), *faults], key=lambda each: each[0]):
                world.run_for(max(0.0, at_s - world.elapsed_s))
                if isinstance(fault, Event):
                    perform(world, fault)
                else:
                    world.coordinator.fail(fault, random.uniform(0.1, LONGEST_S))
            _end(world)
        finally:
            for consumer in world.consumers:
                consumer.kill()
                killed.append(consumer.process)
    return world


def _end(world: KafkaWorld) -> None:
    if not any(consumer.is_running for consumer in world.consumers):
        world.join(world.topics)
    world.heal()
    world.settle(SETTLED_S)
    world.run_for(FLUSHED_S)
    world.settle(SETTLED_S)
    finished = dict[TopicPartition, int]()
    for consumer in world.consumers:
        if consumer.is_running:
            process_all(world, consumer)
            commit(world, consumer, 20.0)
            finished |= {each: known[1] for each in consumer.opened if (known := consumer.finished(each)) is not None}
    world.close(LEAVING_S)
    world.checker.end(finished)


@contextmanager
def kafka_group(**changes: Any) -> Iterator[KafkaWorld]:
    """Provide a settled group without faults, as ``at_rest`` does, whose offsets are in Kafka."""
    with deferred_collection() as killed:
        world = KafkaWorld(replace(make_scenario(1), **{**AT_REST, **changes}))
        try:
            world.settle(60.0)
            yield world
        finally:
            for consumer in world.consumers:
                consumer.kill()
                killed.append(consumer.process)
