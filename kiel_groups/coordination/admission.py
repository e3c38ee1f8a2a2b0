"""Who may join: a member agrees with the group's settings, and nobody foreign lives in the group."""

from __future__ import annotations

from collections.abc import Sequence

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.session import Session
from kiel_groups.errors import ForeignMemberError, GroupConfigError, ProtocolError
from kiel_groups.group.layout import GroupLayout
from kiel_groups.group.transactions import Create, Unknown
from kiel_groups.group.znodes import GroupSettings, unsigned_hex

__all__ = ["check_admission"]


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
    """
    Ids without a member of ours behind them are somebody else's.

    The two folders cannot be read at one moment: an id that stands there before and after the members were read is not
    one of a member that came or went meanwhile.
    """
    before = set(await session.children(layout.ids) or ())
    members = set(await session.children(layout.members) or ())
    foreign = before - members
    if foreign:
        foreign &= set(await session.children(layout.ids) or ())
        foreign = await _without_our_own(session, layout, sorted(foreign))
    kiel = set(await session.children(layout.kiel_members) or ())
    if foreign or kiel:
        named = sorted(foreign or kiel)
        whose = layout.ids if foreign else layout.kiel_members
        raise ForeignMemberError(
            f"group {layout.group} has {len(named)} members that do not take part in its protocol, first {named[0]!r}"
            f" (under {whose}): they would read the same partitions. Stop them first, or use another group"
        )


async def _without_our_own(session: Session, layout: GroupLayout, names: Sequence[str]) -> set[str]:
    """
    Leave out ids that end in the number of the session which owns them: that is how our members are named.

    Such a member has lost its member znode, by hand or by a forced release, and will find out at its next heartbeat.
    """
    nodes = await session.exists_many([layout.consumer_id(name) for name in names])
    return {
        name
        for name, node in zip(names, nodes, strict=True)
        if node is not None and not name.endswith(f"-{unsigned_hex(node.owner)}")
    }
