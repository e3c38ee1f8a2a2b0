"""Report a group that brokers coordinate: findings, facts, members, partitions; 80 columns, unless names are long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kiel_groups.model import CONNECT_TYPE
from kiel_groups.ops.coordinated.coordinated_view import CoordinatedGroupView, CoordinatedMemberView
from kiel_groups.ops.findings import Finding, short_name
from kiel_groups.ops.report_parts import (
    Column,
    Listed,
    Listing,
    facts_grid,
    findings_grid,
    lag_text,
    listed_partitions,
    report_table,
    topic_parts,
    whole_lag,
)
from kiel_groups.wording import counted, some

__all__ = ["coordinated_groups_table", "coordinated_report"]

_MOST_TOPICS = 2


def coordinated_groups_table(views: Iterable[CoordinatedGroupView], *, with_lag: bool) -> RenderableType:
    """Return a table with a row for each group of a cluster; ``with_lag`` requires views with offsets."""
    shown = list(views)
    columns = [
        ("group", [view.group for view in shown]),
        ("type", [view.protocol_type for view in shown]),
        ("members", [str(len(view.members)) for view in shown]),
        ("state", [view.state for view in shown]),
        ("coordinator", [view.coordinator for view in shown]),
    ]
    return Listing([*columns, ("lag", [_group_lag(view) for view in shown])] if with_lag else columns)


def coordinated_report(
    view: CoordinatedGroupView,
    findings: Sequence[Finding],
    *,
    place: str,
    lag_problem: str,
    clock: str = "",
    listed: Listed = "all",
) -> list[RenderableType]:
    """
    Return the report on one group.

    Args:
        view: The group.
        findings: The group's problems.
        place: The addresses of brokers that the caller has given.
        lag_problem: The reason why some offsets or log ends are unknown; "" if all are known.
        clock: The time of day to show, for one of several successive reports.
        listed: Which partitions to list; ``wrong`` lists partitions that have a finding or an unknown lag.
    """
    at = f", {clock}" if clock else ""
    parts: list[RenderableType] = [Text(f"group {view.group} at brokers {place}{at}", style="bold")]
    if findings:
        parts += ["", findings_grid(findings)]
    parts += ["", facts_grid(_facts(view, lag_problem))]
    if view.members:
        parts += [Text("\nmembers, by the end of their ids", style="bold"), _members(view.members)]
    elif view.partitions:
        parts.append("")
    owner: Column = ("owner", lambda each: "none" if each.owner is None else short_name(each.owner))
    parts += topic_parts(view.partitions, listed_partitions(view.partitions, findings, listed), owner)
    return parts


def _facts(view: CoordinatedGroupView, lag_problem: str) -> Iterator[tuple[str, str]]:
    yield "state", "".join(_state(view))
    yield "coordinator", view.coordinator
    if not view.is_of_consumers:
        yield "type", f"{view.protocol_type}: not a group of consumers; its members own no partitions"
    if view.protocol_type == CONNECT_TYPE:
        yield "", f"'kiel-groups workers describe {view.group}' shows workers of kiel-groups, but not Java's"
    if view.protocol:
        yield "strategy", view.protocol
    if view.partitions or view.is_of_consumers:
        yield "lag", whole_lag(_group_lag(view), view.partitions, lag_problem)


def _state(view: CoordinatedGroupView) -> Iterator[str]:
    yield view.state
    if view.state == "memberless":
        yield ": no member has ever joined; another program commits its offsets"
    elif view.state == "rebalancing":
        yield f" ({view.broker_state}): brokers do not say which member owns what meanwhile"
    elif view.is_of_consumers:
        yield f": {view.owned:,} of {counted(view.partitions, 'partition is', 'partitions are')} assigned"


def _members(members: Iterable[CoordinatedMemberView]) -> Table:
    table = report_table()
    table.add_column("member", overflow="fold")
    table.add_column("client", overflow="fold", max_width=20)
    table.add_column("host", overflow="fold", max_width=20)
    table.add_column("topics", overflow="fold")
    table.add_column("partitions", justify="right", overflow="fold")
    table.add_column("lag", justify="right", overflow="fold")
    for member in members:
        is_known = member.subscription is not None
        table.add_row(
            short_name(member.member_id),
            member.client_id,
            member.host,
            some(member.subscription or (), _MOST_TOPICS) if is_known else "?",
            str(len(member.owned)) if is_known else "?",
            lag_text(member.owned) if is_known else "?",
        )
    return table


def _group_lag(view: CoordinatedGroupView) -> str:
    return lag_text(view.partitions)
