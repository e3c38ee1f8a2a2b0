"""Create the JSON documents about groups. The names of fields are stable, and unknown values are null."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kiel_groups.group.znodes.contents import named_fields
from kiel_groups.group.znodes.group_settings import HistoryEntry
from kiel_groups.group.znodes.round_contents import RoundState
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import Finding
from kiel_groups.ops.views.deletion import GroupDeletion
from kiel_groups.ops.views.group_view import CoordinatorView, GroupView, MemberView, PartitionView, lag_of
from kiel_groups.ops.views.lag_trend import Trend, worst_verdict


def outline_document(view: GroupView, *, with_lag: bool) -> dict[str, Any]:
    """Return the document of a group in the list of groups. Without ``with_lag``, the lag is null."""
    if view.coordinator is not None:
        return {
            "group": view.group,
            "type": view.protocol_type,
            "members": len(view.members),
            "state": view.state,
            "coordinator": view.coordinator.broker,
            "lag": view.known_lag if with_lag else None,
        }
    return {
        "group": view.group,
        "type": view.protocol_type,
        "members": None if view.closed and not view.size else view.size,
        "foreign_members": len(view.foreign_members),
        "leader": view.leader,
        "generation": view.generation,
        "state": view.outline,
        "lag": view.known_lag if with_lag else None,
        "closed": list(view.closed),
    }


def group_document(
    view: GroupView, findings: Iterable[Finding], *, lag_problem: str, generations: int = 0
) -> dict[str, Any]:
    """
    Return the document of one group. A group that brokers coordinate has other fields than a group in ZooKeeper.

    Args:
        view: The group.
        findings: The group's problems.
        lag_problem: The reason why some log ends are unknown; "" if all are known.
        generations: How many of the last generations to include, if the group is in ZooKeeper.
    """
    lag = {
        "lag": view.known_lag,
        "partitions_of_unknown_lag": _unknown_lags(view.partitions),
        "lag_problem": lag_problem or None,
    }
    wrong = [finding_document(finding) for finding in findings]
    if view.coordinator is not None:
        return _coordinated(view, view.coordinator, lag, wrong)
    group_state = view.group_state
    return {
        "group": view.group,
        "type": view.protocol_type,
        "state": view.state,
        "leader": view.leader,
        "candidates": list(view.candidates),
        "allocation": None
        if group_state is None
        else {
            "generation": group_state.generation,
            "state": group_state.state,
            "leader": group_state.leader,
            "allocator": group_state.allocator,
            "cause": group_state.cause,
            "fallback": group_state.fallback,
            "unassigned": dict(group_state.unassigned),
            "created_at": group_state.created_at_ms,
        },
        "round": _round(view.round),
        "settings": None if view.settings is None else named_fields(view.settings),
        "follows": _dynamic_config(view),
        "weights": view.weights,
        "brokers": view.brokers,
        **lag,
        "closed": list(view.closed),
        "wrong": wrong,
        "members": [(_member if view.is_of_consumers else _program)(member) for member in view.members],
        "foreign_members": [
            {"name": each.name, "path": each.path, "topics": each.topics, "unevaluated": each.unevaluated or None}
            for each in view.foreign_members
        ],
        "partitions": [_partition(partition) for partition in view.partitions],
        "history": [_generation(entry) for entry in view.history[:generations]],
    }


def _coordinated(
    view: GroupView, coordinator: CoordinatorView, lag: dict[str, Any], wrong: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "group": view.group,
        "state": view.state,
        "broker_state": coordinator.state,
        "type": view.protocol_type,
        "strategy": coordinator.strategy or None,
        "coordinator": coordinator.broker,
        **lag,
        "wrong": wrong,
        "members": [_coordinated_member(member) for member in view.members],
        "partitions": [{**_partition_lag(each), "owner": each.owner} for each in view.partitions],
    }


def _generation(entry: HistoryEntry) -> dict[str, Any]:
    return named_fields(entry, created_at_ms="created_at")


def history_document(group: str, entries: Iterable[HistoryEntry]) -> dict[str, Any]:
    """Return the document of a group's plans, in the order given."""
    return {"group": group, "history": [_generation(entry) for entry in entries]}


def _dynamic_config(view: GroupView) -> dict[str, Any] | None:
    if view.dynamic_config is None:
        return None
    return {
        "allocator": view.dynamic_config.allocator,
        "debounce": dict(view.dynamic_config.debounce),
        "static_grace_ms": view.dynamic_config.static_grace_ms,
        "broker_racks": {str(broker): rack for broker, rack in view.dynamic_config.broker_racks},
        "drained": sorted(view.dynamic_config.drained),
        "drained_strangers": list(view.dynamic_config.unknown_drained(view.slots)),
    }


def lag_document(
    group: str,
    partitions: Collection[PartitionView],
    lag_problem: str,
    trends: Mapping[TopicPartition, Trend] | None = None,
) -> dict[str, Any]:
    """Return the document of a group's lag, with trends if they are given. The arguments are as for ``lag_report``."""
    return {
        "group": group,
        "lag": lag_of(partitions),
        "partitions_of_unknown_lag": _unknown_lags(partitions),
        "lag_problem": lag_problem or None,
        **({} if trends is None else {"trend": worst_verdict(trends)}),
        "partitions": [
            {**_partition_lag(each), **({} if trends is None else _trend(trends.get(each.topic_partition)))}
            for each in partitions
        ],
    }


def lags_document(
    views: Iterable[GroupView], lag_problem: str, trends: Mapping[str, Mapping[TopicPartition, Trend]] | None = None
) -> dict[str, Any]:
    """Return the document of the lags of several groups and their sum. The arguments are as for ``lags_report``."""
    shown = list(views)
    return {
        "lag": lag_of([each for view in shown for each in view.partitions]),
        "lag_problem": lag_problem or None,
        "groups": [
            lag_document(view.group, view.partitions, lag_problem, None if trends is None else trends[view.group])
            for view in shown
        ],
    }


def _trend(trend: Trend | None) -> dict[str, Any]:
    return {"trend": trend and trend.verdict, "trend_reason": (trend and trend.why) or None}


def _partition_lag(partition: PartitionView) -> dict[str, Any]:
    """Return the fields of a partition's lag, and of the offsets from which the lag is computed."""
    topic, number = partition.topic_partition
    return {
        "topic": topic,
        "partition": number,
        "committed": partition.committed,
        "log_end": partition.log_end,
        "lag": partition.lag,
        "stores": dict(partition.stores) or None,
    }


def _unknown_lags(partitions: Iterable[PartitionView]) -> int:
    """Return the number of partitions whose lag is unknown."""
    return sum(partition.lag is None for partition in partitions)


def finding_document(finding: Finding) -> dict[str, Any]:
    """Return the document of a problem of a group or of its cluster."""
    partitions = [str(partition) for partition in finding.partitions]
    return {**named_fields(finding), "partitions": partitions, "members": list(finding.members)}


def _member(member: MemberView) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "instance_id": member.instance_id,
        **_process(member),
        "capacity": member.settings.get("capacity", 1.0),
        "rack": member.settings.get("rack"),
        "subscription": list(member.subscription or ()),
        "pattern": member.pattern,
        "target": [str(partition) for partition in sorted(member.target or ())],
        "owned": [str(partition.topic_partition) for partition in member.owned],
        "lag": member.lag,
        "partitions_of_unknown_lag": _unknown_lags(member.owned),
    }


def _process(member: MemberView) -> dict[str, Any]:
    """Return the fields that members of all types in ZooKeeper have."""
    return {
        "leads": member.leads,
        "host": member.host,
        "pid": member.pid,
        "client": member.client,
        "started_at": member.started_at_ms,
        "session_timeout_ms": member.session_timeout_ms,
    }


def _program(member: MemberView) -> dict[str, Any]:
    protocols = list(member.protocols)
    return {"id": member.member_id, **_process(member), "joined": member.joined, "protocols": protocols}


def _coordinated_member(member: MemberView) -> dict[str, Any]:
    is_known = member.subscription is not None
    return {
        "id": member.member_id,
        "client": member.client,
        "host": member.host,
        "subscription": list(member.subscription) if member.subscription is not None else None,
        "owned": [str(each.topic_partition) for each in member.owned] if is_known else None,
        "lag": member.lag if is_known else None,
        "partitions_of_unknown_lag": _unknown_lags(member.owned) if is_known else None,
    }


def _round(newest: RoundState | None) -> dict[str, Any] | None:
    """Return the document of the newest rebalance of a group of programs, or None if there is no rebalance."""
    if newest is None:
        return None
    return {
        "generation": newest.generation,
        "state": newest.state,
        "leader": newest.leader,
        "protocol": newest.protocol,
        "refused": dict(newest.refused),
        "cause": newest.cause,
        "created_at": newest.created_at_ms,
    }


def _partition(partition: PartitionView) -> dict[str, Any]:
    return {
        **_partition_lag(partition),
        "committed_at": partition.committed_ms,
        "owner": partition.owner,
        "claimed_at": partition.claimed_ms,
        "target": partition.target,
    }


def deletion_document(lost: GroupDeletion, restore_file: str) -> dict[str, Any]:
    """Return the document of a group's deletion: its losses, and the content and the path of the restore file."""
    return {
        "group": lost.group,
        "type": lost.protocol_type,
        "loses": list(lost.losses),
        "notes": list(lost.notes),
        "offsets": {str(partition): offset for partition, offset in sorted(lost.offsets.items())},
        "znodes": sorted(lost.znodes),
        "committed_at": lost.committed_ms,
        "restore_file": restore_file or None,
    }
