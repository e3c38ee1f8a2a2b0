"""
What is known about a group from outside: its znodes in, one value out.

Nothing here fails on a znode that is missing or unreadable: a tool that looks at a broken group has to show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kiel_groups.errors import ProtocolError
from kiel_groups.group.layout import GroupLayout
from kiel_groups.group.znodes import MemberInfo, Pointer, Slice, parse_offset
from kiel_groups.model import MemberId, TopicPartition

__all__ = ["GroupView", "MemberView", "PartitionView", "view_group"]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """
    One partition: who owns it, where the group stands in it.

    ``owner`` is None while it is claimed by nobody, ``committed`` None without an offset znode, ``log_end`` None where
    the brokers were not asked.
    """

    topic_partition: TopicPartition
    owner: MemberId | None
    committed: int | None
    log_end: int | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end of the log; None where one of them is unknown."""
        if self.log_end is None or self.committed is None:
            return None
        return max(0, self.log_end - self.committed)


@dataclass(frozen=True, slots=True)
class MemberView:
    """A live member, what the plan gives it (``target``) and what it has claimed (``owned``)."""

    info: MemberInfo
    leads: bool
    target: frozenset[TopicPartition]
    owned: tuple[PartitionView, ...]

    @property
    def lag(self) -> int:
        """Of all it owns, in records; partitions of unknown lag count nothing."""
        return sum(partition.lag or 0 for partition in self.owned)


@dataclass(frozen=True, slots=True)
class GroupView:
    """
    A group at one moment.

    ``pointer`` is None before the first plan. ``unreadable`` lists what stands in the way of a complete picture.
    """

    group: str
    pointer: Pointer | None
    leader: MemberId | None
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...]
    unreadable: tuple[str, ...]

    @property
    def lag(self) -> int:
        """Of the whole group, in records; partitions of unknown lag count nothing."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def owned(self) -> int:
        """How many partitions have a live owner or one whose session has not ended yet."""
        return sum(partition.owner is not None for partition in self.partitions)


def view_group(group: str, znodes: Mapping[str, bytes], log_ends: Mapping[TopicPartition, int]) -> GroupView:
    """
    Make the view of a group.

    Args:
        group: Its name.
        znodes: All of its znodes, path below the chroot → data.
        log_ends: The next offset of each partition that was asked for.
    """
    reading = _Reading(GroupLayout(group), znodes)
    owners, committed = reading.owners(), reading.offsets()
    partitions = tuple(
        PartitionView(partition, owners.get(partition), committed.get(partition), log_ends.get(partition))
        for partition in sorted({*owners, *committed, *log_ends})
    )
    leader = reading.leader()
    members = tuple(
        MemberView(
            info,
            info.member_id == leader,
            reading.target(info.member_id),
            tuple(partition for partition in partitions if partition.owner == info.member_id),
        )
        for info in reading.members()
    )
    return GroupView(group, reading.pointer(), leader, members, partitions, tuple(reading.unreadable))


class _Reading:
    """Reads values out of the znodes and notes what cannot be read."""

    def __init__(self, layout: GroupLayout, znodes: Mapping[str, bytes]) -> None:
        self._layout = layout
        self._znodes = znodes
        self._folders: dict[str, list[tuple[str, bytes]]] = {}
        for path, data in znodes.items():
            self._folders.setdefault(path.rpartition("/")[0], []).append((path, data))
        self.unreadable: list[str] = []

    def members(self) -> list[MemberInfo]:
        """Oldest first."""
        found = []
        for path, data in self._children(self._layout.members):
            try:
                found.append(MemberInfo.parse(path.rpartition("/")[2], data, path))
            except ProtocolError as error:
                self.unreadable.append(str(error))
        return sorted(found, key=lambda info: (info.started_at_ms, info.member_id))

    def leader(self) -> MemberId | None:
        """The member behind the lowest election znode."""
        candidates = dict(self._children(self._layout.election))
        if not candidates:
            return None
        return candidates[min(candidates, key=_sequence)].decode(errors="replace")

    def pointer(self) -> Pointer | None:
        path = self._layout.pointer
        if not (data := self._znodes.get(path)):
            return None
        try:
            return Pointer.parse(data, path)
        except ProtocolError as error:
            self.unreadable.append(str(error))
            return None

    def target(self, slot: str) -> frozenset[TopicPartition]:
        path = self._layout.slice(slot)
        if not (data := self._znodes.get(path)):
            return frozenset()
        try:
            return Slice.parse(data, path).partitions
        except ProtocolError as error:
            self.unreadable.append(str(error))
            return frozenset()

    def owners(self) -> dict[TopicPartition, MemberId]:
        # The thread index of Java's consumers follows the last dash.
        return {
            partition: data.decode(errors="replace").rpartition("-")[0]
            for partition, _, data in self._partitions(self._layout.owners)
        }

    def offsets(self) -> dict[TopicPartition, int]:
        found = {}
        for partition, path, data in self._partitions(self._layout.offsets):
            try:
                found[partition] = parse_offset(data, path)
            except ProtocolError as error:
                self.unreadable.append(str(error))
        return found

    def _partitions(self, folder: str) -> Iterable[tuple[TopicPartition, str, bytes]]:
        for topic, _ in self._children(folder):
            for path, data in self._children(topic):
                number = path.rpartition("/")[2]
                if number.isascii() and number.isdigit():
                    yield TopicPartition(topic.rpartition("/")[2], int(number)), path, data

    def _children(self, folder: str) -> list[tuple[str, bytes]]:
        return self._folders.get(folder, [])


def _sequence(path: str) -> str:
    # ZooKeeper appends ten digits.
    return path[-10:]
