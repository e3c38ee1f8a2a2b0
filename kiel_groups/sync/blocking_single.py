"""The single consumer, for programs without an event loop."""

from __future__ import annotations

from typing import ClassVar

from kiel_groups import clients
from kiel_groups.clients import BEGINNING, END
from kiel_groups.model import Record
from kiel_groups.sync.blocking_client import (
    Attributes,
    blocking,
    ending,
    immediate,
    takes_arguments_of,
    takes_hook,
    until_closed,
)
from kiel_groups.sync.blocking_records import BlockingConsumer

_of = Attributes(clients.SingleConsumer)


class SingleConsumer(BlockingConsumer[clients.SingleConsumer]):
    """
    Reads every partition of its topics; see ``kiel_groups.SingleConsumer`` for its arguments and what they mean.

    ``with SingleConsumer([...]) as consumer`` connects; ``for record in consumer`` returns records until the consumer
    is closed. Hooks of a listener and ``on_bad_record`` are called on a thread of their own, and may call methods of
    this object. The deserializer is called on the loop's thread, and may not.
    """

    BEGINNING: ClassVar[int] = BEGINNING
    END: ClassVar[int] = END

    @takes_arguments_of(clients.SingleConsumer)
    def __init__(self) -> None: ...

    connect = blocking(clients.SingleConsumer.connect)
    subscribe = takes_hook("listener", blocking(clients.SingleConsumer.subscribe))
    unsubscribe = blocking(clients.SingleConsumer.unsubscribe)
    commit = blocking(clients.SingleConsumer.commit)
    commit_async = blocking(clients.SingleConsumer.commit_async)
    committed = blocking(clients.SingleConsumer.committed)
    fetch_committed_offsets = blocking(clients.SingleConsumer.fetch_committed_offsets)
    consume = until_closed(clients.SingleConsumer.consume)
    wind_down = blocking(clients.SingleConsumer.wind_down)
    close = ending(clients.SingleConsumer.close)

    assign = immediate(clients.SingleConsumer.assign)

    name = _of(lambda consumer: consumer.name)
    closing = _of(lambda consumer: consumer.closing)

    _next = until_closed(clients.SingleConsumer.__anext__)

    def __next__(self) -> Record:
        """
        Wait for the next record and return it, outside of a loop.

        Raises:
            StopIteration: The consumer was closed.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read, as in the asynchronous client.
            ConfigError: A loop is running, or the consumer is used in another style.
        """
        try:
            record = self._next()
        except StopAsyncIteration:
            record = None
        if record is None:
            raise StopIteration
        return record
