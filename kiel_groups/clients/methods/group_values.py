"""The values that a grouped consumer delivers by topic, as kiel's consumer does."""

from __future__ import annotations

import asyncio

from kiel_groups.clients.calls.callers import ConsumeCall, new_consume_call
from kiel_groups.clients.calls.consume_future import Values
from kiel_groups.clients.calls.delivery_style import DeliveryStyle
from kiel_groups.clients.calls.eager_methods import failed_future, spawn
from kiel_groups.clients.calls.left_loop import running_loop
from kiel_groups.clients.connected.connected_consumer import ConnectedConsumer
from kiel_groups.clients.methods.topic_subscription import TopicSubscription
from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError
from kiel_groups.model import Batch

__all__ = ["GroupValues"]


class GroupValues(TopicSubscription):
    """Delivers values by ``consume()``, which connects and subscribes by itself."""

    def consume(self, topic: str, start: object = None) -> asyncio.Future[Values]:
        """
        Return the available values of one topic, from all of its partitions that this member owns.

        The first call connects and subscribes to the topic. The values that a coroutine received are finished when it
        calls ``consume()`` for the topic again. If the coroutine has ended, its values are finished when another
        coroutine calls ``consume()`` for the topic. The partitions of the values are not released before that. Values
        that arrive after the caller has given up (``asyncio.wait_for``, ``gen.with_timeout``) are delivered again.

        Args:
            topic: The topic's name. As long as the topic does not exist, it has no values.
            start: Ignored: a group resumes at its committed offsets.

        Returns:
            Values that the deserializer made (``json.loads`` by default), or [] if none came within ``max_wait_time``,
            or None once the consumer is closed. A value on which the deserializer raises is logged, counted and
            skipped, unless ``on_bad_record`` is a function, which is then called. The list's ``parts`` hold the values
            by partition, with their records and ``fencing_token``.

        Raises:
            ConfigError: The name is not legal for a topic of Kafka 0.8, or the consumer is used in
                another style, such as iteration.
            IllegalStateError: The application has assigned partitions; call ``unsubscribe()`` first.
            NoBrokersError: 8 metadata requests in a row were not answered. The next call may succeed.
            KielGroupsError: ``connect()`` failed, or a partition cannot be read. The next call may get other values.
        """
        if running_loop() is None:
            return spawn(self._consume_later(topic), "GroupedConsumer.consume")
        try:
            check_name(topic, "topic")
            self._style.choose(DeliveryStyle.VALUES)
        except ConfigError as error:
            return failed_future(error, "GroupedConsumer.consume")
        call = new_consume_call(self, topic)
        if isinstance(self._connected, ConnectedConsumer):
            self._connected.finish_topic(topic)
        return self._start_waiting(self._consume(topic, call), call, "GroupedConsumer.consume", Batch)

    async def _consume_later(self, topic: str) -> Values:
        """Call ``consume()`` on the running loop, for an application that called it before a loop ran."""
        return await self.consume(topic)

    async def _consume(self, topic: str, call: ConsumeCall) -> Values:
        values = None if self._closed else await self._values(topic, call)
        if values is None:
            await self._left_loop.closed.wait()
        return values

    async def _values(self, topic: str, call: ConsumeCall) -> Values:
        changed = self._add_topic(topic)
        connecting = self.connect()
        if not connecting.done():
            await asyncio.wait({connecting})
        if self._closed:
            return None
        connecting.result()
        if changed:
            await self._registered(changed, "GroupedConsumer.consume")
        return await self._require_reader().next_values(topic, call)
