"""Limits of one trigger: each partition's share of a bound on messages, and whether to wait for more messages."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.model import TopicPartition

__all__ = ["fair_shares", "waits_for_more"]


def fair_shares(most: int, available: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """
    Return the number of messages to read of each partition: at most ``most`` in all, in proportion to ``available``.

    The remainder of rounding goes to the partitions that lost most by the rounding, one message each. So a query
    progresses even if the bound is below the number of partitions. The same input gives the same shares.

    Args:
        most: The bound, at least 1.
        available: How many messages each partition has, 0 or more.
    """
    total = sum(available.values())
    if total <= most:
        return dict(available)
    shares = {partition: count * most // total for partition, count in available.items()}
    by_loss = sorted(available, key=lambda partition: (-(available[partition] * most % total), partition))
    for partition in by_loss[: most - sum(shares.values())]:
        shares[partition] += 1
    return shares


def waits_for_more(available: int, least: int | None, waited_ms: float, most_wait_ms: int) -> bool:
    """
    Return whether a trigger should read nothing yet.

    Args:
        available: How many messages are available.
        least: The smallest batch to read, or None for any.
        waited_ms: How long ago the last batch was planned.
        most_wait_ms: The longest wait; after that, a trigger reads the available messages.
    """
    return least is not None and available < least and waited_ms < most_wait_ms
