"""Subscription states of a member and of a manual assignment, and what a test can observe of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiel_groups.group.partition_offsets import StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import TopicPartition

__all__ = [
    "CLEAN",
    "START",
    "USED",
    "PartitionSnapshot",
    "claim",
    "manual",
    "member",
    "partition_snapshot",
    "snapshot",
    "use",
]


class PartitionSnapshot(NamedTuple):
    """The state of one assigned partition."""

    position: int | None
    is_paused: bool
    highwater: int | None


#: The position at which a claim or a manual assignment of these tests starts.
START = 10
#: A newly assigned partition, and the same one after ``use``.
CLEAN = PartitionSnapshot(START, is_paused=False, highwater=None)
USED = PartitionSnapshot(33, is_paused=True, highwater=40)


def partition_snapshot(state: SubscriptionState, partition: TopicPartition) -> PartitionSnapshot:
    """Return the state of an assigned partition."""
    return PartitionSnapshot(
        state.offsets.position(partition),
        state.is_paused(partition),
        state.highwater(partition),
    )


def snapshot(state: SubscriptionState) -> dict[str, Any]:
    """Return everything that the state shows, its offset tracker included."""
    return {
        "topics": state.topics,
        "pattern": state.subscribed_pattern,
        "listener": state.listener,
        "auto": state.partitions_auto_assigned(),
        "assigned": {partition: partition_snapshot(state, partition) for partition in state.assigned_partitions()},
        "open": {partition: state.offsets.position(partition) for partition in state.offsets.open_partitions()},
    }


def claim(state: SubscriptionState, *partitions: TopicPartition) -> None:
    """Claim and open partitions as a member does."""
    state.offsets.claim(partitions, created=1)
    state.offsets.open({partition: StartPosition(START, 1, 7, created=1) for partition in partitions})


def member(*partitions: TopicPartition, pattern: str | None = None) -> SubscriptionState:
    """Return the state of a member that owns these partitions, and is subscribed to the topics ``t`` and ``u``."""
    state = SubscriptionState()
    if pattern is not None:
        state.subscribe(pattern=pattern)
        state.set_matches(pattern, ["t", "u"])
    else:
        state.change_subscription(["t", "u"])
    claim(state, *partitions)
    state.assign_from_subscribed(partitions)
    return state


def manual(*partitions: TopicPartition) -> SubscriptionState:
    """Return the state of a consumer that has assigned itself these partitions, and has a position in each."""
    state = SubscriptionState()
    state.assign_from_user(partitions)
    for partition in partitions:
        state.seek(partition, START)
    return state


def use(state: SubscriptionState, partition: TopicPartition) -> None:
    """Give a partition the state ``USED``."""
    state.seek(partition, 33)
    state.pause(partition)
    state.set_highwater(partition, 40)
