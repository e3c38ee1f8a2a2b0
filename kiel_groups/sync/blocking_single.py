"""The single consumer, for programs without an event loop."""

from __future__ import annotations

from typing import ClassVar, Self

from kiel_groups import clients
from kiel_groups.clients import BEGINNING, END
from kiel_groups.model import Record
from kiel_groups.sync.blocking_client import (
    Attributes,
    Blocking,
    blocking,
    ending,
    immediate,
    takes_arguments_of,
    until_closed,
)

__all__ = ["SingleConsumer"]

_of = Attributes(clients.SingleConsumer)


class SingleConsumer(Blocking[clients.SingleConsumer]):
    """
    Reads every partition of its topics; see ``kiel_groups.SingleConsumer`` for its arguments and what they mean.

    ``with SingleConsumer([...]) as consumer`` connects; ``for record in consumer`` returns records until the consumer
    is closed. The deserializer is called on the loop's thread.
    """

    BEGINNING: ClassVar[int] = BEGINNING
    END: ClassVar[int] = END

    @takes_arguments_of(clients.SingleConsumer)
    def __init__(self) -> None: ...

    connect = blocking(clients.SingleConsumer.connect)
    subscribe = blocking(clients.SingleConsumer.subscribe)
    consume = until_closed(clients.SingleConsumer.consume)
    beginning_offsets = blocking(clients.SingleConsumer.beginning_offsets)
    end_offsets = blocking(clients.SingleConsumer.end_offsets)
    offsets_for_times = blocking(clients.SingleConsumer.offsets_for_times)
    topics = blocking(clients.SingleConsumer.topics)
    wind_down = blocking(clients.SingleConsumer.wind_down)
    close = ending(clients.SingleConsumer.close)

    position = immediate(clients.SingleConsumer.position)
    lag = immediate(clients.SingleConsumer.lag)
    seek = immediate(clients.SingleConsumer.seek)
    partitions_for_topic = immediate(clients.SingleConsumer.partitions_for_topic)

    metrics = _of(lambda consumer: consumer.metrics)
    assignment = _of(lambda consumer: consumer.assignment)
    allocation = _of(lambda consumer: consumer.allocation)
    name = _of(lambda consumer: consumer.name)
    closing = _of(lambda consumer: consumer.closing)
    deserializer = _of(lambda consumer: consumer.deserializer)
    max_wait_time = _of(lambda consumer: consumer.max_wait_time)
    min_bytes = _of(lambda consumer: consumer.min_bytes)
    max_bytes = _of(lambda consumer: consumer.max_bytes)

    _next = until_closed(clients.SingleConsumer.__anext__)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """
        Wait for the next record and return it.

        Raises:
            StopIteration: The consumer was closed.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read, as in the asynchronous client.
        """
        try:
            record = self._next()
        except StopAsyncIteration:
            record = None
        if record is None:
            raise StopIteration
        return record
