"""
Release the partitions of a member that does not release them itself.

The member znode is deleted first: a live member notices the deletion at its next heartbeat and stops. The owner
znodes are deleted only after the member's session timeout, when its lease has expired in any case. If the member znode
and the owner znodes were deleted at once, two members could deliver the same partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kazoo.exceptions import NoNodeError

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.contents import MemberInfo, parse_owner, whole_number
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.zookeeper_client import Client, children_of
from kiel_groups.wording import counted, own_command

#: How long to wait for a member whose session timeout is unknown: unless configured otherwise, ZooKeeper grants at most
#: 20 ticks of 2 s.
LONGEST_SESSION_MS = 40_000

_EMPTY = "it has no members at the moment"

#: The interval between checks for remaining claims, in seconds.
CLAIMS_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class Released:
    """
    The outcome of a release.

    ``owned`` has the partitions that the member owned before. ``taken`` has the partitions whose owner znodes were
    deleted by force after the wait.
    """

    owned: tuple[TopicPartition, ...]
    waited_ms: int
    taken: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """
    The partitions of a member that are to be released.

    ``is_alive`` is whether the member znode exists. ``owned`` has the partitions of the member, each with the creation
    zxid of its owner znode. ``wait_ms`` is the longest wait before the owner znodes are deleted.
    """

    group: str
    member_id: MemberId
    is_alive: bool
    owned: Mapping[TopicPartition, int]
    wait_ms: int

    def apply(
        self,
        client: Client,
        *,
        report: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Released:
        """
        Remove the member from its group, wait until it has released its partitions, and release the rest by force.

        Args:
            client: The caller's own session.
            report: Called once, before the wait, with one line about the claims; not called if the member owns nothing.
            sleep: Waits for a number of seconds.
        """
        layout = GroupLayout(self.group)
        for path in (layout.member(self.member_id), layout.consumer_id(self.member_id)):
            with suppress(NoNodeError):
                client.delete(path)
        if self.owned:
            status = f"{self.member_id} is {'removed from the group' if self.is_alive else 'no longer a member'}"
            claims = counted(self.owned, "claim is", "claims are")
            report(f"{status}; {claims} deleted in {self.wait_ms / 1000:g} s unless released before")
        waited_ms = 0
        while waited_ms < self.wait_ms and _any_left(client, layout, self.owned):
            pause_ms = min(round(1000 * CLAIMS_CHECK_S), self.wait_ms - waited_ms)
            sleep(pause_ms / 1000)
            waited_ms += pause_ms
        return Released(tuple(sorted(self.owned)), waited_ms, _delete_left(client, layout, self.owned))


def plan_release(client: Client, group: str, member_id: MemberId, *, wait_ms: int | None = None) -> Release:
    """
    Find the partitions that a member owns, and return their release. Nothing is changed yet.

    Args:
        client: The caller's own session.
        group: The member's group.
        member_id: The member's id, as ``describe`` shows it.
        wait_ms: The longest wait before the owner znodes are deleted, in milliseconds. The default is the member's
            session timeout, or ``LONGEST_SESSION_MS`` if the member znode is missing or unreadable. For an existing
            member, the wait is never shorter than this default. With a shorter wait, two members could own a partition.

    Raises:
        ConfigError: The member does not exist, and no owner znode names it; or the group's name is not legal.
    """
    layout = GroupLayout(check_name(group, "group"))
    info = _info(client, layout, member_id)
    owned = _owned(client, layout, member_id)
    if info is not None:
        return Release(group, member_id, True, owned, max(info.session_timeout_ms, wait_ms or 0))
    if not owned:
        raise ConfigError(
            f"group {group} has no member {member_id!r}, and no owner znode names one; "
            + (f"{own_command('describe', group)} lists its members" if children_of(client, layout.members) else _EMPTY)
        )
    return Release(group, member_id, False, owned, LONGEST_SESSION_MS if wait_ms is None else wait_ms)


def find_member_id(client: Client, group: str, name: str) -> MemberId:
    """
    Return the id of a member by a name: the member id, the session id at its end, or an instance id.

    A name that fits no member is returned unchanged, because a member that has left may still own partitions.

    Raises:
        ConfigError: The name fits several members, or the name or the group's name is not legal.
    """
    layout = GroupLayout(check_name(group, "group"))
    check_name(name, "member")
    members = children_of(client, layout.members)
    if name in members:
        return name
    called = [
        each
        for each in members
        if each.endswith(f"-{name}") or ((info := _info(client, layout, each)) and info.instance_id == name)
    ]
    if len(called) > 1:
        raise ConfigError(f"member {name!r} of group {group} may be {' or '.join(called)}; give the whole id")
    # A member that left may still own partitions, so the name may be its id.
    return called[0] if called else name


def _info(client: Client, layout: GroupLayout, member_id: MemberId) -> MemberInfo | None:
    """
    Return the content of a member's znode, or None if the znode does not exist.

    For an unreadable znode, return content with the longest session timeout.
    """
    path = layout.member(member_id)
    try:
        return MemberInfo.parse(member_id, client.get(path)[0], path)
    except NoNodeError:
        return None
    except ProtocolError:
        return MemberInfo(member_id=member_id, session_timeout_ms=LONGEST_SESSION_MS, subscription=())


def _owned(client: Client, layout: GroupLayout, member_id: MemberId) -> dict[TopicPartition, int]:
    """Return the partitions of a member, each with the creation zxid of its owner znode."""
    topics = children_of(client, layout.owners)
    partitions = [
        TopicPartition(topic, number)
        for topic in topics
        for name in children_of(client, layout.topic_owners(topic))
        if (number := whole_number(name)) is not None
    ]
    owned = {}
    reads = [(partition, client.get_async(layout.owner(partition))) for partition in partitions]
    for partition, read in reads:
        with suppress(NoNodeError, ProtocolError):
            data, stat = read.get()
            if parse_owner(data, layout.owner(partition)) == member_id:
                owned[partition] = stat.czxid
    return owned


def _any_left(client: Client, layout: GroupLayout, owned: Mapping[TopicPartition, int]) -> bool:
    """Return whether any of these owner znodes still exists. A later claim of a partition has another czxid."""
    requests = [(client.exists_async(layout.owner(partition)), czxid) for partition, czxid in owned.items()]
    return any((stat := request.get()) is not None and stat.czxid == czxid for request, czxid in requests)


def _delete_left(
    client: Client, layout: GroupLayout, owned: Mapping[TopicPartition, int]
) -> tuple[TopicPartition, ...]:
    """
    Delete the owner znodes that still exist, and return their partitions. Later claims are kept.

    The check for later claims is not exact. ZooKeeper deletes by path and version, the version of every owner znode is
    0, and a deletion has no condition on the czxid. So each znode is read right before its deletion. If a partition
    gets a new owner within that round trip, the new owner's znode is deleted. The new owner notices the deletion at its
    next regular check.
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
