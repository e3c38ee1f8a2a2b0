"""Preview the plan of a group after a change, without making the change."""

from __future__ import annotations

import time
from collections.abc import Mapping

from kiel_groups.allocators import Allocator, named_allocator, round_robin
from kiel_groups.allocators.assignors import ASSIGNORS, Assignor
from kiel_groups.config import GroupConfig, check_name
from kiel_groups.errors import ConfigError, UnknownGroupError
from kiel_groups.group.planner import Inputs
from kiel_groups.model import TopicPartition
from kiel_groups.ops.broker_reader import BrokerSession, describe_group, unknown_group
from kiel_groups.ops.views.plan_preview import (
    GroupChange,
    PlanPreview,
    changed_inputs,
    inputs_of,
    preview_assignment,
    preview_plan,
    racks_of,
)
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_client import Client, place_of
from kiel_groups.ops.zookeeper_groups import read_lags
from kiel_groups.ops.zookeeper_reader import check_group, read_group, read_plan_inputs, refuse_programs
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE


def preview_group(
    client: Client, group: str, change: GroupChange, allocator: Allocator | None = None, *, timeout_s: float = 10.0
) -> PlanPreview:
    """
    Return the plan that the leader of a group in ZooKeeper would make after a change.

    Args:
        client: The caller's own session.
        group: The group's name.
        change: The change.
        allocator: The allocator to plan with. None means the group's own allocator, by the names in its znodes.
        timeout_s: How long brokers may take to answer with the ends of logs, in seconds.

    Raises:
        UnknownGroupError: There is no such group.
        ConfigError: The change does not fit the group, the group has no members, an ACL denies reading, or no broker or
            topic exists. Or the group's allocator is a function of its members, and ``allocator`` is None.
        GroupConfigError: The members are programs.
        ProtocolError: The group's settings or weights cannot be read.
        AllocatorError: The allocator fails, and so does the allocator that replaces it.
    """
    check_group(client, check_name(group, "group"), place_of(client))
    refuse_programs(client, group)
    znodes = read_plan_inputs(client, group, {*change.topics, *change.partitions})
    if closed := [path for path, znode in znodes.items() if znode.closed]:
        raise ConfigError(f"group {group}: an ACL denies reading {closed[0]}, without which no plan can be computed")
    now_ms = time.time_ns() // 1_000_000
    before = inputs_of(group, znodes, now_ms, GroupConfig(group=group).static_grace_ms)
    if not before.members and not change.added:
        raise ConfigError(_NO_MEMBERS.format(group))
    after = changed_inputs(group, before, change, znodes, now_ms)
    notes: list[str] = []
    chosen = _allocator(group, before, notes) if allocator is None else allocator
    uses_racks = getattr(chosen, "uses_racks", False)
    if uses_racks and (change.added or change.partitions):
        notes.append("planned without the racks of new members and partitions, which are not known")
    lags: Mapping[TopicPartition, int] = {}
    if getattr(chosen, "uses_lag", False):
        view = view_group(group, read_group(client, group))
        if view.leader is None or view.leader in view.member_ids:
            lags, problem = read_lags(client, view, timeout_s)
        else:
            problem = "an allocator process leads, which reads none"
        notes += [f"planned without the lags of some partitions: {problem}"] if problem else []
    return preview_plan(
        group,
        before,
        after,
        chosen,
        racks=racks_of(group, after, znodes) if uses_racks else {},
        lags=lags,
        chroot=str(client.chroot),
        notes=notes,
    )


_FUNCTION = "{!r}, a function of its members; 'kiel-groups plan --allocator MODULE:FUNCTION' plans with it"
_NO_MEMBERS = (
    "group {} has no members, so nothing is planned; for a plan, give the number of members that join ('add-member'),"
    " and the topics that they read"
)


def _allocator(group: str, inputs: Inputs, notes: list[str]) -> Allocator:
    """
    Return the allocator of the group by its settings, else by its newest plan, else the default allocator.

    Append a remark to ``notes`` for each assumption. Raise ConfigError if no allocator has the name.
    """
    name, newest = inputs.dynamic_config.allocator, inputs.group_state
    if name is None and newest is not None:
        name = newest.allocator
        if newest.fallback:
            notes.append(f"the group's allocator failed at its newest plan, so {name} is assumed: {newest.fallback}")
    if not name:
        notes.append("the group has no plan yet; its leader's own allocator is not known, round_robin is assumed")
        return round_robin
    try:
        return named_allocator(name, "allocator")
    except ConfigError:
        raise ConfigError(f"group {group} is allocated by {_FUNCTION.format(name)}") from None


async def preview_group_of_brokers(
    session: BrokerSession, group: str, change: GroupChange, assignor: Assignor | None = None
) -> PlanPreview:
    """
    Return the assignment that the leader of a group that brokers coordinate would make after a change.

    Args:
        session: The connections to the brokers.
        group: The group's name.
        change: The change. Weights are ignored, because such groups have no weights.
        assignor: The assignor to plan with. None means the assignor that the group uses.

    Raises:
        UnknownGroupError: There is no such group.
        ConfigError: The change does not fit the group. Or the group has no members, is rebalancing, or is not a group
            of consumers. Or the group's assignor is not an assignor of this package.
        BrokerError: The group has no coordinator now, or the coordinator does not answer.
        AllocatorError: The assignor fails.
    """
    if not session.has_coordinators:
        raise UnknownGroupError(f"group {group!r} does not exist {session.place}, nor does any other")
    described = (await describe_group(session, group)).described
    if not described.members and not change.added:
        if described.state != "Empty":
            raise await unknown_group(session, group)
        raise ConfigError(_NO_MEMBERS.format(group))
    if described.protocol_type not in ("", PROTOCOL_TYPE):
        raise ConfigError(
            f"the members of group {group} are of type {described.protocol_type!r}; they have no partitions"
        )
    if described.state not in ("Stable", "Empty", "Dead"):
        raise ConfigError(f"group {group} is rebalancing ({described.state}); try again when it is stable")
    chosen = _assignor(group, described.protocol) if assignor is None else assignor
    topics = {name: tuple(each.partition for each in topic.partitions) for name, topic in session.topics.items()}
    return preview_assignment(described, topics, change, chosen)


def _assignor(group: str, protocol: str) -> Assignor:
    for assignor in ASSIGNORS.values():
        if assignor.name == protocol:
            return assignor
    if not protocol:
        raise ConfigError(
            f"group {group} has no members, so it has no assignor; 'kiel-groups plan {group} --allocator sticky' plans"
            f" with one of these: {', '.join(ASSIGNORS)}"
        )
    if protocol.startswith("kiel-"):
        raise ConfigError(f"group {group} is assigned by {_FUNCTION.format(protocol)}")
    raise ConfigError(
        f"group {group} is assigned by {protocol!r}, an assignor of other clients, which kiel-groups cannot run;"
        f" 'kiel-groups plan {group} --allocator sticky' shows what one of these would do: {', '.join(ASSIGNORS)}"
    )
