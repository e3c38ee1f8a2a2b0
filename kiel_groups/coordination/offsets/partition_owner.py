"""Name the owner of a partition that this member does not own, as its owner znode does."""

from __future__ import annotations

from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import parse_owner
from kiel_groups.model import TopicPartition

__all__ = ["owner_words"]


async def owner_words(context: MemberContext, partition: TopicPartition) -> str:
    """Return the words for an error that says that this member does not own the partition."""
    owner = await _owner(context, partition)
    if owner is not None:
        return f"this member, {context.member_id}, but {owner}; its owner commits it"
    words = f"this member, {context.member_id}, yet: it is claimed, and its start is not known; "
    if context.config.auto_offset_reset == "none":
        return words + f"write its first offset to {context.layout.offset(partition)}"
    return words + "wait for on_partitions_assigned"


async def _owner(context: MemberContext, partition: TopicPartition) -> str | None:
    """Return who owns a partition, or None for this member."""
    path = context.layout.owner(partition)
    node = await context.session.get(path)
    if node is None:
        return "by no member"
    try:
        owner = parse_owner(node.data, path)
    except ProtocolError as error:
        return f"by an unknown one ({error})"
    if node.owner == context.session.id:
        return None
    return f"by {owner}"
