"""A group that brokers coordinate, as JSON for programs: field names are stable, and unknown values are null."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kiel_groups.ops.coordinated.coordinated_view import CoordinatedGroupView, CoordinatedMemberView
from kiel_groups.ops.findings import Finding
from kiel_groups.ops.json_documents import finding_document, partition_lag, unknown_lags

__all__ = ["coordinated_document", "coordinated_outline"]


def coordinated_outline(view: CoordinatedGroupView, *, with_lag: bool) -> dict[str, Any]:
    """Return the entry of a group in the list of groups; the lag is null unless ``with_lag``."""
    return {
        "group": view.group,
        "type": view.protocol_type,
        "members": len(view.members),
        "state": view.state,
        "coordinator": view.coordinator,
        "lag": view.known_lag if with_lag else None,
    }


def coordinated_document(
    view: CoordinatedGroupView, findings: Iterable[Finding], *, lag_problem: str
) -> dict[str, Any]:
    """
    Return the document of one group.

    Args:
        view: The group.
        findings: The group's problems.
        lag_problem: The reason why some offsets or log ends are unknown; "" if all are known.
    """
    return {
        "group": view.group,
        "state": view.state,
        "broker_state": view.broker_state,
        "type": view.protocol_type,
        "strategy": view.protocol or None,
        "coordinator": view.coordinator,
        "lag": view.known_lag,
        "partitions_of_unknown_lag": unknown_lags(view.partitions),
        "lag_problem": lag_problem or None,
        "wrong": [finding_document(finding) for finding in findings],
        "members": [_member(member) for member in view.members],
        "partitions": [{**partition_lag(each), "owner": each.owner} for each in view.partitions],
    }


def _member(member: CoordinatedMemberView) -> dict[str, Any]:
    is_known = member.subscription is not None
    return {
        "id": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "subscription": list(member.subscription) if member.subscription is not None else None,
        "owned": [str(each.topic_partition) for each in member.owned] if is_known else None,
        "lag": member.lag if is_known else None,
        "partitions_of_unknown_lag": unknown_lags(member.owned) if is_known else None,
    }
