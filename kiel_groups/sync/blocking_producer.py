"""The producer, for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from typing import Any

from kiel_groups import clients
from kiel_groups.clients import RecordMetadata
from kiel_groups.errors import ClosedError
from kiel_groups.sync.blocking_client import Attribute, Blocking, blocking, ending, takes_arguments_of


class Producer(Blocking[clients.Producer]):
    """
    Sends records to topics, for programs without an event loop. The arguments are those of ``kiel_groups.Producer``.

    ``with Producer([...]) as producer`` connects, and flushes and closes at the end of the block. ``produce`` returns a
    future. All other methods wait for their outcome. Several threads may call methods at once.
    """

    @takes_arguments_of(clients.Producer)
    def __init__(self) -> None: ...

    connect = blocking(clients.Producer.connect)
    drain = blocking(clients.Producer.drain)
    flush = blocking(clients.Producer.flush)
    wind_down = blocking(clients.Producer.wind_down)
    close = ending(clients.Producer.close)

    metrics = Attribute(clients.Producer, lambda producer: producer.metrics)
    closing = Attribute(clients.Producer, lambda producer: producer.closing)
    batch_size = Attribute(clients.Producer, lambda producer: producer.batch_size)
    compression = Attribute(clients.Producer, lambda producer: producer.compression)
    required_acks = Attribute(clients.Producer, lambda producer: producer.required_acks)
    serializer = Attribute(clients.Producer, lambda producer: producer.serializer)
    key_maker = Attribute(clients.Producer, lambda producer: producer.key_maker)
    partitioner = Attribute(clients.Producer, lambda producer: producer.partitioner)
    ack_timeout = Attribute(clients.Producer, lambda producer: producer.ack_timeout)
    buffered_bytes = Attribute(clients.Producer, lambda producer: producer.buffered_bytes)
    unsent_count = Attribute(clients.Producer, lambda producer: producer.unsent_count)

    def produce(
        self, topic: str, message: Any, key: Any = None, partition: int | None = None
    ) -> concurrent.futures.Future[RecordMetadata]:
        """
        Send one record, whether or not the program waits for the future.

        If ``max_buffered_bytes`` are buffered already, this method first waits until at most half of them are buffered.
        Apart from that wait, this method works as ``kiel_groups.Producer.produce`` does: with a ``batch_size`` above 1
        and no ``linger_ms``, only the future of the record that completes a batch waits for the outcomes of the batch.

        Args:
            topic: The topic to write to.
            message: The value, for the serializer. Without a serializer: bytes, anything that JSON can represent, or
                None for a null value, which deletes its key from a compacted topic.
            key: The producer sends bytes unchanged, None as null, and any other key as the UTF-8 of its ``str()``.
            partition: The partition's number. If this argument is given, the producer does not call the partitioner.

        Returns:
            A future: ``result()`` waits until the record is stored, and returns its topic, partition and offset, or
            raises the error. Failures are also logged.

        Raises:
            ConfigError: The topic's name is not legal, or the value or key cannot be encoded.
            ClosedError: The producer was closed.
        """
        return self._wait(self._accepted, topic, message, key, partition)

    async def _accepted(self, *record: Any) -> concurrent.futures.Future[RecordMetadata]:
        while self._client.is_full:
            await self._client.drain()
        accepted = self._client.produce(*record)
        # The future of an invalid record fails within one iteration of the loop.
        await asyncio.sleep(0)
        if accepted.done():
            accepted.result()
        outcome: concurrent.futures.Future[RecordMetadata] = concurrent.futures.Future()
        outcome.set_running_or_notify_cancel()
        accepted.add_done_callback(functools.partial(_pass_on, outcome))
        return outcome


def _pass_on(outcome: concurrent.futures.Future[RecordMetadata], accepted: asyncio.Future[RecordMetadata]) -> None:
    if accepted.cancelled():
        outcome.set_exception(ClosedError("the producer was closed before the record had an outcome"))
    elif error := accepted.exception():
        outcome.set_exception(error)
    else:
        outcome.set_result(accepted.result())
