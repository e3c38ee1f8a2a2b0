"""The checks before a member joins: its settings agree with the group's, and the group has no foreign members."""

from __future__ import annotations

import logging

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.leader.foreign_members import find_foreign_members
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.errors import ForeignMemberError, GroupConfigError, ProtocolError
from kiel_groups.group.znodes.contents import GroupSettings
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Create, Done, Unknown

__all__ = ["check_admission"]

log = logging.getLogger(__name__)


async def check_admission(session: Session, layout: GroupLayout, config: GroupConfig) -> None:
    """
    Check that this member may join its group.

    Raises:
        GroupConfigError: The group's settings differ from this member's, or cannot be read.
        ForeignMemberError: Java, pykafka or kiel consumers are alive in the group.
    """
    await _check_settings(session, layout, config)
    await _check_foreign(session, layout)


async def _check_settings(session: Session, layout: GroupLayout, config: GroupConfig) -> None:
    mine = GroupSettings(store=config.store, mode=config.mode, auto_offset_reset=config.auto_offset_reset)
    node = await session.get(layout.config)
    while node is None:
        # Never overwrite: if two members are first at the same time, one create succeeds, and both read its settings.
        answer = await session.transact([Create(layout.config, mine.encode())])
        if isinstance(answer, Done):
            log.info("group %s: new group; it takes the settings of this member", layout.group)
        node = await session.get(layout.config)
        if node is None and not isinstance(answer, Unknown):
            await session.ensure(layout.parents)
    try:
        group = GroupSettings.parse(node.data, layout.config)
    except ProtocolError as error:
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


async def _check_foreign(session: Session, layout: GroupLayout) -> None:
    found = await find_foreign_members(session, layout)
    if found.names:
        raise ForeignMemberError(
            f"group {layout.group} has {found}: they would read the same partitions. Stop them first, or use another"
            " group"
        )
