"""
The history of a run, read from the files of the processes and from ZooKeeper's transaction logs, for the checker.

Each member process and the producer append lines to a file of their own, so that a killed process leaves all its lines.
All times are seconds of ``CLOCK_BOOTTIME``, which the processes of one machine share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kiel_groups.group.znodes.layout import GroupLayout
from tests.chaos.transaction_log import Create, Delete, EndSession, Put, Transaction

__all__ = [
    "Acknowledged",
    "Commit",
    "Deliveries",
    "Delivery",
    "GrowingFile",
    "History",
    "Inflicted",
    "Ownership",
    "Process",
    "group_history",
    "parse_receipt",
]


class Acknowledged(NamedTuple):
    """A record that all in-sync replicas have acknowledged to the producer."""

    number: int
    partition: int
    offset: int
    at_s: float


class Delivery(NamedTuple):
    """
    A delivery to the application. ``token`` is the claim's fencing token. ``end_s`` is None if the record was not
    finished.
    """

    pid: int
    partition: int
    offset: int
    token: int
    number: int
    start_s: float
    end_s: float | None


class Ownership(NamedTuple):
    """
    The time during which an owner znode existed. ``token`` is its czxid. ``until_s`` is None if it was not deleted.
    """

    partition: int
    token: int
    session: int
    pid: int
    since_s: float
    until_s: float | None


class Commit(NamedTuple):
    """
    A write to an offset znode. ``owned`` is whether the session that wrote it may: it owned the partition, or created
    the offset.
    """

    partition: int
    offset: int
    at_s: float
    owned: bool


class Inflicted(NamedTuple):
    """
    A fault that was inflicted, with the time of its start and of its end, after which its target had recovered.

    ``ended_s`` is None if the fault has not ended.
    """

    number: int
    kind: str
    target: str
    began_s: float
    ended_s: float | None


class Process(NamedTuple):
    """
    A process of a member.

    Args:
        ended_s: When the end of the process was noticed, or None if it was still running.
        trouble: How the process ended wrongly, as the predicate of a sentence, or "" if it ended as it should.
        resumed_s: When the process was resumed after each stop.
    """

    pid: int
    started_s: float
    ended_s: float | None
    trouble: str = ""
    resumed_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """All data of a run that the checker needs. Every list is sorted by time."""

    partitions: int
    acknowledged: list[Acknowledged]
    deliveries: list[Delivery]
    ownerships: list[Ownership]
    commits: list[Commit]
    faults: list[Inflicted]
    processes: list[Process]
    #: The end of the checked time. Members leave after it.
    end_s: float
    #: Partitions whose offset znodes were deleted, with the time.
    deleted_offsets: list[tuple[int, float]] = field(default_factory=list)
    #: By how much the wall clock was set during the run. The times of ZooKeeper may be wrong by as much.
    clock_step_s: float = 0.0


class GrowingFile:
    """Reads a file of lines while a process appends to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def new_lines(self) -> list[str]:
        """Return the lines that were completed since the last call. An incomplete line is returned by a later call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        return whole.decode("ascii").splitlines()


class Deliveries:
    """
    Parses the file of one member process.

    A line ``s TIME PARTITION OFFSET TOKEN NUMBER`` is the start of a delivery, and the next line ``e TIME`` its end.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.found: list[Delivery] = []

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            mark, at, *numbers = line.split()
            if mark == "s":
                partition, offset, token, number = map(int, numbers)
                self.found.append(Delivery(self._pid, partition, offset, token, number, float(at), None))
            else:
                self.found[-1] = self.found[-1]._replace(end_s=float(at))


def parse_receipt(line: str) -> Acknowledged:
    """Parse a line of the producer's file: ``TIME NUMBER PARTITION OFFSET``."""
    at, *numbers = line.split()
    return Acknowledged(*map(int, numbers), float(at))


@dataclass(slots=True)
class GroupHistory:
    """The history of one group and topic, from ZooKeeper's transactions."""

    ownerships: list[Ownership] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    deleted_offsets: list[tuple[int, float]] = field(default_factory=list)


def group_history(
    transactions: Iterable[Transaction], group: str, topic: str, boot_minus_wall_s: float
) -> GroupHistory:
    """
    Follow owner znodes, offset znodes and sessions through ZooKeeper's log.

    Args:
        transactions: All committed transactions, by ascending zxid.
        group, topic: The names of the group and the topic.
        boot_minus_wall_s: The difference between boot time and the log's seconds since 1970.
    """
    replay = _Replay(GroupLayout(group), topic)
    for transaction in transactions:
        if transaction.writes:
            replay.apply(transaction, transaction.at_ms / 1000 + boot_minus_wall_s)
    replay.found.ownerships += replay.open.values()
    replay.found.ownerships.sort(key=lambda each: each.since_s)
    return replay.found


class _Replay:
    def __init__(self, layout: GroupLayout, topic: str) -> None:
        self._members = f"{layout.members}/"
        self._owners = f"{layout.topic_owners(topic)}/"
        self._offsets = f"{layout.topic_offsets(topic)}/"
        self._pids: dict[int, int] = {}
        self.open: dict[int, Ownership] = {}
        self.found = GroupHistory()

    def apply(self, transaction: Transaction, at_s: float) -> None:
        before = dict(self.open)
        for write in transaction.writes:
            match write:
                case Create(path, data) if path.startswith(self._members):
                    self._pids[transaction.session] = _pid(data)
                case Create(path) if _partition_of(path, self._owners) is not None:
                    partition = int(path.removeprefix(self._owners))
                    pid = self._pids.get(transaction.session, 0)
                    self.open[partition] = Ownership(partition, transaction.zxid, transaction.session, pid, at_s, None)
                case Delete(path) if _partition_of(path, self._owners) is not None:
                    self._close(int(path.removeprefix(self._owners)), at_s)
                case EndSession():
                    for owned in [own for own in self.open.values() if own.session == transaction.session]:
                        self._close(owned.partition, at_s)
                case Delete(path) if _partition_of(path, self._offsets) is not None:
                    self.found.deleted_offsets.append((int(path.removeprefix(self._offsets)), at_s))
                case Create(path, data) | Put(path, data) if _partition_of(path, self._offsets) is not None:
                    partition = int(path.removeprefix(self._offsets))
                    # Any member may create the missing offsets of all partitions. Later writes must be the owner's.
                    owned = isinstance(write, Create) or _was_owner(transaction.session, partition, before, self.open)
                    self.found.commits.append(Commit(partition, int(data), at_s, owned))

    def _close(self, partition: int, at_s: float) -> None:
        ownership = self.open.pop(partition, None)
        if ownership is not None:
            self.found.ownerships.append(ownership._replace(until_s=at_s))


def _partition_of(path: str, folder: str) -> int | None:
    """Return the partition of a path in this folder, or None if the path does not belong to a partition."""
    number = path.removeprefix(folder) if path.startswith(folder) else ""
    return int(number) if number.isdecimal() else None


def _was_owner(session: int, partition: int, *states: Mapping[int, Ownership]) -> bool:
    """Return whether the session owned the partition before or after the transaction."""
    return any(partition in state and state[partition].session == session for state in states)


def _pid(data: bytes) -> int:
    try:
        return int(json.loads(data)["pid"])
    except (ValueError, KeyError, TypeError):
        return 0
