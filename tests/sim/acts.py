"""How each event of a story is done to a world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError

from kiel_groups.group.znodes.partition_weights import encode_weights
from kiel_groups.model import TopicPartition
from kiel_groups.testing import FakeServer
from tests.sim.delays import slice_path
from tests.sim.story import Event

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["perform"]

#: How long an operator waits after the deletion of a member znode before its owner znodes are deleted, in seconds:
#: the session timeout, and a little for the way.
FORCE_RELEASE_S = 10.5
#: How many of the lost answers come with followers that lag.
STALE_SHARE = 0.5
#: How many hints a consumer gets, four in an interval.
HINTS = 10
#: How many of the weights that somebody writes can be read.
READABLE_SHARE = 0.8
#: How many of the topics that are created again are there all the time.
GONE_SHARE = 0.7
#: How many of the logs that are cut lose some records only, and of how many at most.
CUT_SHARE, MOST_CUT = 0.8, 12


def perform(world: World, event: Event) -> str:
    """Do it; returns what was done, for people."""
    if event.act in _ON_CONSUMERS:
        living = [consumer for consumer in world.consumers if consumer.lives]
        if not living:
            return f"{event.act}: nobody is there"
        consumer = living[event.who % len(living)]
        _ON_CONSUMERS[event.act](world, consumer, event)
        return f"{event.act} {consumer.name} ({event.choice:.2f}, {event.duration_s:.2f} s)"
    if event.act in _ON_SERVERS:
        server = world.ensemble.servers[event.who % len(world.ensemble.servers)]
        _ON_SERVERS[event.act](world, server, event)
        return f"{event.act} {server!r} for {event.duration_s:.2f} s"
    return f"{event.act} {_ON_THE_GROUP[event.act](world, event) or ''}"


# Consumers


def _work(world: World, consumer: Consumer, event: Event) -> None:
    consumer.work(event.choice, 1 + event.who % 5, event.duration_s)


def _kill(world: World, consumer: Consumer, event: Event) -> None:
    consumer.kill()


def _restart(world: World, consumer: Consumer, event: Event) -> None:
    consumer.kill()
    world.join(consumer.topics, consumer.instance_id)


def _leave(world: World, consumer: Consumer, event: Event) -> None:
    if len([other for other in world.consumers if other.lives]) > 1:
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
        # Whoever looks elsewhere what became of it sees an old state.
        for server in world.ensemble.servers:
            if server is not world.ensemble.leader:
                _lag(world, server, event)


def _lose_request(world: World, consumer: Consumer, event: Event) -> None:
    consumer.process.lose("request")


def _subscribe(world: World, consumer: Consumer, event: Event) -> None:
    consumer.subscribe(world.some_topics(event.choice))


def _lose_events(world: World, consumer: Consumer, event: Event) -> None:
    """No watch of the group's own znodes tells this consumer anything; those on topics do."""
    ours = (world.layout.group_state, world.layout.owners, world.layout.members)
    consumer.process.loses_events = lambda path: path.startswith(ours)
    world.timeline.after(event.duration_s, setattr, consumer.process, "loses_events", lambda _: False)


def _hint_often(world: World, consumer: Consumer, event: Event) -> None:
    """The slice is written as it is, several times in an interval; an operator sets an offset meanwhile."""
    interval_s = world.reconcile_interval_ms / 1000
    for number in range(1, HINTS + 1):
        world.timeline.after(number * interval_s / 4, _rewrite_slice, world, consumer)
    if flowing := sorted(consumer.flowing):
        partition = flowing[int(event.choice * len(flowing))]
        world.operator.set_async(world.layout.offset(partition), b"%d" % event.who)


def _rewrite_slice(world: World, consumer: Consumer) -> None:
    path = slice_path(world, consumer)
    znode = None if path is None else world.ensemble.tree.znodes.get(path)
    if znode is not None:
        world.operator.set_async(path, znode.data, znode.version)


def _delete_member(world: World, consumer: Consumer, event: Event) -> None:
    if consumer.member.member_id is not None:
        world.operator.delete_async(world.layout.member(consumer.member.member_id))


def _delete_slice(world: World, consumer: Consumer, event: Event) -> None:
    assignments = world.ensemble.tree.children(world.layout.group_state) if world.has_plan else []
    if assignments:
        world.operator.delete_async(world.layout.assignment(assignments[event.who % len(assignments)]))


def _force_release(world: World, consumer: Consumer, event: Event) -> None:
    """As the product does it: the member znode first, and when that is gone its owner znodes, its gate being shut."""
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
    """One server at a time: without a quorum for long, nobody is owned by anybody."""
    others = [other for other in world.ensemble.servers if other is not server]
    return all(other.up and not other.frozen and not other.cut for other in others)


def _for_a_while(fault: Callable[[World, FakeServer], None]) -> Callable[[World, FakeServer, Event], None]:
    def do(world: World, server: FakeServer, event: Event) -> None:
        if _others_are_well(world, server):
            fault(world, server)
            world.timeline.after(event.duration_s, world.ensemble.heal, server)

    return do


def _partition(world: World, server: FakeServer, event: Event) -> None:
    """The server is cut off from the others, and so are the consumers that are connected to it."""
    if not _others_are_well(world, server):
        return
    world.ensemble.cut(server)
    for consumer in world.consumers:
        if consumer.lives and consumer.process.server is server:
            consumer.process.only = server
    world.timeline.after(event.duration_s, _mend, world, server)


def _mend(world: World, server: FakeServer) -> None:
    world.ensemble.heal(server)
    for consumer in world.consumers:
        if consumer.process.only is server:
            consumer.process.only = None


def _lag(world: World, server: FakeServer, event: Event) -> None:
    server.lag_s = 2.0 * event.choice
    world.timeline.after(event.duration_s, setattr, server, "lag_s", 0.0)


# Brokers


def _hold_commits(world: World, event: Event) -> str:
    """What one broker is asked to store it stores late, perhaps when the partition has another owner."""
    broker = event.who % len(world.brokers.all)
    world.brokers.all[broker].hold(event.duration_s)
    return f"of broker {broker} for {event.duration_s:g} s"


def _lose_commit_answers(world: World, event: Event) -> str:
    """One broker stores what it is asked to, and its next answers are lost."""
    broker = event.who % len(world.brokers.all)
    world.brokers.all[broker].loses += 1 + int(event.choice * 3)
    return f"of broker {broker}"


# The group


def _join(world: World, event: Event) -> str:
    return world.join(world.some_topics(event.choice)).name


def _kill_publishing(world: World, event: Event) -> str:
    """The leader is killed in the middle of its next publication."""
    world.ledger.plans.on_publishing = lambda: _kill_leader(world, event.choice)
    return "the leader"


def _kill_leader(world: World, choice: float) -> None:
    for consumer in world.consumers:
        if consumer.lives and consumer.member.leads and sum(other.lives for other in world.consumers) > 1:
            world.timeline.after(0.01 * choice, consumer.kill)


def _reset_offset(world: World, event: Event) -> str:
    partitions = world.partitions()
    if not partitions:
        return ""
    partition = partitions[event.who % len(partitions)]
    offset = int(event.choice * 2 * world.log_end)
    world.operator.set_async(world.layout.offset(partition), b"%d" % offset)
    return f"{partition} to {offset}"


def _garble_offset(world: World, event: Event) -> str:
    partitions = world.partitions()
    if not partitions:
        return ""
    partition = partitions[event.who % len(partitions)]
    world.operator.set_async(world.layout.offset(partition), b"garbage")
    return str(partition)


def _delete_offsets(world: World, event: Event) -> str:
    """All those of a topic, with their folder, as zkCli does it: one after the other."""
    topic = world.some_topic(event.who)
    folder = world.layout.topic_offsets(topic)
    if folder in world.ensemble.tree.znodes:
        for name in world.ensemble.tree.children(folder):
            world.operator.delete_async(f"{folder}/{name}")
        world.operator.delete_async(folder)
    return topic


def _delete_pointer(world: World, event: Event) -> str:
    """Pointer and slices, which must go first; generations may begin anew then."""
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
    name = candidates[event.who % len(candidates)]
    world.operator.delete_async(f"{world.layout.election}/{name}")
    return name


def _grow_topic(world: World, event: Event) -> str:
    topic = world.some_topic(event.who)
    world.set_partitions(topic, world.topics[topic] + 1 + int(event.choice * 3))
    return topic


def _recreate_topic(world: World, event: Event) -> str:
    """At once, or after a while; brokers know it when ZooKeeper does, or not for a while."""
    topic = world.some_topic(event.who)
    is_gone = event.choice > GONE_SHARE
    world.recreate_topic(topic, event.duration_s if is_gone else 0.0, event.duration_s * (event.choice * 10 % 1.0))
    return f"{topic}, gone for {event.duration_s:g} s" if is_gone else topic


def _retain(world: World, event: Event) -> str:
    """Retention deletes the beginning of a log, up to where nobody has read yet, or beyond what "latest" was."""
    partitions = world.partitions()
    if not partitions:
        return ""
    partition = partitions[event.who % len(partitions)]
    world.retain(partition, int(event.choice * 1.2 * world.log_end))
    return f"{partition} from {world.logs[partition].start}"


def _cut_log(world: World, event: Event) -> str:
    """A log loses some of what was read, or all of it."""
    partitions = world.partitions()
    if not partitions:
        return ""
    partition = partitions[event.who % len(partitions)]
    back = MOST_CUT if event.choice < CUT_SHARE else world.ledger.reached(partition)
    world.cut(partition, max(0, world.ledger.reached(partition) - int(event.choice * back)), event.duration_s)
    return f"{partition} at {world.logs[partition].cut} for {event.duration_s:g} s"


def _lose_leaders(world: World, event: Event) -> str:
    """Some partitions of a topic have none, and get one again one by one; so do some that it may grow by."""
    topic = world.some_topic(event.who)
    count = world.topics[topic] + 2
    lost = [number for number in range(count) if (number * (1 + event.who) % 7) / 7 < event.choice]
    for turn, number in enumerate(lost, 1):
        world.lose_leader(TopicPartition(topic, number), event.duration_s * turn / len(lost))
    return f"of {len(lost)} partitions of {topic}, for up to {event.duration_s:.2f} s"


def _weights(world: World, event: Event) -> str:
    """Somebody measured loads, and now and then writes them in a way that nobody can read."""
    loads = {partition: 1 + event.who * number % 17 for number, partition in enumerate(world.partitions())}
    readable = event.choice < READABLE_SHARE
    data = encode_weights(loads) if readable else b"garbage"
    if world.layout.weights in world.ensemble.tree.znodes:
        world.operator.set_async(world.layout.weights, data)
    else:
        world.operator.create_async(world.layout.weights, data)
    return f"of {len(loads)} partitions" if readable else "are garbage"


_ON_CONSUMERS: dict[str, Callable[[World, Consumer, Event], None]] = {
    "work": _work,
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
    "delete_member": _delete_member,
    "lose_events": _lose_events,
    "hint_often": _hint_often,
    "delete_slice": _delete_slice,
    "force_release": _force_release,
}
_ON_SERVERS: dict[str, Callable[[World, FakeServer, Event], None]] = {
    "lag": _lag,
    "partition": _partition,
    "cut": _for_a_while(lambda world, server: world.ensemble.cut(server)),
    "freeze": _for_a_while(lambda world, server: world.ensemble.freeze(server)),
    "crash": _for_a_while(lambda world, server: world.ensemble.crash(server)),
}
_ON_THE_GROUP: dict[str, Callable[[World, Event], str]] = {
    "join": _join,
    "kill_publishing": _kill_publishing,
    "reset_offset": _reset_offset,
    "garble_offset": _garble_offset,
    "delete_offsets": _delete_offsets,
    "delete_pointer": _delete_pointer,
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
