"""Derive the owners of partitions over time from the changes of a transaction log, without I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.transaction_log import Change, Kind

__all__ = ["Ownership", "Paths"]


@dataclass(frozen=True, slots=True)
class Paths:
    """
    The paths of a group's znodes, as regular expressions of whole paths.

    ``owner`` has a group ``partition``. If several members may wait for one partition, it also has a group ``place``,
    and the lowest place is the owner's. ``member`` is the znode of a member.
    """

    owner: str
    member: str


@dataclass
class Ownership:
    """The owners of one group's partitions, updated change by change. Owners and members are identified by session."""

    paths: Paths
    partitions: int
    #: By how many partitions two members may differ after a rebalance.
    spread: int = 1
    members: set[int] = field(default_factory=set)
    #: By partition and path: place and session.
    _owners: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    _unowned_since_ms: dict[str, int] = field(default_factory=dict)
    #: Partition-milliseconds without an owner, of partitions that have had one.
    unowned_ms: int = 0
    #: The time of each transaction by its zxid.
    writes: dict[int, int] = field(default_factory=dict)
    #: By session: when its member znode was created, and when this znode was deleted or the session ended.
    joined_ms: dict[int, int] = field(default_factory=dict)
    ended_ms: dict[int, int] = field(default_factory=dict)
    last_ms: int = 0

    def take(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self.writes[change.zxid] = change.time_ms
            if change.kind is Kind.CREATE:
                self._created(change)
            elif change.kind is Kind.DELETE:
                self._deleted(change)
            elif change.kind is Kind.SESSION_CLOSED:
                self._closed(change)

    def _created(self, change: Change) -> None:
        if re.fullmatch(self.paths.member, change.path):
            self.members.add(change.session)
            self.joined_ms[change.session] = change.time_ms
        elif found := re.fullmatch(self.paths.owner, change.path):
            partition = found["partition"]
            place = int(found.groupdict().get("place") or 0)
            self._owners.setdefault(partition, {})[change.path] = (place, change.session)
            self._settle(partition, change.time_ms)

    def _deleted(self, change: Change) -> None:
        if re.fullmatch(self.paths.member, change.path):
            self.members.discard(change.session)
            self.ended_ms[change.session] = change.time_ms
        elif found := re.fullmatch(self.paths.owner, change.path):
            self._owners.get(found["partition"], {}).pop(change.path, None)
            self._settle(found["partition"], change.time_ms)

    def _closed(self, change: Change) -> None:
        if change.session in self.members:
            self.members.discard(change.session)
            self.ended_ms[change.session] = change.time_ms
        for partition, owners in self._owners.items():
            for path in [path for path, (_, session) in owners.items() if session == change.session]:
                del owners[path]
                self._settle(partition, change.time_ms)

    def _settle(self, partition: str, now_ms: int) -> None:
        self.last_ms = now_ms
        if not self._owners[partition]:
            self._unowned_since_ms.setdefault(partition, now_ms)
        elif partition in self._unowned_since_ms:
            self.unowned_ms += now_ms - self._unowned_since_ms.pop(partition)

    def owners(self) -> Mapping[str, int]:
        """Return the owner's session of each partition that has an owner."""
        return {partition: min(owners.values())[1] for partition, owners in self._owners.items() if owners}

    def between(self, zxid: int, until_ms: int) -> int:
        """Count the transactions after a zxid, up to a time in milliseconds."""
        return sum(1 for number, time_ms in self.writes.items() if number > zxid and time_ms <= until_ms)

    def balanced(self, members: int) -> bool:
        """
        Return whether there are this many members, which own all partitions and differ by at most ``spread``
        partitions.
        """
        owners = self.owners()
        sizes = Counter(owners.values())
        return (
            len(owners) == self.partitions
            and len(self.members) == members
            and set(sizes) == self.members
            and max(sizes.values()) - min(sizes.values()) <= self.spread
        )
