"""One simulated group with everything around it: servers, topics, consumers, an operator, and a judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kazoo.client import KazooClient

from kiel_groups.allocators import ALLOCATORS
from kiel_groups.config import BROKER_V0, ZOOKEEPER_STORE, GroupConfig, ZooKeeperConfig
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.group.znodes.contents import parse_topic
from kiel_groups.group.znodes.layout import BROKER_IDS, TOPICS, GroupLayout, topic_path
from kiel_groups.model import TopicPartition
from kiel_groups.testing import FakeEnsemble, Host, SimulatedRuntime, Timeline, fake_client
from tests.sim.brokers import Brokers
from tests.sim.consumer import Consumer
from tests.sim.delays import Delays
from tests.sim.ledger import Ledger, Violation
from tests.sim.logs import Logs
from tests.sim.openings import Openings
from tests.sim.quiet_end import quiet_end
from tests.sim.story import Story, make_story

__all__ = ["World", "at_rest"]

SESSION_TIMEOUT_MS = 10_000
#: Shorter than what a restart takes, sometimes.
STATIC_GRACE_MS = 12_000
#: What a story at rest has in any case, unless a test says otherwise.
RECONCILE_INTERVAL_MS = 30_000
AT_REST: Mapping[str, Any] = {
    "leaders_after_s": (),
    "is_static": False,
    "store": ZOOKEEPER_STORE,
    "reconcile_interval_ms": RECONCILE_INTERVAL_MS,
    "events": (),
}
#: How many brokers store offsets, where they do.
BROKERS = 2
#: How long hooks of listeners take, in seconds, in groups by turns.
HOOKS_S = (0.0, 0.0, 0.3, 2.0)


class World:
    """Where a story happens."""

    group = "g"

    def __init__(self, story: Story, topic_name: Callable[[int], str] = "t{}".format) -> None:
        self.timeline = Timeline(story.seed)
        # Servers of 3.4 and later ones, by turns.
        self.ensemble = FakeEnsemble(self.timeline, 3, sync_limit=story.sync_limit, reports_moves=bool(story.seed % 2))
        self.layout = GroupLayout(self.group)
        self.reset = story.reset
        self.hook_s = HOOKS_S[story.seed // 2 % len(HOOKS_S)]
        self.allocator = ALLOCATORS[story.allocator]
        self.is_static = story.is_static
        self.store = story.store
        self.reconcile_interval_ms = story.reconcile_interval_ms
        self._heartbeat_interval_ms = story.heartbeat_interval_ms
        self.logs = Logs()
        self.consumers: list[Consumer] = []
        self.ledger = Ledger(self)
        self._openings = Openings(self)
        self.ensemble.observers.append(self.ledger.committed)
        self.operator: KazooClient = fake_client(Host(self.ensemble))
        self.operator.start()
        self.operator.ensure_path(TOPICS)
        self.operator.create(f"{BROKER_IDS}/0", b'{"host":"broker","port":9092}', makepath=True)
        self.brokers = Brokers(self, BROKERS if self.store == BROKER_V0 else 0)
        self.began_s = self.timeline.now_s
        self.topics: dict[str, int] = {}
        #: Creation zxids of those that are deleted, to be created again; and until when brokers do not know a topic.
        self._absent: dict[str, int] = {}
        self._unknown_until_s: dict[str, float] = {}
        #: Until when partitions have no leader.
        self._leaderless_until_s: dict[TopicPartition, float] = {}
        for number, partitions in enumerate(story.topics):
            topic = topic_name(number)
            self.topics[topic] = partitions
            self.operator.create(topic_path(topic), self.topic_data(topic))
            for partition, delay_s in zip(self._partitions_of(topic), story.leaders_after_s, strict=False):
                self.lose_leader(partition, delay_s)
        self._delays = Delays(self)
        for member in range(story.members):
            self.join(self.topics if member < 2 else self.some_topics(member / story.members))

    def settings(self, instance_id: str | None) -> tuple[GroupConfig, ZooKeeperConfig]:
        """What every consumer is configured with."""
        group = GroupConfig(
            group=self.group,
            instance_id=instance_id,
            static_grace_ms=STATIC_GRACE_MS,
            auto_offset_reset=self.reset,  # type: ignore[arg-type]
            store=self.store,
            reconcile_interval_ms=self.reconcile_interval_ms,
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
        partitions = {str(number): [0] for number in range(self.topics[topic])}
        return json.dumps({"version": 1, "partitions": partitions}).encode()

    def set_partitions(self, topic: str, partitions: int) -> None:
        """Ask for more of them; whether it happens is ZooKeeper's business."""
        self.topics[topic] = partitions
        self.operator.set_async(topic_path(topic), self.topic_data(topic))

    def recreate_topic(self, topic: str, gone_s: float, silent_s: float) -> None:
        """Delete it and create it again, ``gone_s`` later; brokers take ``silent_s`` more to hear of it."""
        if topic in self._absent:
            return
        self._unknown_until_s[topic] = self.timeline.now_s + gone_s + silent_s
        if gone_s:
            self.logs.begin_anew(topic)
            self._absent[topic] = self.ensemble.tree.znodes[topic_path(topic)].czxid
            self.operator.delete_async(topic_path(topic))
            self.timeline.after(gone_s, self._create_again, topic)
            return
        self.logs.begin_anew(topic)
        transaction = self.operator.transaction()
        transaction.delete(topic_path(topic))
        transaction.create(topic_path(topic), self.topic_data(topic))
        transaction.commit_async()

    def _create_again(self, topic: str) -> None:
        """Until another one is there: the operator's own connection may break, and the end of a story is in a hurry."""
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

    def has_leader(self, partition: TopicPartition) -> bool:
        """Whether a broker tells anything of a partition."""
        until_s = max(self._unknown_until_s.get(partition.topic, 0.0), self._leaderless_until_s.get(partition, 0.0))
        return self.timeline.now_s >= until_s

    def lose_leader(self, partition: TopicPartition, duration_s: float) -> None:
        """From now on, and for so long, no broker leads a partition."""
        self._leaderless_until_s[partition] = self.timeline.now_s + duration_s

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.topics[topic])]

    def some_topic(self, who: int) -> str:
        return sorted(self.topics)[who % len(self.topics)]

    def some_topics(self, choice: float) -> list[str]:
        """One of them, or all."""
        names = sorted(self.topics)
        return names if choice < 0.6 else [names[int(choice * 1000) % len(names)]]

    def partitions(self) -> list[TopicPartition]:
        """Those that some living consumer subscribes to."""
        subscribed = {topic for consumer in self.consumers if consumer.lives for topic in consumer.topics}
        znodes = self.ensemble.tree.znodes
        found = {topic: znodes[topic_path(topic)] for topic in sorted(subscribed) if topic_path(topic) in znodes}
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
        """The owner znodes of a consumer's session, with their czxids."""
        truth = self.ensemble.tree
        paths = [path for session in consumer.process.sessions for path in truth.ephemerals(session)]
        return {path: truth.znodes[path].czxid for path in paths if path.startswith(self.layout.owners)}

    def join(self, topics: Iterable[str], instance_id: str | None = None) -> Consumer:
        """Start a consumer; one that comes back brings its instance id."""
        name = f"c{len(self.consumers) + 1}"
        if self.is_static and instance_id is None:
            instance_id = f"i-{name}"
        consumer = Consumer(self, name, tuple(topics), instance_id)
        self.consumers.append(consumer)
        return consumer

    # Time

    @property
    def log_end(self) -> int:
        """Where logs end that nothing has happened to."""
        return self.logs.end

    # Logs

    def retain(self, partition: TopicPartition, start: int) -> None:
        """Retention deletes what is before an offset; who reads there is told soon."""
        self.logs.retain(partition, start)
        self._tell_out_of_range(partition)

    def cut(self, partition: TopicPartition, end: int, grown_s: float) -> None:
        """A log loses its end, and has it again ``grown_s`` later."""
        self.logs.cut(partition, end)
        self._tell_out_of_range(partition)
        self.timeline.after(grown_s, self.logs.grow, partition)

    def _tell_out_of_range(self, partition: TopicPartition) -> None:
        for consumer in self.consumers:
            if consumer.lives:
                delay_s = self.timeline.random.uniform(0.0, 0.5)
                self.timeline.after(
                    delay_s, consumer.process.run_on_loop, consumer.process.call, consumer.fetch, partition
                )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the story began."""
        return self.timeline.now_s - self.began_s

    def run_for(self, duration_s: float) -> None:
        """Let time pass, and look after every step."""
        timeline, ledger = self.timeline, self.ledger
        until_s = timeline.now_s + duration_s
        while timeline.step(until_s):
            if ledger.contested:
                ledger.check_gates()
            if timeline.failures:
                raise timeline.failures[0]
            if late := self._openings.look():
                raise Violation(late)
        timeline.now_s = until_s

    def heal(self) -> None:
        """End all faults."""
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
        Let time pass until every partition is owned.

        Raises:
            Violation: It takes longer.
        """
        end_s = self.timeline.now_s + limit_s
        while not self.is_settled():
            if self.timeline.now_s > end_s:
                unowned = self.ledger.unowned(self.partitions())
                unsettled = [c.name for c in self.consumers if c.lives and not c.member.settled]
                raise Violation(
                    f"{limit_s:g} s after the last fault {len(unowned)} partitions are not owned by one, first"
                    f" {unowned[:3]}; not settled: {unsettled}; not started over in a new log: {self._outdated()[:3]}"
                )
            self.run_for(0.5)

    def is_settled(self) -> bool:
        return (
            not self._absent
            and all(consumer.member.settled for consumer in self.consumers if consumer.lives)
            and not self.ledger.unowned(self.partitions())
            and not self._outdated()
        )

    def _outdated(self) -> list[TopicPartition]:
        """Partitions whose owner has not started over since their topic was created again."""
        living = [consumer for consumer in self.consumers if consumer.lives]
        return [p for consumer in living for p in sorted(consumer.flowing) if self.ledger.is_outdated(consumer, p)]

    def close(self, limit_s: float) -> None:
        """
        Have everybody leave in order.

        Raises:
            Violation: Somebody does not come to an end, or leaves claims behind.
        """
        for consumer in self.consumers:
            if consumer.lives:
                consumer.leave()
        leaving = [consumer for consumer in self.consumers if consumer.closing and not consumer.process.killed]
        end_s = self.timeline.now_s + limit_s
        while not all(consumer.closed for consumer in leaving):
            if self.timeline.now_s > end_s:
                names = [consumer.name for consumer in leaving if not consumer.closed]
                raise Violation(f"{limit_s:g} s after everybody was asked to leave, {names} have not")
            self.run_for(0.5)
        while claims := self.claims():
            # Sessions that nobody could close end by themselves.
            if self.timeline.now_s > end_s + 2 * SESSION_TIMEOUT_MS / 1000:
                raise Violation(f"everybody has left, and {claims[0]} stands")
            self.run_for(0.5)

    def claims(self) -> list[str]:
        """The paths of all owner znodes."""
        owners = f"{self.layout.owners}/"
        return [path for path in self.ensemble.tree.znodes if path.startswith(owners) and path.count("/") == 5]


@contextmanager
def at_rest(**changes: Any) -> Iterator[World]:
    """
    A group to which nothing happens by itself, settled; its processes are killed in the end.

    Args:
        changes: What of the story is to be otherwise: ``members``, ``topics`` (partitions of each), …
    """
    with quiet_end() as killed:
        world = World(replace(make_story(1), **{**AT_REST, **changes}))
        try:
            with runtime.replaced(SimulatedRuntime(world.timeline)):
                world.settle(60.0)
                yield world
        finally:
            for consumer in world.consumers:
                consumer.kill()
                killed.append(consumer.process)
