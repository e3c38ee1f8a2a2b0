"""
Taking partitions from a member that does not let go.

Its member znode goes first: the member, should it live, finds that out at its next heartbeat and stops. Its owner
znodes go only after its session timeout, by when its lease is over, whatever became of it. Both at once would leave two
members that hand out the same partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kazoo.exceptions import NoNodeError

from kiel_groups.admin.cluster_admin import Client
from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.contents import MemberInfo, parse_owner
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.wording import counted

__all__ = ["Released", "force_release", "member_called", "LONGEST_SESSION_MS"]

#: How long to wait for a member whose session timeout nobody knows: ZooKeeper grants 20 ticks of 2 s at most, unless
#: told otherwise.
LONGEST_SESSION_MS = 40_000

_EMPTY = "it has no members at the moment"

#: How often to look whether any claim is left, in seconds.
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Released:
    """What a member owned at first, how long was waited for it, and what had to be taken from it in the end."""

    owned: tuple[TopicPartition, ...]
    waited_ms: int
    taken: tuple[TopicPartition, ...]


def force_release(
    client: Client,
    group: str,
    member_id: MemberId,
    *,
    wait_ms: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
) -> Released:
    """
    Release what a member owns; blocking, until it owns nothing any more, or for as long as its session timeout.

    Args:
        client: A session of the caller's own.
        group: The member's group.
        member_id: As ``describe`` shows it.
        wait_ms: How long to wait before owner znodes are deleted where nobody knows the session timeout any more, for
            the member znode is gone; ``LONGEST_SESSION_MS`` unless given. A member that is there has its session
            timeout at least: a shorter wait would make two owners.
        tell: Hears in one line what is being waited for.
        sleep: Waits so many seconds.

    Raises:
        ConfigError: There is no such member, and no owner znode names one.
    """
    layout = GroupLayout(check_name(group, "group"))
    granted_ms = _session_timeout_ms(client, layout, member_id)
    owned = _owned(client, layout, member_id)
    if granted_ms is None and not owned:
        raise ConfigError(
            f"group {group} has no member {member_id!r}, and no owner znode names one; "
            + (f"'kiel-groups describe {group}' lists its members" if _children(client, layout.members) else _EMPTY)
        )
    if granted_ms is None:
        wait_ms = LONGEST_SESSION_MS if wait_ms is None else wait_ms
    else:
        wait_ms = max(granted_ms, wait_ms or 0)
    for path in (layout.member(member_id), layout.consumer_id(member_id)):
        with suppress(NoNodeError):
            client.delete(path)
    if owned:
        told = f"{member_id} is {'no member any more' if granted_ms is None else 'told to stop'}"
        claims = counted(owned, "claim is", "claims are")
        tell(f"{told}; {claims} deleted in {wait_ms / 1000:g} s unless released before")
    waited_ms = 0
    while waited_ms < wait_ms and _standing(client, layout, owned):
        pause_ms = min(round(1000 * LOOK_S), wait_ms - waited_ms)
        sleep(pause_ms / 1000)
        waited_ms += pause_ms
    return Released(tuple(sorted(owned)), waited_ms, _take(client, layout, owned))


def member_called(client: Client, group: str, name: str) -> MemberId:
    """
    The id of the member that people know by this name: that id, the session that it ends in, or an instance id.

    Raises:
        ConfigError: Several are called so, or no member can be.
    """
    layout = GroupLayout(check_name(group, "group"))
    check_name(name, "member")
    members = _children(client, layout.members)
    if name in members:
        return name
    called = [each for each in members if each.endswith(f"-{name}") or _instance_id(client, layout, each) == name]
    if len(called) > 1:
        raise ConfigError(f"member {name!r} of group {group} may be {' or '.join(called)}; give the whole id")
    # Who is no member any more may own something still.
    return called[0] if called else name


def _instance_id(client: Client, layout: GroupLayout, member_id: MemberId) -> str | None:
    path = layout.member(member_id)
    try:
        return MemberInfo.parse(member_id, client.get(path)[0], path).instance_id
    except (NoNodeError, ProtocolError):
        return None


def _session_timeout_ms(client: Client, layout: GroupLayout, member_id: MemberId) -> int | None:
    """What the server granted it, as it says itself, or the most where that cannot be read; None where it is gone."""
    path = layout.member(member_id)
    try:
        return MemberInfo.parse(member_id, client.get(path)[0], path).session_timeout_ms
    except NoNodeError:
        return None
    except ProtocolError:
        return LONGEST_SESSION_MS


def _owned(client: Client, layout: GroupLayout, member_id: MemberId) -> dict[TopicPartition, int]:
    """What it owns, each with the transaction that made it the owner."""
    topics = _children(client, layout.owners)
    partitions = [
        TopicPartition(topic, int(name))
        for topic in topics
        for name in _children(client, layout.topic_owners(topic))
        if name.isdecimal()
    ]
    owned = {}
    reads = [(partition, client.get_async(layout.owner(partition))) for partition in partitions]
    for partition, read in reads:
        with suppress(NoNodeError, ProtocolError):
            data, stat = read.get()
            if parse_owner(data, layout.owner(partition)) == member_id:
                owned[partition] = stat.czxid
    return owned


def _children(client: Client, path: str) -> list[str]:
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []


def _standing(client: Client, layout: GroupLayout, owned: dict[TopicPartition, int]) -> bool:
    """Whether one of the owner znodes of then is there still."""
    looks = [(client.exists_async(layout.owner(partition)), czxid) for partition, czxid in owned.items()]
    return any((stat := look.get()) is not None and stat.czxid == czxid for look, czxid in looks)


def _take(client: Client, layout: GroupLayout, owned: dict[TopicPartition, int]) -> tuple[TopicPartition, ...]:
    """
    Delete the owner znodes that still are those of then: another one may own the partition by now.

    This cannot be exact: ZooKeeper deletes by path and version, which is 0 for every claim, and has no condition on the
    transaction that created a znode. So each is looked at right before. A claim that is given up and taken by another
    within that one round trip is deleted, and its member notices at its next regular look.
    """
    taken = []
    for partition, czxid in sorted(owned.items()):
        path = layout.owner(partition)
        stat = client.exists(path)
        if stat is not None and stat.czxid == czxid:
            with suppress(NoNodeError):
                client.delete(path)
                taken.append(partition)
    return tuple(taken)
