"""Parse the znodes of a group, and collect an error text for each znode that cannot be parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from kiel_groups.errors import ProtocolError
from kiel_groups.group.candidate import sequence
from kiel_groups.group.znodes.contents import (
    GroupSettings,
    GroupState,
    MemberAssignment,
    MemberInfo,
    Snapshot,
    Znode,
    parse_offset,
    parse_topic,
    unsigned_hex,
    whole_number,
)
from kiel_groups.group.znodes.group_settings import DynamicConfig, HistoryEntry, generation_of, parse_weights
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.model import MemberId, Slot, TopicPartition

__all__ = [
    "GroupReader",
    "DynamicConfigFound",
    "OffsetFound",
    "OwnerFound",
]


_Value = TypeVar("_Value")


class DynamicConfigFound(NamedTuple):
    """
    The group's dynamic settings, or None and the reason why leaders refuse them.

    The reason is "" if ``unreadable`` already has the error.
    """

    config: DynamicConfig | None
    refusal: str


class OwnerFound(NamedTuple):
    """The owner of a claimed partition, and the owner znode."""

    member_id: MemberId
    znode: Znode


class OffsetFound(NamedTuple):
    """The committed offset of a partition, None if it is unreadable, and the offset znode."""

    offset: int | None
    znode: Znode


class GroupReader:
    """
    Parses the znodes of one group and its topics; each method parses one kind of znode.

    The value of a missing znode is empty. A znode that cannot be parsed is left out, with an error text in
    ``unreadable``. ``closed`` has the paths of znodes that exist, but whose ACL denies reading.
    """

    def __init__(self, layout: GroupLayout, znodes: Snapshot) -> None:
        self._layout = layout
        self.closed = tuple(sorted(path for path, znode in znodes.items() if znode.closed))
        self._znodes = {path: znode for path, znode in znodes.items() if not znode.closed}
        self._folders: dict[str, list[tuple[str, Znode]]] = {}
        for path, znode in self._znodes.items():
            self._folders.setdefault(path.rpartition("/")[0], []).append((path, znode))
        self.unreadable: list[str] = []

    def members(self) -> list[MemberInfo]:
        """Return the live members, oldest first."""
        found = [
            self._parsed(lambda data, path: MemberInfo.parse(_name(path), data, path), path)
            for path, _ in self._children(self._layout.members)
        ]
        return sorted(
            (info for info in found if info is not None), key=lambda info: (info.started_at_ms, info.member_id)
        )

    def candidates(self) -> tuple[MemberId, ...]:
        """Return the candidates of the election, the leader first; znodes without a sequence number are ignored."""
        ranked = sorted(
            (number, znode.data.decode(errors="replace"))
            for path, znode in self._children(self._layout.election)
            if (number := sequence(path)) is not None
        )
        return tuple(member_id for _, member_id in ranked)

    def foreign_members(self) -> list[str]:
        """
        Return the paths of the znodes of live foreign members.

        A consumer id that ends in the session of its own znode belongs to this package.
        """
        members = {_name(path) for path, _ in self._children(self._layout.members)}
        ids = [
            path
            for path, znode in self._children(self._layout.ids)
            if _name(path) not in members and not _name(path).endswith(f"-{unsigned_hex(znode.session)}")
        ]
        return sorted(ids) + sorted(path for path, _ in self._children(self._layout.kiel_members))

    def was_joined(self) -> bool:
        """
        Return whether a member has ever registered: some znodes that members create are persistent.

        The weights do not count, because tools write them.
        """
        folders = (self._layout.members, self._layout.config, self._layout.group_state, self._layout.ids)
        return any(
            path == folder or path.startswith(f"{folder}/")
            for path in self._znodes
            for folder in (*folders, self._layout.kiel_members)
        )

    def group_state(self) -> GroupState | None:
        return self._parsed(GroupState.parse, self._layout.group_state)

    def settings(self) -> GroupSettings | None:
        return self._parsed(GroupSettings.parse, self._layout.config)

    def dynamic_config(self) -> DynamicConfigFound:
        """Return the group's dynamic settings, the defaults if there is no znode."""
        znode = self._znodes.get(self._layout.config)
        if znode is None:
            return DynamicConfigFound(DynamicConfig(), "")
        try:
            return DynamicConfigFound(DynamicConfig.parse(znode.data, self._layout.config), "")
        except ProtocolError as error:
            # ``settings`` has already reported a znode that is not JSON.
            return DynamicConfigFound(None, "" if str(error) in self.unreadable else str(error))

    def weights(self) -> int:
        """Return the number of partitions with a weight."""
        return len(self._parsed(parse_weights, self._layout.weights) or ())

    def assignment(self, info: MemberInfo) -> MemberAssignment | None:
        """Return a member's assignment, or None if its slot has none, or one that names an earlier member."""
        found = self._parsed(MemberAssignment.parse, self._layout.assignment(info.slot))
        return found if found is not None and found.member_id == info.member_id else None

    def away(self) -> dict[Slot, MemberAssignment]:
        """Return the assignments that are reserved for absent static members."""
        slots = [_name(path) for path, _ in self._children(self._layout.group_state)]
        found = {slot: self._parsed(MemberAssignment.parse, self._layout.assignment(slot)) for slot in slots}
        return {slot: each for slot, each in found.items() if each is not None and each.away_since_ms is not None}

    def history(self) -> tuple[HistoryEntry, ...]:
        """Return the recorded generations, the newest first."""
        paths = [path for path, _ in self._children(self._layout.history) if generation_of(_name(path)) is not None]
        found = [self._parsed(HistoryEntry.parse, path) for path in sorted(paths, reverse=True)]
        return tuple(entry for entry in found if entry is not None)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions that the topic's znode lists."""
        numbers = self._parsed(parse_topic, topic_path(topic)) or ()
        return [TopicPartition(topic, number) for number in numbers]

    def missing_topics(self, members: Iterable[MemberInfo]) -> tuple[str, ...]:
        """Return the topics that members subscribe to, but that have no znode."""
        subscribed = {topic for info in members for topic in info.subscription}
        existing = self._znodes.keys() | set(self.closed)
        return tuple(sorted(topic for topic in subscribed if topic_path(topic) not in existing))

    def owners(self) -> dict[TopicPartition, OwnerFound]:
        """Return the owner of each claimed partition."""
        return {
            partition: OwnerFound(_owner(znode.data), znode)
            for partition, _, znode in self._partitions(self._layout.owners)
        }

    def offsets(self) -> dict[TopicPartition, OffsetFound]:
        """Return the committed offset of each partition that has one."""
        return {
            partition: OffsetFound(self._parsed(parse_offset, path), znode)
            for partition, path, znode in self._partitions(self._layout.offsets)
        }

    def begun_topics(self) -> list[str]:
        """Return the topics that the group has begun to read, if its offsets are in Kafka."""
        return [_name(path) for path, _ in self._children(self._layout.starts)]

    def consumed_topics(self) -> list[str]:
        """Return the topics in which there are, or were, owners or offsets: members do not delete these folders."""
        folders = (self._layout.owners, self._layout.offsets)
        return sorted({_name(path) for folder in folders for path, _ in self._children(folder)})

    def _parsed(self, parse: Callable[[bytes, str], _Value], path: str) -> _Value | None:
        znode = self._znodes.get(path)
        if znode is None:
            return None
        try:
            return parse(znode.data, path)
        except ProtocolError as error:
            self.unreadable.append(str(error))
            return None

    def _partitions(self, folder: str) -> Iterator[tuple[TopicPartition, str, Znode]]:
        for topic, _ in self._children(folder):
            for path, znode in self._children(topic):
                number = whole_number(_name(path))
                if number is not None:
                    yield TopicPartition(_name(topic), number), path, znode

    def _children(self, folder: str) -> list[tuple[str, Znode]]:
        return self._folders.get(folder, [])


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _owner(data: bytes) -> MemberId:
    """Return the owner's member id: the data up to the last dash, which a thread index follows, or all data."""
    text = data.decode(errors="replace")
    return text.rpartition("-")[0] or text
