"""Track the claims that may be delivered: those whose ``on_partitions_assigned`` hook has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any

from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.group.member.partition_offsets import PartitionOffsets
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.model import TopicPartition

__all__ = ["ReadyClaims"]


class ReadyClaims:
    """
    A live collection of the partitions whose ``on_partitions_assigned`` hook has ended for their current claim.

    Args:
        subscription: Has a state for each claimed partition; each claim has its own state object.
        calls: Calls the listener's hooks.
        on_ready: Called with partitions that have become ready.
    """

    def __init__(
        self,
        subscription: SubscriptionState,
        calls: ListenerCalls,
        on_ready: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self._subscription = subscription
        self._calls = calls
        self._on_ready = on_ready
        self._opening: dict[TopicPartition, PartitionOffsets] = {}
        self._ready: set[TopicPartition] = set()

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._ready

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._ready)

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Call the hook for new claims. They become ready when it ends, unless ``remove`` is called before that."""
        self.remove(partitions)
        self._calls.claimed(partitions)
        states = {partition: self._subscription.offsets.of(partition) for partition in partitions}
        claims = {partition: state for partition, state in states.items() if state is not None}
        self._opening |= claims
        return self._open(partitions, claims)

    async def _open(
        self, partitions: Collection[TopicPartition], claims: Mapping[TopicPartition, PartitionOffsets]
    ) -> None:
        await self._calls.assigned(partitions)
        # A partition that was lost and claimed again meanwhile waits for the hook of its new claim.
        ready = [partition for partition, state in claims.items() if self._opening.get(partition) is state]
        for partition in ready:
            del self._opening[partition]
        self._ready.update(ready)
        self._on_ready(ready)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Make partitions ready that no member claims: no hook is called for them."""
        self._ready.update(partitions)
        self._on_ready(partitions)

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Remove claims that were revoked or lost. A hook that still runs for them will not make them ready."""
        self._ready.difference_update(partitions)
        for partition in partitions:
            self._opening.pop(partition, None)
