"""One simulated group that brokers coordinate, with its environment: brokers, topics, consumers, and the checker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kiel_groups.config import CoordinatorConfig, GroupConfig
from kiel_groups.model import TopicPartition
from tests.fakes import FakeCoordinator, FakeEnsemble, Timeline
from tests.fakes.fake_coordinator import AcceptedCommit
from tests.sim.coordinated.broker_checker import BrokerChecker
from tests.sim.coordinated.broker_scenario import BrokerScenario, make_broker_scenario
from tests.sim.coordinated.member_process import BrokerConsumer
from tests.sim.garbage_collection import deferred_collection
from tests.sim.group_world import GroupWorld
from tests.sim.logs import Log, Logs
from tests.sim.poison import Poison

__all__ = ["BrokerWorld", "brokers_at_rest"]

#: The node ids of the brokers.
BROKERS = (1, 2)
#: The session timeout in milliseconds, and the records that a log has at first.
SESSION_TIMEOUT_MS, FIRST_RECORDS = 10_000, 20
#: The interval at which an awaited state is checked, in seconds.
CHECK_S = 0.5
#: The pause before a broker that has crashed is replaced as the coordinator, in seconds.
ELECTION_S = 0.5
#: The settings of a group at rest, and the time limit, in seconds, for its partitions to be owned.
AT_REST: dict[str, Any] = {
    "members": 2,
    "topics": (4,),
    "reset": "earliest",
    "early": False,
    "ids": True,
    "names_first": True,
    "assignor": "range",
    "heartbeat_interval_ms": 3_000,
    "rebalance_timeout_ms": 30_000,
    "request_timeout_ms": 8_000,
    "max_poll_ms": 0,
    "metadata_max_age_ms": 20_000,
    "offset_refresh_ms": 3_600_000,
    "initial_delay_s": 0.0,
    "autocommit": True,
    "hook_s": 0.0,
    "events": (),
}
SETTLED_S = 60.0
#: How long brokers may list topics as they were, in seconds, and the share of the members whose fetches fail then.
METADATA_LAG_S, NOTICED_SHARE = 1.5, 0.8


class _GrowingLogs(Logs):
    """Logs with an end: producers append to them."""

    def __init__(self) -> None:
        super().__init__()
        self._logs = defaultdict(lambda: Log(FIRST_RECORDS, cut=FIRST_RECORDS, ends={FIRST_RECORDS}))

    def begin(self, partition: TopicPartition, count: int) -> None:
        """Begin the log of a topic that is created again, with as many records."""
        self._logs[partition] = Log(count, cut=count, ends={0, count})

    def append(self, partition: TopicPartition, count: int) -> None:
        log = self[partition]
        log.cut = log.grown = log.end + count
        log._note()


class BrokerWorld(GroupWorld):
    """The group of one scenario, with its environment."""

    group = "g"
    checker: BrokerChecker

    def __init__(self, scenario: BrokerScenario) -> None:
        self.timeline = Timeline(scenario.seed)
        #: Unused by members; hosts of simulated processes belong to an ensemble.
        self.ensemble = FakeEnsemble(self.timeline)
        self.coordinator = FakeCoordinator(
            self.timeline, BROKERS, early=scenario.early, initial_delay_s=scenario.initial_delay_s
        )
        self.scenario = scenario
        self.autocommit = scenario.autocommit
        self.assignor = scenario.assignor
        self.reset = scenario.reset
        self.hook_s = scenario.hook_s
        self.poison = Poison(scenario.seed, 0)
        self.metadata_fails = False
        self.slow_until_s = 0.0
        self.group_config = GroupConfig(
            group=self.group,
            auto_offset_reset=scenario.reset,  # type: ignore[arg-type]
            autocommit=scenario.autocommit,
            max_poll_interval_ms=scenario.max_poll_ms,
        )
        self.timing = CoordinatorConfig(
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=scenario.heartbeat_interval_ms,
            rebalance_timeout_ms=scenario.rebalance_timeout_ms,
            find_timeout_ms=scenario.request_timeout_ms,
            offset_refresh_ms=scenario.offset_refresh_ms,
            metadata_max_age_ms=scenario.metadata_max_age_ms,
        )
        self.logs = _GrowingLogs()
        self.topics = {f"t{number}": partitions for number, partitions in enumerate(scenario.topics)}
        #: The incarnation of each topic, the topics that are deleted at the moment, those of them that are not created
        #: again, and until when metadata may be old.
        self.incarnations: defaultdict[str, int] = defaultdict(int)
        self.deleted: set[str] = set()
        self.gone: set[str] = set()
        self._former: dict[str, tuple[float, int | None]] = {}
        self.consumers: list[BrokerConsumer] = []
        self.checker = self.history = BrokerChecker(self)
        self.coordinator.observers.append(self.checker.committed)
        self.began_s = self.timeline.now_s
        for member in range(scenario.members):
            self.join(self.topics if member < 2 else self.some_topics(member / scenario.members))

    def observe_writes(self, record: Callable[[str], None]) -> None:
        """Call ``record`` with a description of each later commit that the coordinator accepts."""

        def committed(commit: AcceptedCommit) -> None:
            request = commit.request
            record(f"{request.generation} {request.member_id} {sorted(request.offsets.items())}")

        self.coordinator.observers.append(committed)

    # The group

    def join(self, topics: Iterable[str], pattern: str | None = None) -> BrokerConsumer:
        """Start a consumer of topics, or of a pattern if there is one."""
        consumer = BrokerConsumer(self, f"c{len(self.consumers) + 1}", tuple(topics), pattern)
        self.consumers.append(consumer)
        return consumer

    @property
    def running(self) -> list[BrokerConsumer]:
        return [consumer for consumer in self.consumers if consumer.is_running]

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the topics that running consumers subscribe to."""
        running = self.running
        existing = sorted(self.topics.keys() - self.gone)
        subscribed = [topic for topic in existing if any(consumer.wants(topic) for consumer in running)]
        return [TopicPartition(topic, number) for topic in subscribed for number in range(self.topics[topic])]

    def all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, count in self.topics.items() for number in range(count)]

    # Topics that are created, deleted, or created again

    def add_topic(self, partitions: int) -> str:
        """Create another topic, and return its name."""
        topic = f"n{sum(name.startswith('n') for name in self.topics)}"
        self.topics[topic] = partitions
        return topic

    def remove_topic(self, number: int) -> str:
        """Delete a topic that ``add_topic`` has created for good, and return its name, or ""."""
        there = [topic for topic in sorted(self.topics.keys() - self.deleted) if topic.startswith("n")]
        if not there:
            return ""
        topic = there[number % len(there)]
        self.gone.add(topic)
        self.delete_topic(topic)
        return topic

    def delete_topic(self, topic: str) -> None:
        """Delete a topic. Most of the members' fetches notice that soon."""
        self._former[topic] = (self.timeline.now_s + METADATA_LAG_S, self.incarnations[topic])
        self.deleted.add(topic)
        self.coordinator.delete_topic(topic)
        self._fail_fetches(topic)

    def create_topic(self, topic: str, records: float) -> None:
        """Create a deleted topic again, with records in its log; `records` in [0, 1) says how many."""
        if topic not in self.deleted:
            return
        self._former[topic] = (self.timeline.now_s + METADATA_LAG_S, None)
        self.deleted.discard(topic)
        self.incarnations[topic] += 1
        self.coordinator.create_topic(topic)
        for number in range(self.topics[topic]):
            self.logs.begin(TopicPartition(topic, number), int(records * (40 + 10 * number)))
        self.checker.recreated(topic)
        self._fail_fetches(topic)

    def _fail_fetches(self, topic: str) -> None:
        for consumer in self.running:
            if self.timeline.random.random() < NOTICED_SHARE:
                consumer.doubt_logs(topic)
                self.timeline.after(self.timeline.random.uniform(0.0, 0.5), consumer.fetch_failed, topic)
            else:
                self.checker.unnoticed(consumer, topic)

    def listed(self, topic: str) -> int | None:
        """Return the incarnation of a topic as some broker lists it, whose metadata may be old; None if it does not."""
        until_s, former = self._former.get(topic, (0.0, None))
        if self.timeline.now_s < until_s and self.timeline.random.random() < 0.3:
            return former
        return None if topic in self.deleted else self.incarnations[topic]

    def has_leader(self, partition: TopicPartition) -> bool:
        return partition.topic not in self.deleted and not self.metadata_fails

    # Brokers

    def way_s(self) -> float:
        """Return the delay of a message: about a millisecond, and sometimes, or while the network is slow, longer."""
        draw = self.timeline.random.random()
        if self.timeline.now_s < self.slow_until_s:
            return draw * 1.5
        return 0.0003 + draw / 1000 if draw < 0.98 else draw * 0.1

    def crash(self, broker: int, down_s: float, loading_s: float) -> None:
        """Stop a broker for a while. If it coordinates, another one takes over, or itself when it runs again."""
        coordinator = self.coordinator
        if coordinator.down:
            return
        coordinates = coordinator.coordinator == broker
        coordinator.crash(broker)
        self.timeline.after(down_s, self._restart, broker)
        if coordinates and down_s > 1.0:
            self.timeline.after(ELECTION_S, self._elect, self._other(broker), loading_s)
        elif coordinates:
            self.timeline.after(down_s + ELECTION_S, self._elect, broker, loading_s)

    def _restart(self, broker: int) -> None:
        self.coordinator.restart(broker)

    def _elect(self, broker: int, loading_s: float) -> None:
        if self.coordinator.coordinator is None and broker not in self.coordinator.down:
            self.coordinator.elect(broker, loading_s)

    def move(self, loading_s: float) -> None:
        """Make the other broker the coordinator, if it runs."""
        if self.coordinator.coordinator is not None and not self.coordinator.down:
            self.coordinator.elect(self._other(self.coordinator.coordinator), loading_s)

    def _other(self, broker: int) -> int:
        return next(each for each in BROKERS if each != broker)

    def heal(self) -> None:
        """End all faults."""
        self.slow_until_s, self.metadata_fails = 0.0, False
        for topic in sorted(self.deleted - self.gone):
            self.create_topic(topic, 0.5)
        for broker in sorted(self.coordinator.down):
            self._restart(broker)
        if self.coordinator.coordinator is None:
            self.coordinator.elect(BROKERS[0])
        for consumer in self.consumers:
            consumer.network.heal()
            consumer.process.unblock()
            if consumer.process.frozen:
                consumer.process.thaw()

    def wait(self, condition_name: str, limit_s: float) -> None:
        """
        Advance the time until a condition of the checker is met: it returns what is missing, or "".

        Raises:
            Violation: It is not met within ``limit_s``.
        """
        end_s = self.timeline.now_s + limit_s
        condition = getattr(self.checker, condition_name)
        while missing := condition():
            if self.timeline.now_s > end_s:
                raise self.checker.violation(f"{limit_s:g} s are over, and {missing}")
            self.run_for(CHECK_S)


@contextmanager
def brokers_at_rest(**changes: Any) -> Iterator[BrokerWorld]:
    """
    Provide a settled group without faults or other events, and kill its processes at the end of the block.

    Args:
        changes: Other values of fields of ``BrokerScenario``: ``members``, ``topics`` (the partitions of each), …
    """
    with deferred_collection() as killed:
        world = BrokerWorld(replace(make_broker_scenario(1), **{**AT_REST, **changes}))
        try:
            world.wait("unowned", SETTLED_S)
            yield world
        finally:
            for consumer in world.consumers:
                consumer.kill()
                killed.append(consumer.process)
