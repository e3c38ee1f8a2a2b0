"""Who owned what when, from the changes of a transaction log: pure."""

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
    Where a kind of group keeps what: regular expressions of whole paths.

    ``owner`` has a group ``partition`` and, where several may wait for one partition, one ``place``: the lowest has it.
    ``member`` is the znode by which a member is known.
    """

    owner: str
    member: str


@dataclass
class Ownership:
    """The owners of one group's partitions, as changes are taken in; owners and members are told by session."""

    paths: Paths
    partitions: int
    #: By how many partitions two members may differ where all is settled.
    spread: int = 1
    members: set[int] = field(default_factory=set)
    #: By partition: path → place and session.
    _standing: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    _unowned_since_ms: dict[str, int] = field(default_factory=dict)
    #: Partition-milliseconds without an owner, of those that had one once.
    unowned_ms: int = 0
    #: When each transaction was, by its zxid.
    writes: dict[int, int] = field(default_factory=dict)
    #: When each session's member znode was created, or it ended.
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
            self._standing.setdefault(partition, {})[change.path] = (place, change.session)
            self._settle(partition, change.time_ms)

    def _deleted(self, change: Change) -> None:
        if re.fullmatch(self.paths.member, change.path):
            self.members.discard(change.session)
            self.ended_ms[change.session] = change.time_ms
        elif found := re.fullmatch(self.paths.owner, change.path):
            self._standing.get(found["partition"], {}).pop(change.path, None)
            self._settle(found["partition"], change.time_ms)

    def _closed(self, change: Change) -> None:
        if change.session in self.members:
            self.members.discard(change.session)
            self.ended_ms[change.session] = change.time_ms
        for partition, standing in self._standing.items():
            for path in [path for path, (_, session) in standing.items() if session == change.session]:
                del standing[path]
                self._settle(partition, change.time_ms)

    def _settle(self, partition: str, now_ms: int) -> None:
        self.last_ms = now_ms
        if not self._standing[partition]:
            self._unowned_since_ms.setdefault(partition, now_ms)
        elif partition in self._unowned_since_ms:
            self.unowned_ms += now_ms - self._unowned_since_ms.pop(partition)

    def owners(self) -> Mapping[str, int]:
        """Session by partition, of those that are owned."""
        return {partition: min(standing.values())[1] for partition, standing in self._standing.items() if standing}

    def between(self, zxid: int, until_ms: int) -> int:
        """How many transactions came after one, up to a moment."""
        return sum(1 for number, time_ms in self.writes.items() if number > zxid and time_ms <= until_ms)

    def balanced(self, members: int) -> bool:
        """Whether so many members there are own everything, as equal as they ever will."""
        owners = self.owners()
        sizes = Counter(owners.values())
        return (
            len(owners) == self.partitions
            and len(self.members) == members
            and set(sizes) == self.members
            and max(sizes.values()) - min(sizes.values()) <= self.spread
        )
