"""A problem of a group, and the rules that hold however the group is coordinated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.partition_view import PartitionView
from kiel_groups.wording import counted, some

__all__ = ["Finding", "beyond_end", "missing_topics", "partition_names", "short_name", "unconsumed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One problem of a group.

    ``kind`` is one word for programs; ``text`` and ``remedy`` are for people. ``passing`` means that the problem should
    disappear without an operator. ``partitions`` and ``members`` list all that are affected; the text names only some.
    """

    kind: str
    text: str
    remedy: str = ""
    passing: bool = False
    partitions: tuple[TopicPartition, ...] = ()
    members: tuple[MemberId, ...] = ()


def unconsumed(partitions: Iterable[PartitionView]) -> Iterator[Finding]:
    """Yield a finding if partitions of a group without members have a lag."""
    behind = [each for each in partitions if each.lag]
    if behind:
        yield Finding(
            "unconsumed",
            f"the group has no members; its lag is {sum(each.lag or 0 for each in behind):,}, in "
            f"{counted(behind, 'partition', 'partitions')}",
            "start a member; if a Spark job commits these offsets, start that job instead: a member would take over",
            partitions=partition_names(behind),
        )


def beyond_end(partitions: Iterable[PartitionView]) -> Iterator[Finding]:
    """Yield a finding if committed offsets are beyond the ends of their logs."""
    beyond = [
        each
        for each in partitions
        if each.committed is not None and each.log_end is not None and each.committed > each.log_end
    ]
    if beyond:
        what = counted(beyond, "committed offset is", "committed offsets are")
        yield Finding(
            "beyond-end",
            f"{what} beyond the end of the log: {some(partition_names(beyond))}",
            "the topic was created again, or a broker lost records; set the offset, or let the reset policy act",
            partitions=partition_names(beyond),
        )


def missing_topics(topics: Collection[str]) -> Iterator[Finding]:
    """Yield a finding if there are subscribed topics that do not exist."""
    if topics:
        what = counted(topics, "subscribed topic does", "subscribed topics do")
        yield Finding(
            "missing-topic",
            f"{what} not exist: {some(topics)}",
            "create the topic, or correct its name in the subscription; it is consumed as soon as it exists",
        )


def short_name(member_id: MemberId) -> str:
    """Return the part of a member id after its last dash, which is enough to identify the member."""
    return member_id.rpartition("-")[2] or member_id


def partition_names(partitions: Iterable[PartitionView]) -> tuple[TopicPartition, ...]:
    """Return the names of partitions, in the same order."""
    return tuple(each.topic_partition for each in partitions)
