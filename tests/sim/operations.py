"""The operations of scenarios: faults, changes by operators, and the work of applications."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError

from kiel_groups.group.znodes.group_settings import encode_weights
from kiel_groups.model import TopicPartition
from tests.fakes import FakeServer
from tests.sim.scenario import PATTERNS, Event

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["ON_SERVERS", "perform"]

#: The pause of an operator, in seconds, between the deletion of a member znode and that of its owner znodes: the
#: session timeout, and some time for messages in flight.
FORCE_RELEASE_S = 10.5
#: The share of lost answers with which the followers lag, too.
STALE_SHARE = 0.5
#: The number of rewrites of an assignment, four in each reconcile interval.
NOTIFICATIONS = 10
#: The share of the operator's writes of weights that are valid.
READABLE_SHARE = 0.8
#: The share of topics that are deleted and created again in one transaction.
GONE_SHARE = 0.7
#: How far beyond the finished offset a chosen offset may be: farther than any record that is delivered.
FAR_BEYOND = 1_000_000
#: The share of log cuts that remove only a few of the records that were read, and the most records that these remove.
CUT_SHARE, MOST_CUT = 0.8, 12


def perform(world: World, event: Event) -> str:
    """Perform an event's operation, and return a description for the report."""
    if event.operation in _ON_CONSUMERS:
        running = [consumer for consumer in world.consumers if consumer.is_running]
        if not running:
            return f"{event.operation}: no consumer is running"
        consumer = running[event.target % len(running)]
        _ON_CONSUMERS[event.operation](world, consumer, event)
        return f"{event.operation} {consumer.name} ({event.choice:.2f}, {event.duration_s:.2f} s)"
    if event.operation in ON_SERVERS:
        server = world.ensemble.servers[event.target % len(world.ensemble.servers)]
        ON_SERVERS[event.operation](world, server, event)
        return f"{event.operation} {server!r} for {event.duration_s:.2f} s"
    return f"{event.operation} {_ON_THE_GROUP[event.operation](world, event) or ''}"


# Consumers


def _work(world: World, consumer: Consumer, event: Event) -> None:
    consumer.work(event.choice, 1 + event.target % 5, event.duration_s)


def _commit_chosen(world: World, consumer: Consumer, event: Event) -> None:
    """
    Have the application commit an offset that it chooses: in half of the cases at or before what it has finished.

    The member must refuse the other offsets: before its claim, beyond its position, and of partitions of others.
    """
    partitions = sorted(consumer.opened) if event.target % 8 else world.partitions()
    if not partitions:
        return
    partition = partitions[int(event.choice * len(partitions))]
    state = consumer.state_of(partition)
    floor, finished = (0, 0) if state is None else (state.floor, state.finished)
    back = int(event.choice * 1000) % (1 + max(0, finished - floor))
    chosen = finished - back
    offset = [chosen, chosen, max(0, floor - 1 - back), finished + FAR_BEYOND][event.target % 4]
    if state is not None:
        world.checker.commit_chosen(consumer, partition, state.token, offset)
    consumer.process.start(consumer.commit_if_allowed({partition: offset}))


def _get_many(world: World, consumer: Consumer, event: Event) -> None:
    consumer.get_many(1 + event.target % 5, event.duration_s)


def _seek(world: World, consumer: Consumer, event: Event) -> None:
    consumer.seek(event.choice, event.target / 60)


def _pause_partition(world: World, consumer: Consumer, event: Event) -> None:
    consumer.pause(event.choice)


def _resume_partitions(world: World, consumer: Consumer, event: Event) -> None:
    consumer.resume()


def _kill(world: World, consumer: Consumer, event: Event) -> None:
    consumer.kill()


def _restart(world: World, consumer: Consumer, event: Event) -> None:
    consumer.kill()
    topics, pattern = consumer.pending or (consumer.topics, consumer.pattern)
    world.join(topics, consumer.instance_id, pattern)


def _leave(world: World, consumer: Consumer, event: Event) -> None:
    if len([other for other in world.consumers if other.is_running]) > 1:
        consumer.leave()


def _pause(world: World, consumer: Consumer, event: Event) -> None:
    consumer.process.freeze()
    world.timeline.after(event.duration_s, consumer.process.thaw)


def _block(world: World, consumer: Consumer, event: Event) -> None:
    consumer.process.block(event.duration_s)


def _stall(world: World, consumer: Consumer, event: Event) -> None:
    consumer.process.stall()
    world.timeline.after(event.duration_s, consumer.process.resume)


def _reset(world: World, consumer: Consumer, event: Event) -> None:
    consumer.process.reset()


def _lose_reply(world: World, consumer: Consumer, event: Event) -> None:
    consumer.process.lose("reply")
    if event.choice < STALE_SHARE:
        # If the consumer reads the outcome of the transaction from another server, it reads an old state.
        for server in world.ensemble.servers:
            if server is not world.ensemble.leader:
                _lag(world, server, event)


def _lose_request(world: World, consumer: Consumer, event: Event) -> None:
    consumer.process.lose("request")


def _subscribe(world: World, consumer: Consumer, event: Event) -> None:
    consumer.subscribe(world.some_topics(event.choice))


def _subscribe_pattern(world: World, consumer: Consumer, event: Event) -> None:
    consumer.subscribe((), PATTERNS[int(event.choice * len(PATTERNS))])


def _create_topic(world: World, event: Event) -> str:
    return world.create_topic(1 + event.target % 3)


def _delete_topic(world: World, event: Event) -> str:
    return world.delete_topic(event.target)


def _lose_events(world: World, consumer: Consumer, event: Event) -> None:
    """Lose the events of the consumer's watches on the group's znodes. Watches on topics and offsets still work."""
    ours = (world.layout.group_state, world.layout.owners, world.layout.members)
    consumer.process.loses_events = lambda path: path.startswith(ours)
    world.timeline.after(event.duration_s, setattr, consumer.process, "loses_events", lambda _: False)


def _notify_often(world: World, consumer: Consumer, event: Event) -> None:
    """Rewrite the assignment unchanged, four times in each reconcile interval. Also set an offset as an operator."""
    interval_s = world.reconcile_interval_ms / 1000
    for number in range(1, NOTIFICATIONS + 1):
        world.timeline.after(number * interval_s / 4, _rewrite_assignment, world, consumer)
    if opened := sorted(consumer.opened):
        partition = opened[int(event.choice * len(opened))]
        world.operator.set_async(world.layout.offset(partition), b"%d" % event.target)


def _rewrite_assignment(world: World, consumer: Consumer) -> None:
    path = consumer.assignment_path
    znode = None if path is None else world.ensemble.tree.znodes.get(path)
    if znode is not None:
        world.operator.set_async(path, znode.data, znode.version)


def _delete_member(world: World, consumer: Consumer, event: Event) -> None:
    if consumer.member.member_id is not None:
        world.operator.delete_async(world.layout.member(consumer.member.member_id))


def _delete_assignment(world: World, consumer: Consumer, event: Event) -> None:
    assignments = world.ensemble.tree.children(world.layout.group_state) if world.has_plan else []
    if assignments:
        world.operator.delete_async(world.layout.assignment(assignments[event.target % len(assignments)]))


def _force_release(world: World, consumer: Consumer, event: Event) -> None:
    """
    Release by force as the product does: delete the member znode, and delete the owner znodes once the member's gate is
    shut.
    """
    owned = world.owned_by(consumer)

    def answered(deletion: Any) -> None:
        if deletion.successful() or isinstance(deletion.exception, NoNodeError):
            world.timeline.after(FORCE_RELEASE_S, _delete_owners, world, owned)

    if consumer.member.member_id is not None:
        world.operator.delete_async(world.layout.member(consumer.member.member_id)).rawlink(answered)


def _delete_owners(world: World, owned: dict[str, int]) -> None:
    for path, czxid in owned.items():
        znode = world.ensemble.tree.znodes.get(path)
        if znode is not None and znode.czxid == czxid:
            world.operator.delete_async(path)


# Servers


def _others_are_well(world: World, server: FakeServer) -> bool:
    """Return whether no other server has a fault. Two faults at once would leave the ensemble without a quorum."""
    others = [other for other in world.ensemble.servers if other is not server]
    return all(other.up and not other.frozen and not other.cut for other in others)


def _for_a_while(fault: Callable[[World, FakeServer], None]) -> Callable[[World, FakeServer, Event], None]:
    def do(world: World, server: FakeServer, event: Event) -> None:
        if _others_are_well(world, server):
            fault(world, server)
            world.timeline.after(event.duration_s, world.ensemble.heal, server)

    return do


def _partition(world: World, server: FakeServer, event: Event) -> None:
    """Cut a server, together with the consumers that are connected to it, off from the other servers for a while."""
    if not _others_are_well(world, server):
        return
    world.ensemble.cut(server)
    for consumer in world.consumers:
        if consumer.is_running and consumer.process.server is server:
            consumer.process.only = server
    world.timeline.after(event.duration_s, _heal, world, server)


def _heal(world: World, server: FakeServer) -> None:
    world.ensemble.heal(server)
    for consumer in world.consumers:
        if consumer.process.only is server:
            consumer.process.only = None


def _lag(world: World, server: FakeServer, event: Event) -> None:
    server.lag_s = 2.0 * event.choice
    world.timeline.after(event.duration_s, setattr, server, "lag_s", 0.0)


# Brokers


def _hold_commits(world: World, event: Event) -> str:
    """Delay the writes of one broker. The partitions may have other owners when it writes."""
    broker = event.target % len(world.brokers.all)
    world.brokers.all[broker].hold(event.duration_s)
    return f"of broker {broker} for {event.duration_s:g} s"


def _lose_commit_answers(world: World, event: Event) -> str:
    """Lose the next answers of one broker, which still stores the requested offsets."""
    broker = event.target % len(world.brokers.all)
    world.brokers.all[broker].loses += 1 + int(event.choice * 3)
    return f"of broker {broker}"


# The group


def _join(world: World, event: Event) -> str:
    return world.join(world.some_topics(event.choice)).name


def _kill_publishing(world: World, event: Event) -> str:
    """Kill the leader during its next publication."""
    world.on_plan = lambda: _kill_leader(world, event.choice)
    return "the leader"


def _kill_leader(world: World, choice: float) -> None:
    for consumer in world.consumers:
        if consumer.is_running and consumer.member.leads and sum(other.is_running for other in world.consumers) > 1:
            world.timeline.after(0.01 * choice, consumer.kill)


def _reset_offset(world: World, event: Event) -> str:
    partitions = world.partitions()
    if not partitions:
        return ""
    partition = partitions[event.target % len(partitions)]
    offset = int(event.choice * 2 * world.log_end)
    world.operator.set_async(world.layout.offset(partition), b"%d" % offset)
    return f"{partition} to {offset}"


def _order_offsets(world: World, event: Event) -> str:
    """Order offsets of up to four partitions, and take back what has not been performed after a while."""
    partitions = world.partitions()
    if not partitions:
        return ""
    first = event.target % len(partitions)
    chosen = {each: int(event.choice * 2 * world.log_end) for each in partitions[first : first + 1 + event.target % 4]}
    return world.order(chosen, event.duration_s)


def _garble_offset(world: World, event: Event) -> str:
    partitions = world.partitions()
    if not partitions:
        return ""
    partition = partitions[event.target % len(partitions)]
    world.operator.set_async(world.layout.offset(partition), b"garbage")
    return str(partition)


def _delete_offsets(world: World, event: Event) -> str:
    """Delete the offset znodes of a topic one by one, and then their folder, as zkCli does."""
    topic = world.some_topic(event.target)
    folder = world.layout.topic_offsets(topic)
    if folder in world.ensemble.tree.znodes:
        for name in world.ensemble.tree.children(folder):
            world.operator.delete_async(f"{folder}/{name}")
        world.operator.delete_async(folder)
    return topic


def _delete_group_state(world: World, event: Event) -> str:
    """Delete the assignments and then their parent, the group state. Generations may then start at 1 again."""
    if not world.has_plan:
        return ""
    group_state = world.layout.group_state
    transaction = world.operator.transaction()
    for slot in world.ensemble.tree.children(group_state):
        transaction.delete(f"{group_state}/{slot}")
    transaction.delete(group_state)
    transaction.commit_async()
    return ""


def _delete_candidate(world: World, event: Event) -> str:
    candidates = world.ensemble.tree.children(world.layout.election) if world.has_plan else []
    if not candidates:
        return ""
    name = candidates[event.target % len(candidates)]
    world.operator.delete_async(f"{world.layout.election}/{name}")
    return name


def _grow_topic(world: World, event: Event) -> str:
    topic = world.some_topic(event.target)
    world.set_partitions(topic, world.topics[topic] + 1 + int(event.choice * 3))
    return topic


def _recreate_topic(world: World, event: Event) -> str:
    """Delete a topic, and create it again at once or later. Brokers may know of the new topic later than ZooKeeper."""
    topic = world.some_topic(event.target)
    is_gone = event.choice > GONE_SHARE
    world.recreate_topic(topic, event.duration_s if is_gone else 0.0, event.duration_s * (event.choice * 10 % 1.0))
    return f"{topic}, gone for {event.duration_s:g} s" if is_gone else topic


def _retain(world: World, event: Event) -> str:
    """Delete the start of a log, as retention does, perhaps beyond the consumers' positions or the former end."""
    partitions = world.partitions()
    if not partitions:
        return ""
    partition = partitions[event.target % len(partitions)]
    world.retain(partition, int(event.choice * 1.2 * world.log_end))
    return f"{partition} from {world.logs[partition].start}"


def _cut_log(world: World, event: Event) -> str:
    """Cut off the end of a log, with some or all of the records that were read, for a while."""
    partitions = world.partitions()
    if not partitions:
        return ""
    partition = partitions[event.target % len(partitions)]
    back = MOST_CUT if event.choice < CUT_SHARE else world.history.reached(partition)
    world.cut(partition, max(0, world.history.reached(partition) - int(event.choice * back)), event.duration_s)
    return f"{partition} at {world.logs[partition].cut} for {event.duration_s:g} s"


def _lose_leaders(world: World, event: Event) -> str:
    """Leave some partitions of a topic without a leader, also future partitions. They get leaders again one by one."""
    topic = world.some_topic(event.target)
    count = world.topics[topic] + 2
    lost = [number for number in range(count) if (number * (1 + event.target) % 7) / 7 < event.choice]
    for turn, number in enumerate(lost, 1):
        world.lose_leader(TopicPartition(topic, number), event.duration_s * turn / len(lost))
    return f"of {len(lost)} partitions of {topic}, for up to {event.duration_s:.2f} s"


def _weights(world: World, event: Event) -> str:
    """Write weights of partitions as an operator, or sometimes invalid data."""
    loads = {partition: 1 + event.target * number % 17 for number, partition in enumerate(world.partitions())}
    readable = event.choice < READABLE_SHARE
    data = encode_weights(loads) if readable else b"garbage"
    if world.layout.weights in world.ensemble.tree.znodes:
        world.operator.set_async(world.layout.weights, data)
    else:
        world.operator.create_async(world.layout.weights, data)
    return f"of {len(loads)} partitions" if readable else "are garbage"


_ON_CONSUMERS: dict[str, Callable[[World, Consumer, Event], None]] = {
    "work": _work,
    "commit_chosen": _commit_chosen,
    "get_many": _get_many,
    "seek": _seek,
    "pause_partition": _pause_partition,
    "resume_partitions": _resume_partitions,
    "kill": _kill,
    "restart": _restart,
    "leave": _leave,
    "pause": _pause,
    "block": _block,
    "stall": _stall,
    "reset": _reset,
    "lose_reply": _lose_reply,
    "lose_request": _lose_request,
    "subscribe": _subscribe,
    "subscribe_pattern": _subscribe_pattern,
    "delete_member": _delete_member,
    "lose_events": _lose_events,
    "notify_often": _notify_often,
    "delete_assignment": _delete_assignment,
    "force_release": _force_release,
}
ON_SERVERS: dict[str, Callable[[World, FakeServer, Event], None]] = {
    "lag": _lag,
    "partition": _partition,
    "cut": _for_a_while(lambda world, server: world.ensemble.cut(server)),
    "freeze": _for_a_while(lambda world, server: world.ensemble.freeze(server)),
    "crash": _for_a_while(lambda world, server: world.ensemble.crash(server)),
}
_ON_THE_GROUP: dict[str, Callable[[World, Event], str]] = {
    "join": _join,
    "create_topic": _create_topic,
    "delete_topic": _delete_topic,
    "kill_publishing": _kill_publishing,
    "reset_offset": _reset_offset,
    "order_offsets": _order_offsets,
    "garble_offset": _garble_offset,
    "delete_offsets": _delete_offsets,
    "delete_group_state": _delete_group_state,
    "delete_candidate": _delete_candidate,
    "grow_topic": _grow_topic,
    "recreate_topic": _recreate_topic,
    "lose_leaders": _lose_leaders,
    "weights": _weights,
    "hold_commits": _hold_commits,
    "lose_commit_answers": _lose_commit_answers,
    "retain": _retain,
    "cut_log": _cut_log,
}
