"""The view of one partition of a group: its owner, the group's offset in it, and its lag."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kiel_groups.model import MemberId, TopicPartition

__all__ = ["PartitionView", "Store", "lag_of"]

#: Where an offset is.
Store: TypeAlias = Literal["zookeeper", "kafka"]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """
    One partition, its owner and the group's offset in it.

    ``owner`` is None if no member has claimed the partition, ``target`` if the plan assigns it to no member,
    ``committed`` if there is no readable offset, or if it is in Kafka and the coordinator was not asked,
    ``log_end`` if the brokers were not asked or did not answer.
    ``claimed_ms`` and ``committed_ms`` are the times of the claim and of the commit, in epoch milliseconds; each is
    None if its znode does not exist. ``opened`` is True if the offset was written after the claim. An owner that opens
    a claim writes the offset before it delivers any record; an operator's change of the offset counts, too. ``claim``
    is the czxid of the owner znode. ``stores`` has the offsets by store, if the group's ``config`` does not name its
    store. While two differ, ``committed`` is the one with the larger lag.
    """

    topic_partition: TopicPartition
    owner: MemberId | None
    committed: int | None
    log_end: int | None
    target: MemberId | None = None
    claimed_ms: int | None = None
    committed_ms: int | None = None
    opened: bool = False
    claim: int | None = None
    stores: Mapping[Store, int] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """The number of records from the committed offset to the log end, at least 0, or None if either is unknown."""
        return self._lag_from(self.committed)

    @property
    def least_lag(self) -> int | None:
        """The lag by the store with the smaller lag, while two differ; otherwise ``lag``."""
        return self._lag_from(max(self.stores.values(), default=self.committed))

    @property
    def is_disputed(self) -> bool:
        """Whether two stores have different offsets."""
        return len(set(self.stores.values())) > 1

    def _lag_from(self, offset: int | None) -> int | None:
        return None if self.log_end is None or offset is None else max(0, self.log_end - offset)


def lag_of(partitions: Collection[PartitionView]) -> int | None:
    """Return the total lag of partitions in records. Unknown lags count as 0; if all are unknown, return None."""
    known = [partition.lag for partition in partitions if partition.lag is not None]
    return sum(known) if known or not partitions else None
