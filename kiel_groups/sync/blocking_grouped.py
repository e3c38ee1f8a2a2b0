"""The grouped consumer, for programs without an event loop."""

from __future__ import annotations

from kiel_groups import clients
from kiel_groups.sync.blocking_client import (
    Attributes,
    blocking,
    ending,
    immediate,
    in_background,
    takes_arguments_of,
    takes_hook,
    until_closed,
)
from kiel_groups.sync.blocking_records import BlockingConsumer, asked_behind

_of = Attributes(clients.GroupedConsumer)


class GroupedConsumer(BlockingConsumer[clients.GroupedConsumer]):
    """
    A member of a consumer group; see ``kiel_groups.GroupedConsumer`` for its arguments and what they mean.

    ``with GroupedConsumer(...) as consumer`` joins the group, and leaves it at the end of the block, also after Ctrl-C.
    ``for record in consumer`` returns records until the consumer is closed. While the program is busy, heartbeats,
    commits and releases continue in the background. Hooks of a listener, ``on_bad_record`` and callbacks of commits are
    called on a thread of their own, and may call methods of this object; ``async`` functions run on the loop's thread,
    as the deserializers and the allocator do, and may not.
    """

    @takes_arguments_of(clients.GroupedConsumer)
    def __init__(self) -> None: ...

    connect = blocking(clients.GroupedConsumer.connect)
    subscribe = takes_hook("listener", blocking(clients.GroupedConsumer.subscribe))
    unsubscribe = blocking(clients.GroupedConsumer.unsubscribe)
    consume = until_closed(clients.GroupedConsumer.consume)
    commit = asked_behind(blocking(clients.GroupedConsumer.commit))
    commit_async = asked_behind(takes_hook("callback", in_background(clients.GroupedConsumer.commit_async)))
    committed = blocking(clients.GroupedConsumer.committed)
    fetch_committed_offsets = blocking(clients.GroupedConsumer.fetch_committed_offsets)
    commit_offsets = asked_behind(blocking(clients.GroupedConsumer.commit_offsets))
    close = ending(clients.GroupedConsumer.close)
    wind_down = ending(clients.GroupedConsumer.wind_down)

    fencing_token = immediate(clients.GroupedConsumer.fencing_token)
    assign = immediate(clients.GroupedConsumer.assign)
    kafka_metrics = immediate(clients.GroupedConsumer.kafka_metrics)

    member_id = _of(lambda consumer: consumer.member_id)
    name = _of(lambda consumer: consumer.name)
    group_name = _of(lambda consumer: consumer.group_name)
    coordinator_id = _of(lambda consumer: consumer.coordinator_id)
    autocommit = _of(lambda consumer: consumer.autocommit)
    closing = _of(lambda consumer: consumer.closing)
    is_leader = _of(lambda consumer: consumer.is_leader)
    settled = _of(lambda consumer: consumer.settled)
