"""Derive from the reports of members which of them delivered each partition, and for how long none did, without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from benchmarks.members.event_lines import MemberEvent

__all__ = ["Member", "MemberReport", "ReportedOwnership"]


class Member(NamedTuple):
    """A member: the number of its process, and its own number among the members of that process."""

    process: int
    number: int


class MemberReport(NamedTuple):
    """A line of a member."""

    member: Member
    event: MemberEvent


class _Interval(NamedTuple):
    """A time in which a member owned a partition."""

    since_ns: int
    until_ns: int
    member: Member


class ReportedOwnership:
    """
    The owners of partitions over time. A member owns a partition from the delivery of the first record to the end.

    The lines of one member arrive in order; those of several members may not. So each member has its own history here,
    and the histories are merged by time.

    Args:
        leaving_ends: Whether a member owns nothing after its call of ``close``, as a consumer that delivers nothing
            then. The tasks of a worker run until each of them has reported its end.
    """

    def __init__(self, *, leaving_ends: bool = True) -> None:
        self._ends = {"revoked", "lost", *(["leaving"] if leaving_ends else [])}
        #: What each member owns: since when, by partition.
        self._owned: dict[Member, dict[str, int]] = {}
        self._past: dict[str, list[_Interval]] = defaultdict(list)
        #: When the last partition got an owner, and when the last listener was notified of an assignment.
        self.last_owned_ns = self.last_assigned_ns = 0
        #: How often a partition got an owner.
        self.starts = 0
        self.prepared: set[Member] = set()
        #: By member: when it began to join, and to leave.
        self.joining_ns: dict[Member, int] = {}
        self.leaving_ns: dict[Member, int] = {}

    @property
    def members(self) -> frozenset[Member]:
        """The members that have joined and own partitions."""
        return frozenset(member for member, owned in self._owned.items() if owned)

    @property
    def owners(self) -> dict[str, Member]:
        """The owner of each partition that has one at the moment."""
        return {partition: member for member, owned in self._owned.items() for partition in owned}

    def is_shared(self, partitions: int, members: int) -> bool:
        """Return whether this many members own this many partitions, each partition once."""
        counts = [len(owned) for owned in self._owned.values() if owned]
        return len(counts) == members and sum(counts) == len(self.owners) == partitions

    def take(self, reports: Iterable[MemberReport]) -> None:
        """Add lines, which are in order for each member."""
        for member, event in reports:
            if event.kind == "prepared":
                self.prepared.add(member)
            elif event.kind == "joining":
                self.joining_ns[member] = event.at_ns
            elif event.kind == "leaving":
                self.leaving_ns[member] = event.at_ns
            elif event.kind == "assigned":
                self.last_assigned_ns = max(self.last_assigned_ns, event.at_ns)
            if event.kind == "record":
                owned = self._owned.setdefault(member, {})
                if event.words[0] not in owned:
                    owned[event.words[0]] = event.at_ns
                    self.starts += 1
                    self.last_owned_ns = max(self.last_owned_ns, event.at_ns)
            elif event.kind in self._ends:
                ended = event.partitions if event.kind != "leaving" else self._owned.get(member, {}).keys()
                self._end(member, frozenset(ended), event.at_ns)

    def end(self, process: int, at_ns: int) -> None:
        """End what the members of a process own, because it was killed at this time."""
        for member, owned in self._owned.items():
            if member.process == process:
                self._end(member, frozenset(owned), at_ns)

    def _end(self, member: Member, partitions: Collection[str], at_ns: int) -> None:
        owned = self._owned.get(member, {})
        for partition in partitions:
            if (since_ns := owned.pop(partition, None)) is not None:
                self._past[partition].append(_Interval(since_ns, at_ns, member))

    def stopped_ns(self, since_ns: int) -> int:
        """Return when the last member stopped delivering after this time, or this time if none did."""
        ends = [interval.until_ns for intervals in self._past.values() for interval in intervals]
        return max((end for end in ends if end > since_ns), default=since_ns)

    def unowned_ns(self, since_ns: int, until_ns: int) -> int:
        """Return the sum over all partitions of the time in which none of the members owned them."""
        return sum(sum(_gaps(self._history(partition), since_ns, until_ns)) for partition in self._known)

    def longest_gap_ns(self, since_ns: int, until_ns: int) -> int:
        """Return the longest time between these moments in which one partition had no owner."""
        gaps = (max(_gaps(self._history(partition), since_ns, until_ns)) for partition in self._known)
        return max(gaps, default=0)

    def overlaps(self) -> list[str]:
        """Return the partitions that two members owned at once."""
        found = []
        for partition in self._known:
            ordered = self._history(partition)
            if any(first.until_ns > second.since_ns for first, second in pairwise(ordered)):
                found.append(partition)
        return found

    @property
    def _known(self) -> list[str]:
        return sorted({*self._past, *self.owners})

    def _history(self, partition: str) -> list[_Interval]:
        present = [
            _Interval(owned[partition], _END_OF_TIME, member)
            for member, owned in self._owned.items()
            if partition in owned
        ]
        return sorted([*self._past.get(partition, ()), *present])

    def moved(self, before: Mapping[str, Member]) -> int:
        """Return how many partitions have another owner than before."""
        return sum(1 for partition, owner in self.owners.items() if before.get(partition) != owner)


_END_OF_TIME = 1 << 63


def _gaps(ordered: Iterable[_Interval], since_ns: int, until_ns: int) -> list[int]:
    """Return how long each time between two moments was that none of the intervals covers."""
    gaps, at_ns = [], since_ns
    for interval in ordered:
        gaps.append(max(0, min(interval.since_ns, until_ns) - at_ns))
        at_ns = min(max(at_ns, interval.until_ns), until_ns)
    return [*gaps, until_ns - at_ns]
