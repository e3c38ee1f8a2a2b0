"""
Reset, import, copy and delete the offsets of a group, wherever they are stored.

``plan_reset`` and the other ``plan_`` functions read the group, and return an ``OffsetsPlan`` with the offset of each
partition before and after the change. ``OffsetsPlan.apply`` writes the new offsets, unless an offset has changed
meanwhile. Live members would overwrite new offsets. So ``OffsetsPlan.order`` orders live members in ZooKeeper to set
the offsets, and offsets are deleted only if no live member subscribes to their topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kiel_groups.errors import BrokerError, ConfigError, ConflictError
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.offset_order import OffsetOrder, place_order
from kiel_groups.ops.actions.offset_sources import OffsetSource, changed_meanwhile
from kiel_groups.ops.actions.offsets_file import OffsetsFile
from kiel_groups.ops.loaded_groups import find_log_ends
from kiel_groups.ops.views.offset_changes import (
    IN_BROKERS,
    FoundTime,
    GroupOffsets,
    OffsetChange,
    Selection,
    Target,
    check_exist,
    check_selected,
    compute_changes,
    is_selected,
    named_partitions,
    select,
    unmatched,
)
from kiel_groups.ops.zookeeper_client import Client
from kiel_groups.wording import counted, own_command, some


@dataclass(frozen=True, slots=True)
class OffsetsPlan:
    """
    A planned change of the offsets of a group.

    ``found`` is the group as it was read. ``changes`` has all selected partitions, even those whose offset does not
    change. ``left_out`` are partitions that no longer exist, but of which the group has an offset. ``znodes`` has the
    znodes of a deleted group that are to be created again, as in an ``OffsetsFile``.
    """

    found: GroupOffsets
    changes: tuple[OffsetChange, ...]
    left_out: tuple[TopicPartition, ...] = ()
    znodes: Mapping[str, str] = field(default_factory=dict)
    is_deletion: bool = field(default=False, kw_only=True)

    @property
    def group(self) -> str:
        return self.found.group

    @property
    def changing(self) -> tuple[OffsetChange, ...]:
        """The changes to make: for a deletion or an order, all changes; otherwise, the changes to another offset."""
        # Members may be anywhere between the stored offset and the end of the log, so they get an order in any case.
        is_due = self.is_deletion or self.is_order
        return tuple(each for each in self.changes if is_due or each.before != each.after)

    @property
    def lost(self) -> dict[TopicPartition, int]:
        """The offsets that are overwritten or deleted."""
        changed = (each for each in self.changing if self.is_deletion or each.before != each.after)
        return {each.partition: each.before for each in changed if each.before is not None}

    @property
    def is_order(self) -> bool:
        """Whether live members must make the change: ZooKeeper coordinates the group, and offsets are not deleted."""
        return bool(self.found.members) and not self.is_deletion and self.found.store != IN_BROKERS

    def order(self, client: Client) -> OffsetOrder:
        """
        Order the live members to make the change; see ``place_order``.

        Raises:
            ConfigError: As for ``check`` and ``place_order``; the group may have no members any more.
            ConflictError: Another order is in progress.
            CoordinationError: ZooKeeper refuses the order.
        """
        self.check()
        return place_order(
            client, self.group, {each.partition: each.after for each in self.changes if each.after is not None}
        )

    def check(self) -> None:
        """
        Check that no live member prevents the change, by the members in ``found``.

        Raises:
            ConfigError: Live members prevent the change. The text names the members and a remedy.
        """
        found = self.found
        if found.foreign:
            raise ConfigError(
                f"group {found.group} has live members of another protocol, which overwrite offsets: "
                f"{some(found.foreign)}; stop them first"
            )
        if not found.members:
            return
        topics = {each.partition.topic for each in self.changes}
        if self.is_order:
            if unread := sorted(topics - found.subscribed):
                raise ConfigError(
                    f"no live member of group {found.group} subscribes to {some(unread)}, so none sets offsets there;"
                    f" stop the members first ({some(found.members)}), or name topics that they read"
                )
            return
        if not self.is_deletion:
            raise ConfigError(
                f"group {found.group} has {counted(found.members, 'live member')}: {some(found.members)}; stop"
                " them first, because brokers take offsets of a group without members;"
                f" {own_command('describe', found.group)} shows when they are gone"
            )
        # A partition that its topic does not have has no owner, so nothing commits its offset.
        existing = {p.topic for p, *_ in self.changes if p.partition in found.topics.get(p.topic, (p.partition,))}
        if read := sorted(existing & found.subscribed):
            raise ConfigError(
                f"live members of group {found.group} subscribe to {some(read)}: {some(found.members)}; stop them"
                " first, or name topics that they do not read"
            )

    def apply(self, source: OffsetSource) -> str:
        """
        Read the group again, and write the change, unless live members prevent it or an offset has changed meanwhile.

        Returns:
            A remark for people, or "".

        Raises:
            ConfigError: As for ``check``.
            ConflictError: Another client has changed an offset, or live members must make the change now.
            KielGroupsError: As for ``read`` and ``write`` of the source.
        """
        topics = {each.partition.topic for each in self.changes}
        found = source.read(self.group, topics, store=self.found.store, must_exist=False, with_logs=False)
        now = replace(self, found=found)
        now.check()
        if now.is_order:
            raise ConflictError(f"group {self.group} has live members: {some(found.members)}; try again")
        changed = [each.partition for each in self.changing if found.offsets.get(each.partition) != each.before]
        if changed:
            raise ConflictError(f"{changed_meanwhile(self.group, changed)}; nothing is written; try again")
        return source.write(self.found, self.changing, self.znodes)


def plan_reset(
    source: OffsetSource,
    group: str,
    selection: Selection | None,
    target: Target,
    *,
    store: str | None = None,
    is_new: bool = False,
) -> OffsetsPlan:
    """
    Plan to move the offsets of partitions to a target.

    Args:
        source: Reads the group.
        group: The group's name.
        selection: The partitions, as ``parse_selection`` returns them; None for all topics of the group.
        target: The target, of any kind except ``file``; for files, see ``plan_import``.
        store: As for ``ZooKeeperOffsets.read``.
        is_new: Whether the group may be missing.

    Raises:
        UnknownGroupError, UnknownTopicError: The group or a topic does not exist. The text suggests a similar name.
        ConfigError: A partition does not exist, or has no offset to shift, or no partition is selected. Or ``read`` of
            the source raises the error.
        BrokerError: The start or the end of a log, or the offset at the time, is unknown.
    """
    found = source.read(group, selection or (), store=store, must_exist=not is_new, topics_exist=True)
    check_exist(found, named_partitions(selection or {}))
    partitions = select(found, selection, stored=False)
    if selection is None and target.kind in ("shift", "current"):
        partitions = [each for each in partitions if each in found.offsets]
    if not partitions:
        raise ConfigError(f"group {group} has no offsets, and no live member; name its topics")
    _check_logs(found, partitions)
    given = None
    if target.kind == "time":
        target = Target("time", max(1, target.value))
        given = asyncio.run(_find_time(found, partitions, target.value))
    return OffsetsPlan(found, compute_changes(found, partitions, target, given), _gone(found, selection))


def plan_import(
    source: OffsetSource,
    group: str,
    file: OffsetsFile,
    selection: Selection | None = None,
    *,
    store: str | None = None,
    is_new: bool = False,
) -> OffsetsPlan:
    """
    Plan to set the offsets that a file has for the partitions of ``selection``, or all offsets of the file.

    The other arguments and the errors are as for ``plan_reset``. The group may be missing if the file is of this group.
    A group without settings, in ZooKeeper, then gets the settings and the other znodes that the file has.
    """
    offsets = file.offsets
    if selection is not None:
        offsets = {p: at for p, at in offsets.items() if is_selected(selection, p)}
        if missing := unmatched(selection, offsets):
            raise ConfigError(f"the file has no offset of {some(missing)}")
    topics = {each.topic for each in offsets}
    must_exist = not is_new and file.group != group
    found = source.read(group, topics, store=store, must_exist=must_exist, topics_exist=True)
    check_exist(found, offsets)
    _check_logs(found, offsets)
    given = {partition: FoundTime(offset) for partition, offset in offsets.items()}
    is_back = file.group == group and not found.has_settings and found.store != IN_BROKERS
    return OffsetsPlan(
        found, compute_changes(found, offsets, Target("file"), given), znodes=file.znodes if is_back else {}
    )


def plan_copy(
    source: OffsetSource, group: str, new_group: str, *, overwrite: bool = False, store: str | None = None
) -> OffsetsPlan:
    """
    Plan to copy the offsets of a group to a new group. The group with the offsets may have live members.

    Args:
        source: Reads both groups.
        group: The group with the offsets.
        new_group: The group that gets the offsets.
        overwrite: Whether the new group may already have offsets.
        store: The store of ``group``, as for ``ZooKeeperOffsets.read``. A new group without settings and offsets gets
            the same store.

    Raises:
        UnknownGroupError: ``group`` does not exist.
        ConfigError: ``group`` has no offsets of existing partitions, ``new_group`` has offsets and ``overwrite`` is
            False, or both groups are the same. Or ``read`` of the source raises the error.
    """
    if group == new_group:
        raise ConfigError(f"group {group} cannot be copied to itself; give another name for the new group")
    origin = source.read(group, store=store, with_logs=False)
    offsets = {p: at for p, at in origin.offsets.items() if p.partition in origin.topics.get(p.topic, ())}
    if not offsets:
        raise ConfigError(f"group {group} has no offsets to copy")
    topics = {each.topic for each in offsets}
    found = source.read(new_group, topics, must_exist=False, with_logs=False)
    if not found.stored and not found.has_settings:
        found = replace(found, store=origin.store)
    if found.stored and not overwrite:
        has = counted(found.stored, "partition")
        raise ConfigError(f"overwrite: not given, and group {new_group} has offsets of {has}, which would be replaced")
    changes = tuple(OffsetChange(p, found.offsets.get(p), at) for p, at in sorted(offsets.items()))
    return OffsetsPlan(found, changes, _gone(origin, None))


def plan_delete(
    source: OffsetSource, group: str, selection: Selection | None, *, store: str | None = None
) -> OffsetsPlan:
    """
    Plan to delete offsets, including the offsets of topics that no longer exist.

    If ``selection`` is None, all offsets of the group are deleted.

    Raises:
        UnknownGroupError: The group does not exist.
        ConfigError: The group has no offset of a selected topic or partition, or the brokers are too old to delete
            offsets. Or ``read`` of the source raises the error.
    """
    found = source.read(group, selection or (), store=store, with_logs=False)
    partitions = select(found, selection, stored=True)
    check_selected(found, selection, partitions)
    if not partitions:
        raise ConfigError(f"group {group} has no offset")
    source.check_deletion(found, partitions)
    changes = tuple(OffsetChange(each, found.offsets.get(each), None) for each in partitions)
    return OffsetsPlan(found, changes, is_deletion=True)


def _check_logs(found: GroupOffsets, partitions: Iterable[TopicPartition]) -> None:
    missing = [each for each in partitions if each not in found.starts or each not in found.ends]
    if missing:
        why = found.problem or "the leaders do not answer"
        raise BrokerError(f"it is not known where the logs of {some(missing)} begin and end: {why}")


async def _find_time(
    found: GroupOffsets, partitions: Sequence[TopicPartition], time_ms: int
) -> dict[TopicPartition, FoundTime]:
    look = await find_log_ends(found.brokers, partitions, at=time_ms)
    missing = [each for each in partitions if each not in look.offsets]
    if missing:
        raise BrokerError(f"the time cannot be looked up in {some(missing)}: {look.problem}")
    return {p: FoundTime(look.offsets[p], look.times_ms.get(p), look.segments.get(p, ())) for p in partitions}


def _gone(found: GroupOffsets, selection: Selection | None) -> tuple[TopicPartition, ...]:
    """Return the partitions with an offset that no longer exist, or () if there is a selection."""
    if selection is not None:
        return ()
    return tuple(sorted(p for p in found.stored if p.partition not in found.topics.get(p.topic, ())))
