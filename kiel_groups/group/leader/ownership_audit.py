"""Whether owners are who the plan wants them to be, and what is wrong where they are not for too long: pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from kiel_groups.model import MemberId, TopicPartition

__all__ = ["Suspicion", "Alarm", "suspect", "alarms"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A partition is wanted for one member and owned by another one, or by nobody (None), since ``since_s``."""

    wanted: MemberId
    owner: MemberId | None
    since_s: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """What has been wrong for too long with some partitions, for people; ``kind`` names a metric."""

    kind: str
    partitions: tuple[TopicPartition, ...]
    text: str


def suspect(
    before: Mapping[TopicPartition, Suspicion],
    wanted: Mapping[TopicPartition, MemberId],
    owners: Mapping[TopicPartition, MemberId | None],
    now_s: float,
) -> dict[TopicPartition, Suspicion]:
    """
    What is not as it should be.

    Args:
        before: What this returned the last time.
        wanted: Who is to own what.
        owners: Who owns what was looked at now, None for nobody; of the rest nothing new is known.
        now_s: The time of the look; a suspicion counts from the first look that saw the same.
    """
    found = {}
    for partition, member in wanted.items():
        known = before.get(partition)
        if partition not in owners:
            if known is not None and known.wanted == member:
                found[partition] = known
        elif (owner := owners[partition]) != member:
            same = known is not None and (known.wanted, known.owner) == (member, owner)
            found[partition] = known if same and known is not None else Suspicion(member, owner, now_s)
    return found


def alarms(
    suspicions: Mapping[TopicPartition, Suspicion], members: Container[MemberId], now_s: float, limit_s: float
) -> Iterator[Alarm]:
    """
    One alarm for all partitions of the same two members that have been suspicious for the limit or longer.

    Args:
        suspicions: What ``suspect`` found.
        members: Who is alive: what anybody else owns is an orphan.
        now_s: On the clock of the suspicions.
        limit_s: How long is too long.
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
        counted = f"{several}, allocated to {wanted}"
        yield Alarm(*_problem(counted, owner, members, now_s - since_s[wanted, owner], tuple(partitions)))


def _problem(
    counted: str,
    owner: MemberId | None,
    members: Container[MemberId],
    for_s: float,
    partitions: tuple[TopicPartition, ...],
) -> tuple[str, tuple[TopicPartition, ...], str]:
    if owner is None:
        told = f"{counted}: no owner for {for_s:.0f} s; that member does not claim them; look at its log"
        return "partitions_unowned", partitions, told
    if owner in members:
        why = "which does not let go: it is still processing, or hangs; look at its log"
        return "partitions_wrongly_owned", partitions, f"{counted}: owned by {owner} for {for_s:.0f} s, {why}"
    why = "which is no member: its session is about to end, or its member znode was deleted"
    return "partitions_orphaned", partitions, f"{counted}: owned by {owner} for {for_s:.0f} s, {why}"
