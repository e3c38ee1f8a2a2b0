"""One simulated group with its environment: servers, topics, consumers, an operator, and the checker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kazoo.client import KazooClient

from kiel_groups.allocators import ALLOCATORS
from kiel_groups.config import BROKER_V0, ZOOKEEPER_STORE, GroupConfig, ZooKeeperConfig
from kiel_groups.group.znodes.contents import OrderedOffset, OrderNotice, parse_topic
from kiel_groups.group.znodes.layout import BROKER_IDS, TOPICS, GroupLayout, topic_path
from kiel_groups.model import TopicPartition
from tests.fakes import FakeEnsemble, Host, Timeline, fake_client
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Kind
from tests.sim.brokers import Brokers
from tests.sim.checker import Checker
from tests.sim.consumer import Consumer
from tests.sim.garbage_collection import deferred_collection
from tests.sim.group_world import GroupWorld
from tests.sim.invariants.liveness import EveryMemberLeaves, EveryPartitionOwned
from tests.sim.logs import Logs
from tests.sim.poison import Poison
from tests.sim.scenario import Scenario, make_scenario

__all__ = ["World", "at_rest"]

SESSION_TIMEOUT_MS = 10_000
#: Sometimes shorter than the time that a restart takes.
STATIC_GRACE_MS = 12_000
RECONCILE_INTERVAL_MS = 30_000
#: The defaults of the scenario of ``at_rest``.
AT_REST: Mapping[str, Any] = {
    "leaders_after_s": (),
    "allocator": "range",
    "is_static": False,
    "store": ZOOKEEPER_STORE,
    "reconcile_interval_ms": RECONCILE_INTERVAL_MS,
    "events": (),
    "autocommit": True,
    "poison_every": 0,
    "subscribe_after_s": (0.0,),
}
#: The racks of brokers, which lead the partitions in turn, and of members, for the allocator that uses them.
RACKS = ("east", "west")
#: The number of brokers that store offsets, in groups with ``broker-v0``.
BROKERS = 2
#: Durations of the assigned hook, in seconds. The seed selects the group's duration.
HOOKS_S = (0.0, 0.0, 0.3, 2.0)


class World(GroupWorld):
    """
    The group of one scenario, with its environment.

    A subclass may have another class of consumers, or another checker.
    """

    group = "g"
    static_grace_ms = STATIC_GRACE_MS
    checker: Checker
    consumer_class = Consumer
    checker_class = Checker

    def __init__(self, scenario: Scenario, topic_name: Callable[[int], str] = "t{}".format) -> None:
        self.timeline = Timeline(scenario.seed)
        # The behaviour of servers of 3.4 for odd seeds, that of later servers for even seeds.
        self.ensemble = FakeEnsemble(
            self.timeline, 3, sync_limit=scenario.sync_limit, reports_moves=bool(scenario.seed % 2)
        )
        self.layout = GroupLayout(self.group)
        self.reset = scenario.reset
        self.poison = Poison(scenario.seed, scenario.poison_every)
        self.hook_s = HOOKS_S[scenario.seed // 2 % len(HOOKS_S)]
        self.allocator = ALLOCATORS[scenario.allocator]
        self.is_static = scenario.is_static
        self.store = scenario.store
        self.autocommit = scenario.autocommit
        self.reconcile_interval_ms = scenario.reconcile_interval_ms
        self._heartbeat_interval_ms = scenario.heartbeat_interval_ms
        self._subscribe_after_s = scenario.subscribe_after_s
        self.logs = Logs()
        self.consumers: list[Consumer] = []
        self.checker = self.checker_class(self)
        self.history = self.checker.history
        #: Called once, at the next write of the group state by a member.
        self.on_plan: Callable[[], None] | None = None
        self.ensemble.observers += [self.checker.committed, self._entry_committed]
        self.operator: KazooClient = fake_client(Host(self.ensemble))
        self.operator.start()
        self.operator.ensure_path(TOPICS)
        for number, rack in enumerate(RACKS if scenario.allocator == "rack_aware" else RACKS[:1]):
            registration = json.dumps({"host": "broker", "port": 9092, "rack": rack}).encode()
            self.operator.create(f"{BROKER_IDS}/{number}", registration, makepath=True)
        self.brokers = Brokers(self, BROKERS if self.store == BROKER_V0 else 0)
        self.began_s = self.timeline.now_s
        self.topics: dict[str, int] = {}
        self.orders_placed = 0
        #: The names of the topics that were created during the scenario.
        self._created: list[str] = []
        #: The topics that are deleted and will be created again, with the czxids of the deleted ones.
        self._absent: dict[str, int] = {}
        #: The time until which brokers do not know of a topic.
        self._unknown_until_s: dict[str, float] = {}
        #: The time until which a partition has no leader.
        self._leaderless_until_s: dict[TopicPartition, float] = {}
        for number, partitions in enumerate(scenario.topics):
            topic = topic_name(number)
            self.topics[topic] = partitions
            self.operator.create(topic_path(topic), self.topic_data(topic))
            for partition, delay_s in zip(self._partitions_of(topic), scenario.leaders_after_s, strict=False):
                self.lose_leader(partition, delay_s)
        self.checker.start()
        for member in range(scenario.members):
            self.join(self.topics if member < 2 else self.some_topics(member / scenario.members))

    def settings(self, instance_id: str | None) -> tuple[GroupConfig, ZooKeeperConfig]:
        """Return the configuration of a consumer."""
        group = GroupConfig(
            group=self.group,
            instance_id=instance_id,
            static_grace_ms=self.static_grace_ms,
            auto_offset_reset=self.reset,  # type: ignore[arg-type]
            store=self.store,
            autocommit=self.autocommit,
            reconcile_interval_ms=self.reconcile_interval_ms,
            rack=RACKS[len(self.consumers) % len(RACKS)],
        )
        hosts = ",".join(f"fake{server.number}:2181" for server in self.ensemble.servers)
        zookeeper = ZooKeeperConfig(
            hosts=hosts,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=self._heartbeat_interval_ms,
        )
        return group, zookeeper

    # Topics

    def topic_data(self, topic: str) -> bytes:
        partitions = {str(number): [number % len(RACKS)] for number in range(self.topics[topic])}
        return json.dumps({"version": 1, "partitions": partitions}).encode()

    def set_partitions(self, topic: str, partitions: int) -> None:
        """Request that the topic has ``partitions`` partitions. The request may fail."""
        self.topics[topic] = partitions
        self.operator.set_async(topic_path(topic), self.topic_data(topic))

    def recreate_topic(self, topic: str, gone_s: float, silent_s: float) -> None:
        """
        Delete a topic, and create it again ``gone_s`` later. Brokers know of the new topic after another ``silent_s``.
        """
        # The request that creates a topic may have failed.
        if topic in self._absent or topic_path(topic) not in self.ensemble.tree.znodes:
            return
        self._unknown_until_s[topic] = self.timeline.now_s + gone_s + silent_s
        if gone_s:
            self.logs.recreate(topic)
            self._absent[topic] = self.ensemble.tree.znodes[topic_path(topic)].czxid
            self.operator.delete_async(topic_path(topic))
            self.timeline.after(gone_s, self._create_again, topic)
            return
        self.logs.recreate(topic)
        transaction = self.operator.transaction()
        transaction.delete(topic_path(topic))
        transaction.create(topic_path(topic), self.topic_data(topic))
        transaction.commit_async()

    def _create_again(self, topic: str) -> None:
        """Create a deleted topic again, and retry until it exists, because the operator's connection may break."""
        if topic not in self._absent:
            return
        znode = self.ensemble.tree.znodes.get(topic_path(topic))
        if znode is not None and znode.czxid != self._absent[topic]:
            del self._absent[topic]
            return
        if znode is None:
            self.operator.create_async(topic_path(topic), self.topic_data(topic))
        else:
            self.operator.delete_async(topic_path(topic))
        self.timeline.after(1.0, self._create_again, topic)

    def create_topic(self, partitions: int) -> str:
        """Request another topic, and return its name."""
        topic = f"n{len(self._created)}"
        self._created.append(topic)
        self.topics[topic] = partitions
        self.operator.create_async(topic_path(topic), self.topic_data(topic))
        return topic

    def delete_topic(self, number: int) -> str:
        """Request the deletion of a topic that ``create_topic`` has created, and return its name, or ""."""
        there = [topic for topic in self._created if topic in self.topics and topic not in self._absent]
        if not there:
            return ""
        topic = there[number % len(there)]
        del self.topics[topic]
        self.operator.delete_async(topic_path(topic))
        return topic

    def has_leader(self, partition: TopicPartition) -> bool:
        """Return whether a broker leads the partition now."""
        until_s = max(self._unknown_until_s.get(partition.topic, 0.0), self._leaderless_until_s.get(partition, 0.0))
        return self.timeline.now_s >= until_s

    def lose_leader(self, partition: TopicPartition, duration_s: float) -> None:
        """Leave a partition without a leader for the next ``duration_s`` seconds."""
        self._leaderless_until_s[partition] = self.timeline.now_s + duration_s

    def order(self, offsets: Mapping[TopicPartition, int], duration_s: float) -> str:
        """
        Order offsets as ``ops.actions.offset_order`` does, and take back what has not been performed after a while.

        Returns a description.
        """
        znodes, folder = self.ensemble.tree.znodes, self.layout.orders
        if folder in znodes and self.ensemble.tree.children(folder):
            return "is refused: another order is in progress"
        self.orders_placed += 1
        order_id = f"order-{self.orders_placed}"
        notice = OrderNotice(order_id, tuple(sorted({each.topic for each in offsets}))).encode()
        transaction = self.operator.transaction()
        if folder in znodes:
            transaction.set_data(folder, notice)
        else:
            transaction.create(folder, notice)
        paths = [self.layout.order(order_id, partition) for partition in offsets]
        for path, (partition, offset) in zip(paths, offsets.items(), strict=True):
            transaction.create(path, OrderedOffset(offset, znodes[topic_path(partition.topic)].czxid).encode())
        transaction.commit_async()
        self.timeline.after(duration_s, lambda: [self.operator.delete_async(path) for path in paths])
        return ", ".join(f"{partition} at {offset}" for partition, offset in offsets.items())

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.topics[topic])]

    def some_topic(self, number: int) -> str:
        return sorted(self.topics)[number % len(self.topics)]

    def partitions(self) -> list[TopicPartition]:
        """Return the existing partitions of the topics that running consumers subscribe to."""
        running = [consumer for consumer in self.consumers if consumer.is_running]
        znodes = self.ensemble.tree.znodes
        existing = sorted(self.ensemble.tree.children(TOPICS))
        found = {
            topic: znodes[topic_path(topic)] for topic in existing if any(consumer.wants(topic) for consumer in running)
        }
        return [
            TopicPartition(topic, number)
            for topic, znode in found.items()
            for number in parse_topic(znode.data, topic_path(topic))
        ]

    # The group

    @property
    def has_plan(self) -> bool:
        return self.layout.group_state in self.ensemble.tree.znodes

    def owned_by(self, consumer: Consumer) -> dict[str, int]:
        """Return the owner znodes of a consumer's sessions, with their czxids."""
        truth = self.ensemble.tree
        paths = [path for session in consumer.process.sessions for path in truth.ephemerals(session)]
        return {path: truth.znodes[path].czxid for path in paths if path.startswith(self.layout.owners)}

    def join(self, topics: Iterable[str], instance_id: str | None = None, pattern: str | None = None) -> Consumer:
        """Start a consumer. To restart a static member, pass its ``instance_id``."""
        name = f"c{len(self.consumers) + 1}"
        if self.is_static and instance_id is None:
            instance_id = f"i-{name}"
        after_s = self._subscribe_after_s[len(self.consumers) % len(self._subscribe_after_s)]
        consumer = self.consumer_class(self, name, tuple(topics), instance_id, pattern, after_s)
        self.consumers.append(consumer)
        return consumer

    def _entry_committed(self, entry: Entry) -> None:
        if self.on_plan is None or not self.history.sessions.is_member(entry):
            return
        group_state = self.layout.group_state
        if any(change.path == group_state and change.kind is not Kind.DELETED for change in entry.changes):
            hook, self.on_plan = self.on_plan, None
            hook()

    # Logs

    @property
    def log_end(self) -> int:
        """The end of logs that were never cut."""
        return self.logs.end

    def retain(self, partition: TopicPartition, start: int) -> None:
        """Delete the records before an offset, as retention does. Consumers notice this at their next fetch."""
        self.logs.retain(partition, start)
        self._fetch_soon(partition)

    def cut(self, partition: TopicPartition, end: int, grown_s: float) -> None:
        """Delete the records at and after the offset ``end``. After ``grown_s`` seconds, the log has grown again."""
        self.logs.cut(partition, end)
        self._fetch_soon(partition)
        self.timeline.after(grown_s, self.logs.grow, partition)

    def _fetch_soon(self, partition: TopicPartition) -> None:
        for consumer in self.consumers:
            if consumer.is_running:
                delay_s = self.timeline.random.uniform(0.0, 0.5)
                self.timeline.after(
                    delay_s, consumer.process.run_on_loop, consumer.process.call, consumer.fetch, partition
                )

    # The end of faults

    def heal(self) -> None:
        """End all faults."""
        self.on_plan = None
        self._unknown_until_s.clear()
        self.brokers.heal()
        self._leaderless_until_s.clear()
        for topic in sorted(self._absent):
            self._create_again(topic)
        for server in self.ensemble.servers:
            self.ensemble.heal(server)
        for consumer in self.consumers:
            process = consumer.process
            process.unblock()
            process.resume()
            process.loses_events = lambda _: False
            if process.frozen:
                process.thaw()

    def settle(self, limit_s: float) -> None:
        """
        Advance the time until every partition is owned.

        Raises:
            Violation: Some partition is not owned within ``limit_s``.
        """
        self.checker.invariant(EveryPartitionOwned).wait(limit_s)

    @property
    def all_topics_exist(self) -> bool:
        """Whether no topic is currently deleted."""
        return not self._absent

    def close(self, limit_s: float) -> None:
        """
        Have all running consumers leave the group cleanly.

        Raises:
            Violation: A consumer has not left within ``limit_s``, or owner znodes remain.
        """
        for consumer in self.consumers:
            if consumer.is_running:
                consumer.leave()
        self.checker.invariant(EveryMemberLeaves).wait(limit_s, SESSION_TIMEOUT_MS / 1000)

    def claims(self) -> list[str]:
        """Return the paths of all owner znodes."""
        owners = f"{self.layout.owners}/"
        return [path for path in self.ensemble.tree.znodes if path.startswith(owners) and path.count("/") == 5]


@contextmanager
def at_rest(**changes: Any) -> Iterator[World]:
    """
    Provide a settled group without faults or other events, and kill its processes at the end of the block.

    Args:
        changes: Other values of fields of ``Scenario``: ``members``, ``topics`` (the partitions of each), …
    """
    with deferred_collection() as killed:
        world = World(replace(make_scenario(1), **{**AT_REST, **changes}))
        try:
            world.settle(60.0)
            yield world
        finally:
            for consumer in world.consumers:
                consumer.kill()
                killed.append(consumer.process)
