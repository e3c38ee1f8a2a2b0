"""The topics of a grouped consumer, or its partitions if the application assigns them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from kiel_groups.clients.calls.arguments import partitions_of
from kiel_groups.clients.calls.callers import ConsumeCall, DeliveryStyle, new_consume_call
from kiel_groups.clients.calls.consume_future import Values
from kiel_groups.clients.calls.eager_methods import failed_future, spawn
from kiel_groups.clients.calls.left_loop import running_loop
from kiel_groups.clients.connected.assigned_consumer import AssignedConsumer
from kiel_groups.clients.connected.connected_consumer import ConnectedConsumer
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.methods.membership import GroupMembership
from kiel_groups.config import check_name, topic_names
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.listeners import RebalanceListener
from kiel_groups.model import Batch, TopicPartition

__all__ = [
    "TopicSubscription",
    "GroupValues",
]


class TopicSubscription(GroupMembership):
    """Subscribes a consumer to topics, and registers the subscription with its group."""

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> asyncio.Future[None]:
        """
        Replace the subscription at the call. The future is done once the member has registered it. If brokers
        coordinate the group, it is done once the member has joined, or, if it has partitions, at once: it joins again
        when their records in flight are finished.

        Topics that remain in it are delivered without a pause, unless brokers coordinate the group.

        Topics that leave it are no longer delivered. Their records in flight are finished and committed as usual.
        A topic that does not exist is logged, and consumed as soon as it is created.

        Args:
            topics: One topic or several.
            pattern: Not supported yet.
            listener: Notified of assigned, revoked and lost partitions until the next call of ``subscribe``, in place
                of the constructor's listener. By default, the constructor's. ``consume()`` changes no listener.

        Raises:
            ConfigError: There is no topic, a name is not legal for a topic of Kafka 0.8, a pattern is given, or the
                topics exceed what ZooKeeper can store for one member. The previous subscription remains. Or the
                coordinator refuses the member's settings.
            ArgumentTypeError: The listener is not an object with hooks. It is a TypeError and a ConfigError.
            IllegalStateError: The application has assigned partitions; call ``unsubscribe()`` first.
            KielGroupsError: After ``assign`` and ``unsubscribe``, the consumer joins the group: the errors of
                ``connect``.
            ClosedError: The consumer was closed.
        """
        try:
            self._check_open()
            if pattern is not None:
                raise ConfigError(
                    f"subscribe(): pattern {pattern!r} given; the group's leader cannot match topics yet: subscribe to"
                    " names, such as those of topics() that match"
                )
            check_listener(listener)
            wanted = topic_names(topics)
            changed = self._change(wanted, lambda: self._subscription.subscribe(wanted, listener=listener))
        except KielGroupsError as error:
            return failed_future(error, "GroupedConsumer.subscribe")
        return self._registered(changed, "GroupedConsumer.subscribe")

    def unsubscribe(self) -> asyncio.Future[None]:
        """
        Leave all topics, or end an assignment of ``assign``. Nothing is delivered after the call.

        The future is done once the member has registered that it has no topics. A member remains in its group. Its
        records in flight are finished and committed as usual, and then their partitions are released.

        Raises:
            ClosedError: The consumer was closed.
        """
        try:
            self._check_open()
            changed = self._leave_all()
        except KielGroupsError as error:
            return failed_future(error, "GroupedConsumer.unsubscribe")
        return self._registered(changed, "GroupedConsumer.unsubscribe")

    def _leave_all(self) -> bool:
        """Have no topics and no partitions. Return whether the member must register that."""
        if self._subscription.is_manual():
            self._subscription.unsubscribe()
            self._follow_assignment()
            return False

        def change() -> bool:
            changed = bool(self._subscription.topics)
            self._subscription.unsubscribe()
            return changed

        return self._change([], change)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Read these partitions alone, without the group: no member, no claims, no commits, and no calls of the listener.

        It takes effect at the call, so ``seek`` and ``pause`` may follow at once. Members of the group, if there are
        any, read the same records. A partition starts where the application seeks, else at the group's committed
        offset, else as ``auto_offset_reset`` says. Another call replaces the partitions: those that stay keep their
        position, pause and high watermark. A consumer that has joined its group leaves it; ``assign`` before
        ``connect`` never joins.

        Commits raise an IllegalStateError, because no claim protects them. The group's offsets are read through the
        brokers, which Kafka 0.8.0 cannot do: seek there.

        Args:
            partitions: At least one. A partition that does not exist yet is read once it does.

        Raises:
            ArgumentTypeError: The argument is not a list of partitions. It is a TypeError and a ConfigError.
            ConfigError: There is no partition, or one has no legal topic and number.
            IllegalStateError: The consumer has subscribed to topics, or has not released one of the partitions yet.
            ClosedError: The consumer was closed.
        """
        self._check_open()
        self._subscription.assign_from_user(partitions_of(partitions, "assign()"))
        self._follow_assignment()

    def _follow_assignment(self) -> None:
        if isinstance(self._connected, AssignedConsumer):
            self._connected.follow()
        elif self._connected is not None:
            self._reconnect()

    async def _await_position(self, partition: TopicPartition) -> None:
        connected = self._require_connected()
        assert isinstance(connected, AssignedConsumer)
        await connected.await_position(partition)

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics; none with partitions from ``assign``."""
        return self._subscription.topics

    def _add_topic(self, topic: str) -> bool:
        """Add a topic to the subscription, as ``consume()`` does; the listener stays. Return whether it is new."""
        if topic in self._subscription.topics:
            # Most calls. A check of the whole subscription takes as long as the values of a hundred records.
            return False
        wanted = self._subscription.topics | {topic}
        return self._change(wanted, lambda: self._subscription.change_subscription(wanted))

    def _registered(self, changed: bool, name: str) -> asyncio.Future[None]:
        """
        Have the member register the subscription if it has changed; join the group if the consumer has left it.

        The consumer leaves an assignment at the call, because another call may assign partitions before a task runs.
        """
        has_left = isinstance(self._connected, AssignedConsumer) and not self._subscription.is_manual()
        joining = self._reconnect() if changed and has_left else None
        return spawn(self._register(joining, self._connected if changed else None), name)

    async def _register(
        self, joining: asyncio.Task[None] | None, connected: ConnectedConsumer | AssignedConsumer | None
    ) -> None:
        if joining is not None:
            await asyncio.shield(joining)
        # A former member does not register what the application has chosen since.
        elif isinstance(connected, ConnectedConsumer) and self._connected is connected:
            await connected.member.resubscribe()

    def _change(self, topics: Iterable[str], change: Callable[[], bool]) -> bool:
        """Replace the subscription, and return whether it changed. Raise ConfigError if the topics are not allowed."""
        if self._connected is None or isinstance(self._connected, AssignedConsumer):
            return change()
        return self._connected.subscribe(frozenset(topics), change)


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
