"""Who may join: a member agrees with the group's settings, and nobody foreign lives in the group."""

from __future__ import annotations

import logging

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.leader.foreign_members import find_foreigners
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.errors import ForeignMemberError, GroupConfigError, ProtocolError
from kiel_groups.group.znodes.contents import GroupSettings
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Create, Done, Unknown

__all__ = ["check_admission"]

log = logging.getLogger(__name__)


async def check_admission(session: Session, layout: GroupLayout, config: GroupConfig) -> None:
    """
    Refuse to join where that would harm the group.

    Raises:
        GroupConfigError: The group's settings differ from this member's, or cannot be read.
        ForeignMemberError: Java consumers, pykafka's or kiel's members are alive in the group.
    """
    await _check_settings(session, layout, config)
    await _check_foreign(session, layout)


async def _check_settings(session: Session, layout: GroupLayout, config: GroupConfig) -> None:
    mine = GroupSettings(store=config.store, mode=config.mode, auto_offset_reset=config.auto_offset_reset)
    node = await session.get(layout.config)
    while node is None:
        # Create-only: of two first members one wins, and both read what it wrote.
        answer = await session.transact([Create(layout.config, mine.encode())])
        if isinstance(answer, Done):
            log.info("group %s: it has no settings yet, so it is new; this member's count", layout.group)
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
        told = "; ".join(f"{name} is {there!r} there and {here!r} here" for name, here, there in differences)
        raise GroupConfigError(
            f"this member disagrees with its group {layout.group}: {told}. Give this member the group's setting,"
            f" or stop all members and change the znode {layout.config}"
        )


async def _check_foreign(session: Session, layout: GroupLayout) -> None:
    found = await find_foreigners(session, layout)
    if found.names:
        raise ForeignMemberError(
            f"group {layout.group} has {found}: they would read the same partitions. Stop them first, or use another"
            " group"
        )
