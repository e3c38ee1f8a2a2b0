"""
The checks before a process takes part in a group: it fits the group's members, settings agree, no member is foreign.

A process that is refused has written nothing. The settings say what the members are. The first member writes them, so
of two processes that found a group at the same time, one is refused.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.leader.foreign_members import find_foreign_members
from kiel_groups.coordination.session.zk_session import Node, Session
from kiel_groups.errors import ForeignMemberError, GroupConfigError, ProtocolError
from kiel_groups.group.znodes.contents import GroupSettings
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.round_contents import RoundSettings, program_type, refusal_by_programs
from kiel_groups.group.znodes.transactions import Create, Done, Unknown
from kiel_groups.group.znodes.worker_layout import WorkerLayout
from kiel_groups.model import CONNECT_TYPE

__all__ = ["admit_program", "check_admission", "refuse_programs"]

log = logging.getLogger(__name__)


async def check_admission(session: Session, layout: GroupLayout, config: GroupConfig) -> None:
    """
    Check that this consumer may join its group, and found the group if there is none.

    Raises:
        GroupConfigError: The members are programs, or the group's settings differ from this member's or cannot be read.
        ForeignMemberError: Java, pykafka or kiel consumers are alive in the group.
    """
    await _check_foreign(session, layout)
    mine = GroupSettings(store=config.store, mode=config.mode, auto_offset_reset=config.auto_offset_reset)
    node = await session.get(layout.config)
    await refuse_programs(session, layout, node)
    node = await _founded(session, layout, node, mine.encode())
    try:
        group = GroupSettings.parse(node.data, layout.config)
    except ProtocolError as error:
        # The first program of a group may have written its settings meanwhile.
        await refuse_programs(session, layout, node)
        raise GroupConfigError(
            f"the settings of group {layout.group} cannot be read: {error}; correct that znode, or delete it while no"
            " member is alive"
        ) from error
    if differences := mine.differences(group):
        details = "; ".join(f"{each.setting} is {each.other!r} there and {each.own!r} here" for each in differences)
        raise GroupConfigError(
            f"this member disagrees with its group {layout.group}: {details}. Give this member the group's setting,"
            f" or stop all members and change the znode {layout.config}"
        )


async def refuse_programs(session: Session, layout: GroupLayout, settings: Node | None) -> None:
    """
    Check that the members of a group are consumers, or may become such.

    Args:
        session: The session to read with.
        layout: The group.
        settings: The group's ``config``, as it was read.

    Raises:
        GroupConfigError: The members are programs, which would not understand a plan of partitions.
    """
    if (found := await _program_type(session, layout, settings)) is not None:
        raise refusal_by_programs(layout.group, found)


async def admit_program(session: Session, layout: GroupLayout, protocol_type: str) -> None:
    """
    Check that a group's members are programs of this type, and found the group if there is none.

    A name that consumers of any client use is refused, too: a group of programs would hide their offsets from tools.

    Raises:
        GroupConfigError: The group's members are of another type, or its settings cannot be read.
    """
    mine = RoundSettings(protocol_type)
    node = await session.get(layout.config)
    found = await _program_type(session, layout, node)
    if node is None and found is None and await _has_consumers(session, layout):
        raise _refusal_by_consumers(layout)
    if found in (None, protocol_type):
        node = await _founded(session, layout, node, mine.encode())
        found = _parsed(node.data, layout).protocol_type
    if found != protocol_type:
        theirs = "workers" if found == CONNECT_TYPE else f"of the type {found!r}"
        own = "a worker" if protocol_type == CONNECT_TYPE else f"of the type {protocol_type!r}"
        raise GroupConfigError(
            f"group {layout.group}: its members are {theirs}, and this one is {own}; choose another group"
        )


async def _program_type(session: Session, layout: GroupLayout, settings: Node | None) -> str | None:
    """Return the type of the members if they are programs; see ``program_type``."""
    if settings is not None:
        return program_type(settings.data, None, has_workers=False)
    workers = WorkerLayout(layout.group)
    configuration = await session.get(workers.config)
    has_workers = bool(await session.children(workers.workers))
    return program_type(None, None if configuration is None else configuration.data, has_workers=has_workers)


async def _has_consumers(session: Session, layout: GroupLayout) -> bool:
    """Return whether consumers of any client use the group's name: they are alive, or have left offsets or owners."""
    return any(await session.children_many([layout.ids, layout.owners, layout.offsets, layout.kiel_members]))


async def _founded(session: Session, layout: GroupLayout, node: Node | None, mine: bytes) -> Node:
    """Return the group's settings; if ``node`` is None, write those of this member first."""
    while node is None:
        # Never overwrite: if two members are first at the same time, one create succeeds, and both read its settings.
        answer = await session.transact([Create(layout.config, mine)])
        if isinstance(answer, Done):
            log.info("group %s: new group; it takes the settings of this member", layout.group)
        node = await session.get(layout.config)
        if node is None and not isinstance(answer, Unknown):
            await session.ensure(layout.parents)
    return node


def _parsed(data: bytes, layout: GroupLayout) -> RoundSettings:
    """
    Return the settings of the group, which are those of programs.

    Raises:
        GroupConfigError: They are those of consumers, or cannot be read.
    """
    try:
        return RoundSettings.parse(data, layout.config)
    except ProtocolError as error:
        with suppress(ProtocolError):
            GroupSettings.parse(data, layout.config)
            raise _refusal_by_consumers(layout) from None
        raise GroupConfigError(
            f"group {layout.group}: its settings cannot be read: {error}. Choose another group, or delete that znode"
            " while no member is alive"
        ) from error


def _refusal_by_consumers(layout: GroupLayout) -> GroupConfigError:
    return GroupConfigError(f"group {layout.group}: its members are consumers; choose another group")


async def _check_foreign(session: Session, layout: GroupLayout) -> None:
    found = await find_foreign_members(session, layout)
    if found.names:
        raise ForeignMemberError(
            f"group {layout.group} has {found}: they would read the same partitions. Stop them first, or use another"
            " group"
        )
