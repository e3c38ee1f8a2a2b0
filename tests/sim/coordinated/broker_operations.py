"""The operations of scenarios of broker-coordinated groups: faults, changes, and the work of applications."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.coordinated.member_network import LANES, LOSABLE
from tests.sim.scenario import PATTERNS, Event

if TYPE_CHECKING:
    from tests.sim.coordinated.broker_world import BrokerWorld
    from tests.sim.coordinated.member_process import BrokerConsumer

__all__ = ["perform"]

#: The longest time that a coordinator loads its log, in seconds.
LOADING_S = 6.0


def perform(world: BrokerWorld, event: Event) -> str:
    """Perform an event's operation, and return a description for the report."""
    if event.operation in _ON_CONSUMERS:
        running = world.running
        if not running:
            return f"{event.operation}: no consumer is running"
        consumer = running[event.target % len(running)]
        done = _ON_CONSUMERS[event.operation](world, consumer, event)
        return f"{event.operation} {consumer.name} ({event.choice:.2f}, {event.duration_s:.2f} s) {done or ''}"
    return f"{event.operation} {_ON_THE_GROUP[event.operation](world, event) or ''}"


# Consumers


def _work(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.work(event.choice, 1 + event.target % 5, event.duration_s)


def _get_many(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.get_many(1 + event.target % 5, event.duration_s)


def _commit_chosen(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    """Have the application commit an offset that it chooses; the member must refuse what it may not commit."""
    partitions = sorted(consumer.opened) if event.target % 4 else world.partitions()
    if not partitions:
        return
    partition = partitions[int(event.choice * len(partitions))]
    state = consumer.state_of(partition)
    finished = 0 if state is None else state.finished
    offset = max(0, finished - int(event.choice * 1000) % 4) if event.target % 3 else finished + 1_000
    if state is not None:
        world.checker.commit_chosen(consumer, partition, state.token, offset)
    consumer.process.start(consumer.commit_if_allowed({partition: offset}))


def _pause_partition(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.pause(event.choice)


def _resume_partitions(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.resume()


def _kill(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.kill()


def _restart(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.kill()
    world.join(consumer.topics, consumer.pattern)


def _leave(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    if len(world.running) > 1:
        consumer.leave()


def _leave_soon(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    """Leave within a short time, even if the application or the coordinator takes longer."""
    if len(world.running) > 1:
        consumer.leave(min(event.duration_s, 2.0))


def _freeze(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.process.freeze()
    world.timeline.after(event.duration_s, consumer.process.thaw)


def _block(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.process.block(event.duration_s)


def _cut(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.network.cut(LANES, event.duration_s)


def _cut_beats(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.network.cut(("beats",), event.duration_s)


def _cut_offsets(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.network.cut(("aside",), event.duration_s)


def _lose_request(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> str:
    kind = LOSABLE[int(event.choice * len(LOSABLE))]
    consumer.network.losing[kind] = "request"
    return kind


def _lose_answer(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> str:
    kind = LOSABLE[int(event.choice * len(LOSABLE))]
    consumer.network.losing[kind] = "answer"
    return kind


def _subscribe(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.subscribe(world.some_topics(event.choice))


def _subscribe_pattern(world: BrokerWorld, consumer: BrokerConsumer, event: Event) -> None:
    consumer.subscribe((), PATTERNS[int(event.choice * len(PATTERNS))])


# Brokers


def _slow_network(world: BrokerWorld, event: Event) -> str:
    world.slow_until_s = world.timeline.now_s + event.duration_s
    return f"for {event.duration_s:g} s"


def _crash_broker(world: BrokerWorld, event: Event) -> str:
    """Stop a broker, mostly the one that coordinates."""
    coordinator = world.coordinator.coordinator
    brokers = world.coordinator.brokers
    broker = brokers[event.target % len(brokers)] if coordinator is None or event.target % 5 == 0 else coordinator
    world.crash(broker, event.duration_s, event.choice * LOADING_S)
    return f"{broker} for {event.duration_s:g} s, loading takes {event.choice * LOADING_S:.2f} s"


def _move_coordinator(world: BrokerWorld, event: Event) -> str:
    world.move(event.choice * LOADING_S)
    return f"to {world.coordinator.coordinator}, loading takes {event.choice * LOADING_S:.2f} s"


def _lose_metadata(world: BrokerWorld, event: Event) -> str:
    world.metadata_fails = True
    world.timeline.after(event.duration_s, setattr, world, "metadata_fails", False)
    return f"for {event.duration_s:g} s"


def _expire_offsets(world: BrokerWorld, event: Event) -> str:
    """Have some offsets expire."""
    stored = sorted(world.coordinator.offsets[world.group])
    gone = [
        partition for number, partition in enumerate(stored) if (number * (1 + event.target) % 7) / 7 < event.choice
    ]
    world.coordinator.expire_offsets(world.group, gone)
    for partition in gone:
        world.checker.expired(partition)
    return f"of {len(gone)} partitions"


# The group


def _join(world: BrokerWorld, event: Event) -> str:
    return world.join(world.some_topics(event.choice)).name


def _grow_topic(world: BrokerWorld, event: Event) -> str:
    topic = sorted(world.topics)[event.target % len(world.topics)]
    if topic in world.deleted:
        return f"{topic} is deleted"
    world.topics[topic] += 1 + int(event.choice * 3)
    return f"{topic} to {world.topics[topic]} partitions"


def _recreate_topic(world: BrokerWorld, event: Event) -> str:
    """Delete a topic and create it again, at once or after a while."""
    topic = sorted(world.topics)[event.target % len(world.topics)]
    if topic in world.deleted:
        return f"{topic} is deleted already"
    pause_s = 0.0 if event.target % 2 else event.duration_s
    world.delete_topic(topic)
    world.timeline.after(pause_s, world.create_topic, topic, event.choice)
    return f"{topic} after {pause_s:g} s"


def _produce(world: BrokerWorld, event: Event) -> str:
    partitions = world.all_partitions()
    some = [each for number, each in enumerate(partitions) if (number + event.target) % 3 == 0]
    some = [partition for partition in some if partition.topic not in world.deleted]
    for partition in some:
        world.logs.append(partition, 1 + int(event.choice * 5))
    return f"to {len(some)} partitions"


_ON_CONSUMERS: dict[str, Callable[[BrokerWorld, BrokerConsumer, Event], str | None]] = {
    "work": _work,
    "get_many": _get_many,
    "commit_chosen": _commit_chosen,
    "pause_partition": _pause_partition,
    "resume_partitions": _resume_partitions,
    "kill": _kill,
    "restart": _restart,
    "leave": _leave,
    "leave_soon": _leave_soon,
    "freeze": _freeze,
    "block": _block,
    "cut": _cut,
    "cut_beats": _cut_beats,
    "cut_offsets": _cut_offsets,
    "lose_request": _lose_request,
    "lose_answer": _lose_answer,
    "subscribe": _subscribe,
    "subscribe_pattern": _subscribe_pattern,
}
_ON_THE_GROUP: dict[str, Callable[[BrokerWorld, Event], str]] = {
    "slow_network": _slow_network,
    "crash_broker": _crash_broker,
    "move_coordinator": _move_coordinator,
    "lose_metadata": _lose_metadata,
    "expire_offsets": _expire_offsets,
    "join": _join,
    "grow_topic": _grow_topic,
    "create_topic": lambda world, event: world.add_topic(1 + event.target % 3),
    "delete_topic": lambda world, event: world.remove_topic(event.target),
    "recreate_topic": _recreate_topic,
    "produce": _produce,
}
