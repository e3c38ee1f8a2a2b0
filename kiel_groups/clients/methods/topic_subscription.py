"""The topics of a grouped consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kiel_groups.clients.calls.eager_methods import starts_at_call
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.methods.membership import GroupMembership
from kiel_groups.config import topic_names
from kiel_groups.errors import ConfigError
from kiel_groups.listeners import RebalanceListener

__all__ = ["TopicSubscription"]


class TopicSubscription(GroupMembership):
    """Subscribes a consumer to topics, and registers the subscription with its group."""

    @starts_at_call
    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """
        Replace the subscription. Topics that remain in it are delivered without a pause.

        Topics that leave it are no longer delivered. Their records in flight are finished and committed as usual.
        A topic that does not exist is logged, and consumed as soon as it is created.

        Args:
            topics: One topic or several.
            pattern: Not supported yet.
            listener: Notified of assigned, revoked and lost partitions until the next call of ``subscribe``, in place
                of the constructor's listener. By default, the constructor's. ``consume()`` changes no listener.

        Raises:
            ConfigError: There is no topic, a name is not legal for a topic of Kafka 0.8, a pattern is given, or the
                topics exceed what ZooKeeper can store for one member. The previous subscription remains.
            ArgumentTypeError: The listener is not an object with hooks. It is a TypeError and a ConfigError.
            ClosedError: The consumer was closed.
        """
        self._check_open()
        if pattern is not None:
            raise ConfigError(
                f"subscribe(): pattern {pattern!r} given; the group's leader cannot match topics yet: subscribe to"
                " names, such as those of topics() that match"
            )
        check_listener(listener)
        wanted = topic_names(topics)
        await self._subscribe(wanted, lambda: self._subscription.subscribe(wanted, listener=listener))

    @starts_at_call
    async def unsubscribe(self) -> None:
        """
        Leave all topics. Nothing is delivered any more; the consumer remains a member of its group.

        Records in flight are finished and committed as usual, and then their partitions are released.

        Raises:
            ClosedError: The consumer was closed.
        """
        self._check_open()

        def change() -> bool:
            changed = bool(self._subscription.topics)
            self._subscription.unsubscribe()
            return changed

        await self._subscribe([], change)

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics."""
        return self._subscription.topics

    def _add_topic(self, topic: str) -> bool:
        """Add a topic to the subscription, as ``consume()`` does; the listener stays. Return whether it is new."""
        wanted = self._subscription.topics | {topic}
        return self._change(wanted, lambda: self._subscription.change_subscription(wanted))

    async def _subscribe(self, topics: Iterable[str], change: Callable[[], bool]) -> None:
        changed = self._change(topics, change)
        if changed and self._connected is not None:
            await self._connected.member.resubscribe()

    def _change(self, topics: Iterable[str], change: Callable[[], bool]) -> bool:
        """Replace the subscription, and return whether it changed. Raise ConfigError if the topics are not allowed."""
        return change() if self._connected is None else self._connected.subscribe(frozenset(topics), change)
