"""What a consumer tells the application: typed protocols, one hook each."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Protocol, runtime_checkable

from kiel_groups.model import TopicPartition

__all__ = ["RebalanceListener"]


@runtime_checkable
class RebalanceListener(Protocol):
    """
    Called on the member's event loop, never two at once; a hook may be a plain function or a coroutine function.

    What raises in a hook is logged and counted, and the hand-over goes on.
    """

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Before the partitions' offsets are committed and their claims released; may commit."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """After the partitions were claimed and their positions read, before the first record is handed out."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """The claims are gone, others may own the partitions already: forget their work, do not commit."""
