"""
Parse the znodes of one group that ZooKeeper coordinates, and find the remedy for each znode that cannot be parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from shlex import quote
from typing import NamedTuple, TypeAlias, TypeVar

from kiel_groups.config import BROKER_V1, GroupConfig
from kiel_groups.errors import ProtocolError
from kiel_groups.group.candidate import sequence
from kiel_groups.group.znodes.contents import (
    FirstOffsets,
    GroupSettings,
    GroupState,
    JavaSubscription,
    MemberAssignment,
    MemberInfo,
    OrderedOffset,
    OrderNotice,
    Snapshot,
    Znode,
    parse_object,
    parse_offset,
    parse_owner,
    parse_topic,
    unsigned_hex,
    whole_number,
)
from kiel_groups.group.znodes.group_settings import (
    DynamicConfig,
    HistoryEntry,
    generation_of,
    is_member_id,
    parse_weights,
)
from kiel_groups.group.znodes.layout import (
    TOPICS,
    GroupLayout,
    WorkerLayout,
    connector_of,
    history_offset_of,
    topic_path,
)
from kiel_groups.group.znodes.round_contents import (
    RoundAssignment,
    RoundMember,
    RoundSettings,
    RoundState,
    program_type,
)
from kiel_groups.group.znodes.worker_contents import (
    ConfigChange,
    SourceOffset,
    StoredConnector,
    WorkerInfo,
    WorkStatus,
    encode_config_offset,
    parse_config_offset,
)
from kiel_groups.model import MemberId, Slot, TopicPartition
from kiel_groups.ops.views.group_view import ForeignMember, Unreadable

_Value = TypeVar("_Value")

#: The version of the znodes of programs.
_VERSION = 2


class _OwnerFound(NamedTuple):
    """The owner that an owner znode names, and the znode."""

    member_id: MemberId
    znode: Znode


class OffsetFound(NamedTuple):
    """The committed offset of a partition, or None if it is unreadable, and the offset znode."""

    offset: int | None
    znode: Znode


class GroupReading:
    """
    Parses the znodes of one group and its topics; each method parses one kind of znode.

    For a missing znode, a method returns an empty value or None. Znodes that cannot be parsed are left out, and
    ``unreadable`` reports them. ``closed`` has the paths of znodes whose ACL denies reading.
    """

    def __init__(self, layout: GroupLayout, znodes: Snapshot) -> None:
        self._layout = layout
        self._workers = WorkerLayout(layout.group)
        self.closed = tuple(sorted(path for path, znode in znodes.items() if znode.closed))
        self._znodes = {path: znode for path, znode in znodes.items() if not znode.closed}
        self._folders: dict[str, list[tuple[str, Znode]]] = {}
        for path, znode in self._znodes.items():
            self._folders.setdefault(path.rpartition("/")[0], []).append((path, znode))

    def registered(self) -> list[tuple[int, MemberInfo]]:
        """Return the live consumers, oldest first, with the matches of patterns, and the czxids of their znodes."""
        state = self.group_state()
        found = [
            (znode.czxid, self.parsed(lambda data, path: MemberInfo.parse(_name(path), data, path), path))
            for path, znode in self.children(self._layout.members)
        ]
        known = [(czxid, info.with_matches(state)) for czxid, info in found if info]
        return sorted(known, key=lambda each: (each[1].started_at_ms, each[1].member_id))

    def program_type(self) -> str | None:
        """Return the type of the members if they are programs, "" if it is unknown, or None if they are consumers."""
        settings, configuration = (
            None if path not in self._znodes else self._znodes[path].data
            for path in (self._layout.config, self._workers.config)
        )
        found = program_type(settings, configuration, has_workers=self.workers() > 0)
        if found is not None:
            return found
        shared = [(path, self._znodes.get(path)) for path in (self._layout.config, self._layout.group_state)]
        znodes = [*shared, *self.children(self._layout.members)]
        return "" if any(znode is not None and _is_of_programs(znode.data, path) for path, znode in znodes) else None

    def workers(self) -> int:
        """Return the number of live workers, including workers that brokers coordinate."""
        return len(self.children(self._workers.workers))

    def worker_urls(self) -> tuple[str, ...]:
        """Return the URLs that live workers have registered, in alphabetical order."""
        found = (self.parsed(WorkerInfo.parse, path) for path, _ in self.children(self._workers.workers))
        return tuple(sorted({info.url for info in found if info is not None}))

    def statuses(self) -> Iterator[tuple[str, int | None, WorkStatus]]:
        """Yield each connector and task of workers with its present status. One without the present claim is old."""
        for znode, _ in self.children(self._workers.statuses):
            if (connector := connector_of(_name(znode))) is None:
                continue
            created = self._znodes.get(self._workers.connector(connector))
            numbers = (whole_number(_name(path)) for path, _ in self.children(znode))
            for task in (None, *sorted(number for number in numbers if number is not None)):
                path = self._workers.status(connector, task)
                claim, status = (
                    self._znodes.get(self._workers.owner(connector, task)),
                    self.parsed(WorkStatus.parse, path),
                )
                if created is None or claim is None or status is None:
                    continue
                if self._znodes[path].mzxid >= max(claim.czxid, created.czxid):
                    yield connector, task, status

    def programs(self) -> list[RoundMember]:
        """Return the live members of a group of programs."""
        paths = [path for path, _ in self.children(self._layout.members)]
        found = [self.parsed(lambda data, path: RoundMember.parse(_name(path), data, path), path) for path in paths]
        return [member for member in found if member is not None]

    def candidates(self) -> tuple[MemberId, ...]:
        """Return the candidates of the election, the leader first. Znodes without a sequence number are ignored."""
        ranked = sorted(
            (number, znode.data.decode(errors="replace"))
            for path, znode in self.children(self._layout.election)
            if (number := sequence(path)) is not None
        )
        return tuple(member_id for _, member_id in ranked)

    def foreign_members(self) -> tuple[ForeignMember, ...]:
        """Return the live members of other clients, such as Java's consumers or kiel."""
        found = self.java_subscriptions()
        topics = {each: each.topics(self._existing) for each in set(found.values())}
        of_java = (ForeignMember(_name(path), path, topics[each], each.unevaluated) for path, each in found.items())
        of_kiel = [path for path, _ in self.children(self._layout.kiel_members)]
        return (*of_java, *(ForeignMember(_name(path), path) for path in sorted(of_kiel)))

    def java_subscriptions(self) -> dict[str, JavaSubscription]:
        """Return the subscriptions of live Java consumers by the paths of their znodes. Unreadable ones are empty."""
        members = {_name(path) for path, _ in self.children(self._layout.members)}
        # A consumer id that ends in the session id of its own znode belongs to this package.
        return {
            path: self.parsed(JavaSubscription.parse, path) or JavaSubscription((), "static")
            for path, znode in sorted(self.children(self._layout.ids))
            if _name(path) not in members and not _name(path).endswith(f"-{unsigned_hex(znode.session)}")
        }

    def was_joined(self) -> bool:
        """
        Return whether a member has ever joined the group, by the persistent znodes that members create.

        The weights do not count, because tools write them.
        """
        folders = (self._layout.members, self._layout.config, self._layout.group_state, self._layout.ids)
        return any(
            path == folder or path.startswith(f"{folder}/")
            for path in self._znodes
            for folder in (*folders, self._layout.kiel_members)
        )

    def group_state(self) -> GroupState | None:
        return self.parsed(GroupState.parse, self._layout.group_state)

    def settings(self) -> GroupSettings | None:
        return self.parsed(GroupSettings.parse, self._layout.config)

    def dynamic_config(self) -> tuple[DynamicConfig | None, str]:
        """Return the group's dynamic settings and "", or None and the reason why leaders refuse them."""
        if self._layout.config not in self._znodes:
            return DynamicConfig(), ""
        try:
            return DynamicConfig.parse(self._znodes[self._layout.config].data, self._layout.config), ""
        except ProtocolError as error:
            # ``unreadable`` reports a znode that has no settings at all.
            return None, str(error) if self.settings() is not None else ""

    def weights(self) -> int:
        """Return the number of partitions with a weight."""
        return len(self.parsed(parse_weights, self._layout.weights) or ())

    def assignments(self) -> dict[Slot, MemberAssignment | None]:
        """Return the assignment of each slot, or None for an unreadable assignment."""
        paths = [path for path, _ in self.children(self._layout.group_state)]
        return {_name(path): self.parsed(MemberAssignment.parse, path) for path in paths}

    def history(self) -> tuple[HistoryEntry, ...]:
        """Return the recorded generations, the newest first."""
        paths = [path for path, _ in self.children(self._layout.history) if generation_of(_name(path)) is not None]
        found = [self.parsed(HistoryEntry.parse, path) for path in sorted(paths, reverse=True)]
        return tuple(entry for entry in found if entry is not None)

    def topics(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return the partition numbers of each topic whose znode exists and is readable."""
        found = {name: self._existing.get(name) for name in sorted(names)}
        return {name: numbers for name, numbers in found.items() if numbers is not None}

    @cached_property
    def _existing(self) -> dict[str, tuple[int, ...] | None]:
        """The partition numbers of each topic that has a znode, or None if the znode cannot be read."""
        closed = [path for path in self.closed if path.startswith(f"{TOPICS}/")]
        paths = [*closed, *(path for path, _ in self.children(TOPICS))]
        return {_name(path): self.parsed(parse_topic, path) for path in paths}

    def exists(self, partition: TopicPartition) -> bool:
        """Return whether a partition exists, or may exist because the znode of its topic cannot be read."""
        return partition in self._listed or self._existing.get(partition.topic, ()) is None

    @cached_property
    def _listed(self) -> set[TopicPartition]:
        """All partitions that the topics' znodes list. A topic may have ten thousand."""
        return self.partitions_of(self._existing)

    def partitions_of(self, topics: Iterable[str]) -> set[TopicPartition]:
        """Return the partitions that the topics' znodes list."""
        return {TopicPartition(topic, number) for topic, each in self.topics(topics).items() for number in each}

    def missing_topics(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Return the topics without a znode, in alphabetical order."""
        return tuple(sorted(set(topics) - self._existing.keys()))

    def gone_topics(self) -> tuple[str, ...]:
        """Return the topics that do not exist, but of which the group has offsets or first offsets."""
        with_offsets = {partition.topic for partition, _, _ in self._partitions(self._layout.offsets)}
        return self.missing_topics({*with_offsets, *self.begun_topics()})

    def owners(self) -> dict[TopicPartition, _OwnerFound]:
        """Return the owner and the owner znode of each claimed partition."""
        return {
            partition: _OwnerFound(_owner(znode.data), znode)
            for partition, _, znode in self._partitions(self._layout.owners)
        }

    def offsets(self) -> dict[TopicPartition, OffsetFound]:
        """Return the committed offset and the offset znode of each partition that has an offset znode."""
        return {
            partition: OffsetFound(self.parsed(parse_offset, path), znode)
            for partition, path, znode in self._partitions(self._layout.offsets)
        }

    def is_forged(self, claim: _OwnerFound) -> bool:
        """Return whether the owner of a claim is a member, but another session has created the owner znode."""
        member = self._znodes.get(self._layout.member(claim.member_id))
        return member is not None and member.session != claim.znode.session

    def begun_topics(self) -> list[str]:
        """
        Return the topics in which the group has first offsets. Only groups with offsets in Kafka record first offsets.
        """
        return [_name(path) for path, _ in self.children(self._layout.starts)]

    def consumed_topics(self) -> list[str]:
        """
        Return the topics in which the group has, or had, owners or offsets.

        Members do not delete the parent znodes of owners and offsets.
        """
        folders = (self._layout.owners, self._layout.offsets)
        return sorted({_name(path) for folder in folders for path, _ in self.children(folder)})

    def parsed(self, parse: Callable[[bytes, str], _Value], path: str) -> _Value | None:
        """Return the parsed data of a znode, or None if the znode is missing or unreadable."""
        znode = self._znodes.get(path)
        if znode is None:
            return None
        try:
            return parse(znode.data, path)
        except ProtocolError:
            return None

    def unreadable(self) -> tuple[Unreadable, ...]:
        """
        Return the problem and the remedy of each znode that cannot be parsed, in the order in which the remedies work.

        The settings are first, because a member cannot join again without them. Children precede their parents, because
        a parent cannot be deleted before its children. Offsets are last: live members set them, and have to join first.
        """
        is_ours = self._layout.config in self._znodes or self._layout.group_state in self._znodes
        kinds = _ANY | (_OURS if is_ours else {}) | (_CONSUMERS if self.program_type() is None else _PROGRAMS)
        found = []
        offsets = f"{self._layout.offsets}/"

        def rank(path: str) -> tuple[bool, bool, str]:
            return path == self._layout.config, not path.startswith(offsets), path

        for path in sorted(self._znodes, key=rank, reverse=True):
            kind = next((kinds[pattern] for pattern in _patterns(path) if pattern in kinds), None)
            if kind is None:
                continue
            try:
                kind.parse(self._znodes[path].data, path)
            except ProtocolError as error:
                topic, name = path.split("/")[-2:]
                # The offset of a partition that does not exist has to be deleted, which ``gone-offsets`` says.
                if kind is not _OFFSET or self.exists(TopicPartition(topic, int(name))):
                    found.append(Unreadable(f"{error}"[:500], self._remedy(kind, path)))
        return tuple(found)

    def _remedy(self, kind: _Kind, path: str) -> str:
        """
        Return the remedy for a znode that cannot be parsed. Names replace the words in capitals in the remedy's text.
        """
        settings = self.settings()
        uses_another = self.program_type() is not None or (settings is not None and settings.store == BROKER_V1)
        # A znode that cannot be parsed may have no process: it was written by hand.
        parse = (_CONSUMERS if self.program_type() is None else _PROGRAMS)["kiel-groups/members/*"].parse
        members = sorted(each for each, _ in self.children(self._layout.members) if self.parsed(parse, each))
        text = kind.otherwise if kind.otherwise and (uses_another if kind is _OFFSET else not members) else kind.remedy
        topic, _, partition = path.rpartition("/")
        text = text.replace("TOPIC:PARTITION", f"{_name(topic)}:{partition}").replace("GROUP", self._layout.group)
        text = text.replace(" NAME", f" {quote(connector_of(_name(path)) or '')}").replace("PATH", path)
        text = text.replace("MEMBER", next(iter(members), ""))
        return text.replace("DATA", self._data(path)) if "DATA" in text else text

    def _data(self, path: str) -> str:
        """Return the data or the settings that replace an unreadable znode. The other znodes determine these values."""
        if path == self._layout.config:
            if protocol_type := self.program_type():
                return RoundSettings(protocol_type).encode().decode()
            usual = GroupConfig(group=self._layout.group)
            store = BROKER_V1 if self.begun_topics() and not self.offsets() else usual.store
            return f"store={store} mode={usual.mode} auto_offset_reset={usual.auto_offset_reset}"
        if path == self._workers.config:
            changes = (history_offset_of(_name(each)) for each, _ in self.children(self._workers.history))
            return encode_config_offset(max((each for each in changes if each is not None), default=0)).decode()
        topic = self._znodes.get(topic_path(_name(path)), Znode())
        return FirstOffsets(topic.czxid, 0).encode().decode()

    def _partitions(self, folder: str) -> Iterator[tuple[TopicPartition, str, Znode]]:
        for topic, _ in self.children(folder):
            for path, znode in self.children(topic):
                number = whole_number(_name(path))
                if number is not None:
                    yield TopicPartition(_name(topic), number), path, znode

    def children(self, folder: str) -> list[tuple[str, Znode]]:
        """Return the paths and the znodes of the children of a znode."""
        return self._folders.get(folder, [])


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _owner(data: bytes) -> MemberId:
    """Return the member id in the data of an owner znode: the data up to the last dash, or all data without a dash."""
    text = data.decode(errors="replace")
    return text.rpartition("-")[0] or text


def _is_of_programs(data: bytes, path: str) -> bool:
    """Return whether the data of a group's znode has the version that programs write."""
    try:
        return parse_object(data, path).get("version") == _VERSION
    except ProtocolError:
        return False


# The kinds of znodes, and the remedies for znodes that cannot be read.


_Parser: TypeAlias = Callable[[bytes, str], object]


class _Kind(NamedTuple):
    """
    The parser of znodes of one kind, and the remedy for a znode that cannot be parsed.

    ``otherwise`` is the remedy in a group without members or, for an offset, in a group whose offsets are not in
    ZooKeeper. If ``otherwise`` is "", ``remedy`` applies to all groups.
    """

    parse: _Parser
    remedy: str
    otherwise: str = ""


def _candidate(data: bytes, path: str) -> None:
    if sequence(path) is None:
        raise ProtocolError(f"{path}: the name has no sequence number; the election ignores this znode")
    if not is_member_id(data.decode(errors="replace")):
        raise ProtocolError(f"{path}: a member id was expected, found {data[:40]!r}")


def _of_partition(parse: _Parser) -> _Parser:
    """Return the parser for znodes of partitions. The parser ignores znodes whose name is not a partition number."""
    return lambda data, path: None if whole_number(_name(path)) is None else parse(data, path)


def _unless_empty(parse: _Parser) -> _Parser:
    return lambda data, path: parse(data, path) if data else None


_DELETE = "delete it (zkCli: delete PATH)"
_MEMBER = f"{_DELETE}; a live process writes it again, or joins again"
_WORKER = f"{_DELETE}; a live worker registers again, and starts its work again"
_PEOPLE = f"{_DELETE}; only people read it"
_ORDER = f"{_DELETE}, and order the offsets again; members ignore it"
_PLAN = "'kiel-groups rebalance GROUP --yes' has the leader write it again"
_FIRST_PLAN = (
    "start a member, which replaces it; if the group is no longer needed, 'kiel-groups groups delete GROUP' deletes it"
)
_ROUND = "delete the znode of a member (zkCli: delete MEMBER); it joins again, and the leader writes this one again"
_FIRST_ROUND = "start a member, which replaces it"
_SET = "write it again (zkCli: set PATH DATA)"
_STATUS = 'empty it (zkCli: set PATH ""); the worker writes its next status there'

#: The kinds of znodes, by their paths without the group's name. ``*`` matches any name.
_OFFSET = _Kind(
    _of_partition(parse_offset),
    "'kiel-groups offsets reset GROUP --topic TOPIC:PARTITION --to-earliest' delivers what the log has once more;"
    " --to-offset N in its place, if the offset is known",
    f"{_DELETE}; the group's own offsets are in Kafka, or it has none",
)
_ANY = {
    "consumers/offsets/*/*": _OFFSET,
    "brokers/*": _Kind(parse_topic, "the brokers' controller writes it; look at its log"),
    "kiel-groups/election/*": _Kind(_candidate, _MEMBER),
    "kiel-groups/workers/*": _Kind(WorkerInfo.parse, _WORKER),
    "kiel-groups/connect": _Kind(parse_config_offset, _SET),
    "kiel-groups/connect/connectors/*": _Kind(
        lambda data, path: StoredConnector.parse(connector_of(_name(path)) or "", data, path),
        "'kiel-groups connectors config NAME --file FILE' replaces it, 'kiel-groups connectors delete NAME' deletes it",
    ),
    "kiel-groups/connect/history/*": _Kind(ConfigChange.parse, _PEOPLE),
    "kiel-groups/connect/status/*": _Kind(_unless_empty(WorkStatus.parse), _STATUS),
    "kiel-groups/connect/status/*/*": _Kind(_unless_empty(WorkStatus.parse), _STATUS),
    "kiel-groups/connect/offsets/*/*": _Kind(
        SourceOffset.parse, f"{_DELETE}; the task reads that part of its source from the beginning"
    ),
}
#: The kinds that other clients write in other formats. These kinds are checked only in groups that have had members of
#: this package.
_OURS = {
    "consumers/ids/*": _Kind(parse_object, _MEMBER),
    "consumers/owners/*/*": _Kind(
        _of_partition(parse_owner), f"{_DELETE}; the assigned member claims the partition within a minute"
    ),
}
_CONSUMERS = {
    "kiel-groups/members/*": _Kind(lambda data, path: MemberInfo.parse(_name(path), data, path), _MEMBER),
    "kiel-groups/allocation": _Kind(GroupState.parse, _PLAN, _FIRST_PLAN),
    "kiel-groups/allocation/*": _Kind(MemberAssignment.parse, _PLAN, _FIRST_PLAN),
    "kiel-groups/config": _Kind(
        GroupSettings.parse,
        "'kiel-groups config set GROUP --replace DATA' replaces it; members with other settings are refused",
    ),
    "kiel-groups/weights": _Kind(parse_weights, "'kiel-groups weights remove GROUP --yes', then set them again"),
    "kiel-groups/history/*": _Kind(HistoryEntry.parse, _PEOPLE),
    "kiel-groups/starts/*": _Kind(FirstOffsets.parse, f"{_SET}; partitions without an offset begin at their earliest"),
    "kiel-groups/orders": _Kind(_unless_empty(OrderNotice.parse), _ORDER),
    "kiel-groups/orders/*": _Kind(OrderedOffset.parse, _ORDER),
}
_PROGRAMS = {
    "kiel-groups/members/*": _Kind(lambda data, path: RoundMember.parse(_name(path), data, path), _MEMBER),
    "kiel-groups/allocation": _Kind(RoundState.parse, _ROUND, _FIRST_ROUND),
    "kiel-groups/allocation/*": _Kind(RoundAssignment.parse, _ROUND, _FIRST_ROUND),
    "kiel-groups/config": _Kind(RoundSettings.parse, _SET),
}


def _patterns(path: str) -> Iterator[str]:
    """
    Yield the keys of the tables of kinds that match the path of a znode.

    A key is the path without the group's name, with its last names replaced by no, one or two ``*``.
    """
    _, root, *below = path.split("/")
    for stars in range(min(3, len(below))):
        yield "/".join([root, *below[1 : len(below) - stars], *"*" * stars])
