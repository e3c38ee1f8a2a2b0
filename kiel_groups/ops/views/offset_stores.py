"""
Which store a group commits to, if its ``config`` does not say: found by two views of the group.

One view cannot tell an offset that a group has left behind in a store from the one that it commits now.
"""

from __future__ import annotations

from typing import get_args

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.group_view import GroupView, Store

__all__ = [
    "StoreTracker",
]


class StoreTracker:
    """Tracks over successive views of groups in which stores their offsets move."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, TopicPartition, Store], int] = {}
        self._moving: dict[str, set[Store]] = {}

    def take(self, view: GroupView) -> GroupView:
        """
        Add a view with all offsets, and return it with those that count.

        If offsets have moved in one store only, these count, also in partitions without new records: a group commits
        all its offsets to one store. Otherwise the view has both.
        """
        moving = self._moving.setdefault(view.group, set())
        for partition in view.partitions:
            for store in get_args(Store):
                offset, key = partition.stores.get(store), (view.group, partition.topic_partition, store)
                if offset is not None and self._seen.setdefault(key, offset) != offset:
                    self._seen[key] = offset
                    moving.add(store)
        return view.with_store(*moving) if len(moving) == 1 else view
