"""Compute the losses of a group's deletion, and the transactions that delete its znodes. Live groups are refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kiel_groups.config import BROKER_V1
from kiel_groups.errors import ConfigError, CoordinationError
from kiel_groups.group.znodes.contents import Snapshot
from kiel_groups.group.znodes.layout import RESTORED, SPARK_GROUPS, GroupLayout, WorkerLayout, connector_of
from kiel_groups.group.znodes.transactions import LARGEST_BYTES, Create, Delete, size_of
from kiel_groups.model import CONNECT_TYPE, TopicPartition
from kiel_groups.ops.views.group_reading import GroupReading
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.wire.group_requests import DescribedGroup
from kiel_groups.wording import counted, own_command, some


@dataclass(frozen=True, slots=True)
class GroupDeletion:
    """
    The planned deletion of a group without live members, and the data that it loses.

    ``losses`` names each kind of data that is lost. ``notes`` name data that stays, and programs that may create the
    group again. ``offsets`` and ``znodes`` are the content of a restore file. ``znodes`` has the data of znodes, with a
    character for each byte, by their paths below ``/kiel-groups/<group>``. ``committed_ms`` is the time of the last
    commit in epoch milliseconds, or None if it is unknown. ``snapshot`` has all znodes of the group as they were read.
    The deletion fails if one of these znodes has changed.
    """

    group: str
    protocol_type: str
    losses: tuple[str, ...]
    notes: tuple[str, ...]
    offsets: Mapping[TopicPartition, int]
    znodes: Mapping[str, str] = field(default_factory=dict)
    committed_ms: int | None = None
    snapshot: Snapshot = field(default_factory=dict, repr=False)


#: What a candidate that is not a member is called: 'kiel-groups serve' with the group's name.
_ALLOCATOR = "allocator process"


def deletion_of_znodes(group: str, znodes: Snapshot) -> GroupDeletion:
    """
    Return the deletion of a group from ZooKeeper, with its losses.

    Args:
        group: The group.
        znodes: All znodes of the group. Other znodes are not deleted.

    Raises:
        ConfigError: Members are alive; the text names them.
        CoordinationError: An ACL hides some znodes, so members may be alive.
    """
    layout, view = GroupLayout(group), view_group(group, znodes)
    if view.closed:
        raise CoordinationError(
            f"group {group} is not deleted: an ACL denies reading {some(view.closed)}, so members may be alive there"
        )
    if alive := list(_live_names(layout, znodes)):
        raise _refusal(group, alive)
    found = GroupReading(layout, znodes).offsets()
    readable = {partition: each.offset for partition, each in found.items() if each.offset is not None}
    offsets, unreadable = {} if view.offsets_in_kafka else readable, len(found) - len(readable)
    losses = [*_lost_offsets(offsets)]
    if unreadable:
        losses.append(f"{counted(unreadable, 'offset')} that {'is' if unreadable == 1 else 'are'} no number")
    if layout.config in znodes:
        losses.append("its settings")
    return GroupDeletion(
        group,
        view.protocol_type,
        (*losses, *_further_losses(view, layout, znodes)),
        tuple(_notes(view)),
        offsets,
        dict(_restored(layout, znodes)),
        max((each.znode.modified_ms for each in found.values()), default=None),
        znodes,
    )


def deletion_of_answers(described: DescribedGroup, offsets: Mapping[TopicPartition, int]) -> GroupDeletion:
    """
    Return the deletion of a group at its coordinator, with its losses.

    Args:
        described: The coordinator's answer.
        offsets: The committed offsets of the group.

    Raises:
        ConfigError: Members are alive; the text names them.
    """
    if described.members:
        alive = [f"member {each.member_id} at {each.client_host.removeprefix('/')}" for each in described.members]
        raise _refusal(described.group, sorted(alive))
    notes = _spark_notes(described.group)
    if described.protocol_type == CONNECT_TYPE:
        notes += ("the connectors stay: Java's workers keep them in topics, and workers of kiel-groups in ZooKeeper",)
    return GroupDeletion(described.group, described.protocol_type, _lost_offsets(offsets), notes, offsets)


def _lost_offsets(offsets: Mapping[TopicPartition, int]) -> tuple[str, ...]:
    topics = sorted({partition.topic for partition in offsets})
    return (f"the offsets of {counted(offsets, 'partition')} of {some(topics)}",) if offsets else ()


def _refusal(group: str, names: Iterable[str]) -> ConfigError:
    """Return the error for a group with live members."""
    listed = [f"{name:.300}" for name in names]
    them = "it" if len(listed) == 1 else "them"
    service = f"a service that leads the group, perhaps this one: start it without '--group {group}'"
    leads = f". An {_ALLOCATOR} is {service}" if any(name.startswith(_ALLOCATOR) for name in listed) else ""
    return ConfigError(
        f"group {group} is alive, and is not deleted: {some(listed)}. Stop {them} first; a killed process counts until"
        f" its session times out{leads}"
    )


def _spark_notes(group: str) -> tuple[str, ...]:
    """Return a note if the group's name shows that a Spark query or an archive commits to it, and otherwise ()."""
    if not group.startswith(SPARK_GROUPS):
        return ()
    return (
        "a Spark query or an archive commits here how far it is. Its place is in its checkpoint, which stays: if it"
        " runs, it continues there, and commits again",
    )


def _live_names(layout: GroupLayout, znodes: Snapshot) -> Iterator[str]:
    """Yield a description of each process that is alive in a group, by the ephemeral znodes of its session."""
    folders = {
        layout.members: "member",
        layout.ids: "consumer of another client",
        layout.kiel_members: "member of kiel",
        WorkerLayout(layout.group).workers: "worker",
    }
    living = {path: znode for path, znode in sorted(znodes.items()) if znode.session and _is_below(path, layout.roots)}
    names: dict[str, str] = {}
    for folder, what in folders.items():
        names |= {_name(path): what for path in living if _folder(path) == folder and _name(path) not in names}
    for path, znode in living.items():
        owner = znode.data.decode(errors="replace")
        # The owner znode of a partition also has the index of a thread.
        if _folder(path) not in folders and not {owner, owner.rpartition("-")[0]} & names.keys():
            names[owner] = _ALLOCATOR if _folder(path) == layout.election else "owner"
    yield from (f"{what} {name}" for name, what in names.items())


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _further_losses(view: GroupView, layout: GroupLayout, znodes: Snapshot) -> Iterator[str]:
    """Yield the kinds of lost data, except offsets and settings."""
    if view.weights:
        yield f"the weights of {counted(view.weights, 'partition')}"
    if view.history:
        yield "the history of its plans, which the restore file does not have"
    workers = WorkerLayout(layout.group)
    connectors = sorted(_children(workers.connectors, znodes))
    if connectors:
        names = some(connector_of(name) or name for name in connectors)
        yield f"the configurations of {counted(connectors, 'connector')}: {names:.200}"
    sources = {name: len(_children(f"{workers.offsets}/{name}", znodes)) for name in _children(workers.offsets, znodes)}
    if any(sources.values()):
        names = some(connector_of(name) or name for name, count in sorted(sources.items()) if count)
        places = counted(sum(sources.values()), "source offset")
        yield f"{places}, without which connectors of these names start from the beginning: {names:.200}"


def _restored(layout: GroupLayout, znodes: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the path below the group's root and the data of each znode that a restore file includes."""
    workers, folders = WorkerLayout(layout.group), [f"{layout.root}/{name}" for name in RESTORED]
    for path, znode in sorted(znodes.items()):
        # Workers write their statuses again.
        if _is_below(path, folders) and not _is_below(path, (workers.statuses, workers.owners)):
            yield path.removeprefix(f"{layout.root}/"), znode.data.decode("latin-1")


def _children(folder: str, znodes: Snapshot) -> list[str]:
    return [_name(path) for path in znodes if _folder(path) == folder]


def _notes(view: GroupView) -> Iterator[str]:
    if view.offsets_in_kafka:
        yield (
            f"its offsets are in Kafka ({BROKER_V1}) and stay there until they expire: a new group of this name"
            " continues at them"
        )
    yield from _spark_notes(view.group)
    if view.state == "memberless" and not view.group.startswith(SPARK_GROUPS):
        yield (
            "no member has ever joined: 'offsets copy' has set its offsets, or another program, such as a Spark query,"
            " which commits them again if it runs"
        )
    if view.are_workers:
        yield (
            "the offsets of sinks are in groups of their own, such as connect-NAME, and stay. If brokers coordinate the"
            f" workers, {own_command('groups', 'delete', view.group, '--coordination', 'brokers')} deletes what brokers"
            " keep"
        )


def deletion_transactions(group: str, znodes: Snapshot) -> list[list[Create | Delete]]:
    """
    Return the transactions that delete a group, in order. A transaction fails if a member joins or a znode changes.

    The folders are the znodes below which members of any client register. ZooKeeper refuses to delete a znode with
    children. So the first transaction begins with the deletion of the folders, and fails if a member has joined. A
    group of several thousand partitions does not fit into one transaction. So each later transaction first creates the
    folders and deletes them again. The transaction fails if a member has created the folders meanwhile. The first
    transaction also creates and deletes the folders that do not exist. Offsets are deleted last. A member that joins
    meanwhile stops the deletion, and finds for each partition its offset or no offset, as if it had joined before or
    after the deletion.

    Args:
        group: The group.
        znodes: All znodes of the group, as they were read. Other znodes are ignored.
    """
    layout = GroupLayout(group)
    folders = (layout.members, layout.election, layout.ids, layout.kiel_members, WorkerLayout(group).workers)
    roots = [root for root in layout.roots if root in znodes]
    many = (layout.offsets, WorkerLayout(group).offsets)

    def rank(path: str) -> tuple[bool, bool, int, str]:
        is_late = _is_below(path, many) or any(_is_below(folder, [path]) for folder in many)
        return not _is_below(path, folders), is_late, -path.count("/"), path

    ours = sorted((path for path in znodes if _is_below(path, roots) and path not in roots), key=rank)
    registered = [folder for folder in folders if _folder(folder) in roots]
    condition = _absence(registered)
    transactions = [_absence(folder for folder in registered if folder not in znodes)]
    size = sum(map(size_of, transactions[0]))
    for path in ours:
        operation = Delete(path, znodes[path].version)
        if size + size_of(operation) > LARGEST_BYTES:
            transactions.append(list(condition))
            size = sum(map(size_of, condition))
        transactions[-1].append(operation)
        size += size_of(operation)
    transactions[-1] += [Delete(root, znodes[root].version) for root in roots]
    return transactions


def _absence(folders: Iterable[str]) -> list[Create | Delete]:
    """Return operations that change nothing, and fail if one of these folders exists."""
    return [operation for folder in folders for operation in (Create(folder), Delete(folder))]
