"""Answers of coordinators about a group of two members, and its report as text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from rich.console import Console

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.answers import view_coordinated_group
from kiel_groups.ops.views.checks import Finding
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.report import group_report, groups_table
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import DescribedGroup, DescribedMember

__all__ = ["A", "B", "LOG_ENDS", "PARTITIONS", "group_view", "listing_text", "member", "report_text"]

A, B = "kiel-groups-0-aaaa", "kiel-groups-0-bbbb"

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
LOG_ENDS = dict.fromkeys(PARTITIONS, 12)
OFFSETS = dict.fromkeys(PARTITIONS, 10)


def member(
    member_id: str, *partitions: TopicPartition, topics: Sequence[str] = ("t",), metadata: bytes | None = None
) -> DescribedMember:
    """Return a member with its subscription and assignment."""
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, number in partitions:
        assigned[topic] = (*assigned.get(topic, ()), number)
    subscription = ConsumerSubscription(tuple(topics)).encode() if metadata is None else metadata
    assignment = ConsumerAssignment(assigned).encode()
    return DescribedMember(member_id, "kiel-groups", "/10.0.0.7", subscription, assignment)


#: A healthy group.
MEMBERS = (member(A, *PARTITIONS[:2]), member(B, *PARTITIONS[2:]))


def group_view(
    members: Sequence[DescribedMember] = MEMBERS,
    *,
    state: str = "Stable",
    protocol_type: str = "consumer",
    protocol: str = "range",
    topics: Mapping[str, tuple[int, ...]] | None = None,
    offsets: Mapping[TopicPartition, int] = OFFSETS,
    log_ends: Mapping[TopicPartition, int] = LOG_ENDS,
) -> GroupView:
    """Return the view of a group, a healthy one by default."""
    described = DescribedGroup(NO_ERROR, "g", state, protocol_type, protocol, tuple(members))
    known = {"t": (0, 1, 2)} if topics is None else topics
    return view_coordinated_group(described, "broker 1 at 10.0.0.1:9092", known, offsets).with_log_ends(log_ends, 1)


def report_text(view: GroupView, findings: Sequence[Finding] = (), width: int = 80) -> str:
    """Return the report on a group as text."""
    return _text(width, *group_report(view, findings, place="at brokers b:9092", lag_problem="", now_ms=0))


def listing_text(views: Sequence[GroupView], width: int = 80) -> str:
    """Return the list of groups as text."""
    return _text(width, groups_table(views, with_lag=True))


def _text(width: int, *parts: object) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
