"""How far a trigger reads of what there is: shares under a bound, and whether to wait for more."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.model import TopicPartition

__all__ = ["shared_out", "waits_for_more"]


def shared_out(most: int, available: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """
    How many messages of each partition to take: at most ``most`` in all, in proportion to what each has.

    What rounding leaves over goes to those that lost most by it, one each, so that a bound below the number of
    partitions still moves on. The same input gives the same shares.

    Args:
        most: At least 1.
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
    Whether a trigger reads nothing yet.

    Args:
        available: How many messages there are.
        least: How many are worth a batch; None where any are.
        waited_ms: How long ago the last batch was planned.
        most_wait_ms: After that, what is there is read.
    """
    return least is not None and available < least and waited_ms < most_wait_ms
