"""Compare the owners of partitions with the plan, and raise alarms for differences that last too long."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from kiel_groups.model import MemberId, TopicPartition


@dataclass(frozen=True, slots=True)
class OwnerMismatch:
    """A partition assigned to ``wanted`` has had another ``owner``, or no owner (None), since ``since_s``."""

    wanted: MemberId
    owner: MemberId | None
    since_s: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """
    A report that partitions have lacked their planned owner for too long.

    ``kind`` names a metric, and ``text`` is for operators.
    """

    kind: str
    partitions: tuple[TopicPartition, ...]
    text: str


def find_mismatches(
    before: Mapping[TopicPartition, OwnerMismatch],
    wanted: Mapping[TopicPartition, MemberId],
    owners: Mapping[TopicPartition, MemberId | None],
    now_s: float,
) -> dict[TopicPartition, OwnerMismatch]:
    """
    Return the partitions whose owner differs from the plan.

    Args:
        before: The result of the previous call.
        wanted: The member that each partition is assigned to.
        owners: The owners of the partitions that were read now, or None for a partition without an owner. For a
            partition that is not in ``owners``, the result keeps an earlier mismatch.
        now_s: The time of this reading, in seconds. A mismatch dates from the first reading that found the same
            difference.
    """
    found = {}
    for partition, member in wanted.items():
        known = before.get(partition)
        if partition not in owners:
            if known is not None and known.wanted == member:
                found[partition] = known
        elif (owner := owners[partition]) != member:
            same = known is not None and (known.wanted, known.owner) == (member, owner)
            found[partition] = known if same and known is not None else OwnerMismatch(member, owner, now_s)
    return found


def alarms(
    suspicions: Mapping[TopicPartition, OwnerMismatch], members: Container[MemberId], now_s: float, limit_s: float
) -> Iterator[Alarm]:
    """
    Yield one alarm for each pair of assigned member and owner that has had mismatches for ``limit_s`` or longer.

    Args:
        suspicions: The result of ``find_mismatches``.
        members: The live members. A partition with any other owner is orphaned.
        now_s: The present time, on the clock of ``find_mismatches``.
        limit_s: The age from which a mismatch raises an alarm, in seconds.
    """
    together: dict[tuple[str, MemberId | None], list[TopicPartition]] = {}
    since_s: dict[tuple[str, MemberId | None], float] = {}
    for partition, found in sorted(suspicions.items()):
        if now_s - found.since_s >= limit_s:
            pair = found.wanted, found.owner
            together.setdefault(pair, []).append(partition)
            since_s[pair] = min(found.since_s, since_s.get(pair, found.since_s))
    for (wanted, owner), partitions in together.items():
        several = f"{len(partitions)} partitions, first {partitions[0]}" if len(partitions) > 1 else str(partitions[0])
        counted, for_s = f"{several}, allocated to {wanted}", now_s - since_s[wanted, owner]
        if owner is None:
            kind = "partitions_unowned"
            text = f"{counted}: no owner for {for_s:.0f} s; that member does not claim them; look at its log"
        elif owner in members:
            kind = "partitions_wrongly_owned"
            why = "and not released: that member is still processing, or hangs; look at its log"
            text = f"{counted}: owned by {owner} for {for_s:.0f} s, {why}"
        else:
            kind = "partitions_orphaned"
            why = "which is no member: its session is about to end, or its member znode was deleted"
            text = f"{counted}: owned by {owner} for {for_s:.0f} s, {why}"
        yield Alarm(kind, tuple(partitions), text)
