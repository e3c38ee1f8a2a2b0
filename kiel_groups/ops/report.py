"""Report a group to operators: findings, facts, members, partitions; 80 columns wide, unless names are long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kiel_groups.group.znodes.history import HistoryEntry
from kiel_groups.group.znodes.layout import SPARK_GROUPS
from kiel_groups.group.znodes.round_contents import RoundMember
from kiel_groups.model import MemberId
from kiel_groups.ops.findings import Finding, short_name
from kiel_groups.ops.group_view import GroupView
from kiel_groups.ops.json_documents import outline_state
from kiel_groups.ops.partition_view import PartitionView
from kiel_groups.ops.program_view import ProgramView
from kiel_groups.ops.report_parts import (
    Column,
    Listed,
    Listing,
    ago,
    facts_grid,
    findings_grid,
    lag_text,
    listed_partitions,
    report_table,
    topic_parts,
    whole_lag,
)
from kiel_groups.wording import counted, some

__all__ = ["group_report", "groups_table"]


def groups_table(views: Iterable[GroupView], *, with_lag: bool) -> RenderableType:
    """
    Return a table with a row for each group of a cluster; ``with_lag`` requires views with offsets.

    If a group is not one of consumers, a last column has the types of such groups. On a narrow terminal, columns that
    are empty are left out.
    """
    shown = list(views)
    columns = [("group", [view.group for view in shown])]
    columns.append(("members", ["?" if view.closed and not view.size else str(view.size) for view in shown]))
    columns.append(("foreign", [str(len(view.foreign_members) or "") for view in shown]))
    columns.append(("generation", [_generation(view) for view in shown]))
    columns.append(("state", [outline_state(view) for view in shown]))
    if with_lag:
        columns.append(("lag", [_group_lag(view) for view in shown]))
    if any(view.programs is not None for view in shown):
        columns.append(("type", [view.protocol_type if view.programs is not None else "" for view in shown]))
    return Listing(columns)


def _generation(view: GroupView) -> str:
    if view.generation is None:
        return "?" if view.closed else ""
    return str(view.generation)


def group_report(
    view: GroupView,
    findings: Sequence[Finding],
    *,
    place: str,
    lag_problem: str,
    now_ms: int,
    clock: str = "",
    listed: Listed = "all",
    generations: int = 0,
) -> list[RenderableType]:
    """
    Return the report on one group.

    Args:
        view: The group.
        findings: The group's problems.
        place: ZooKeeper's hosts, with the chroot.
        lag_problem: The reason why some log ends are unknown; "" if all are known.
        now_ms: Epoch milliseconds, for ages.
        clock: The time of day to show, for one of several successive reports.
        listed: Which partitions to list; ``wrong`` lists partitions that have a finding or an unknown lag.
        generations: How many of the last generations to show.
    """
    at = f", {clock}" if clock else ""
    parts: list[RenderableType] = [Text(f"group {view.group} in ZooKeeper at {place}{at}", style="bold")]
    if findings:
        parts += ["", findings_grid(findings)]
    parts += ["", facts_grid(_facts(view, lag_problem, now_ms))]
    if generations and view.programs is None:
        parts += [Text("\nhistory, newest first", style="bold"), _history(view.history[:generations], now_ms)]
    if view.members:
        parts += [Text("\nmembers, by the session that their ids end in", style="bold"), _members(view, now_ms)]
    elif view.programs is not None and view.programs.members:
        parts.append(Text("\nmembers, by the session that their ids end in", style="bold"))
        parts.append(_program_members(view.programs.members, view.leader, now_ms))
    elif view.partitions:
        parts.append("")
    shown = listed_partitions(view.partitions, findings, listed)
    commit: Column = ("commit", lambda each: ago(each.committed_ms, now_ms))
    owner: Column = ("owner", lambda each: _owner(each, view.member_ids))
    parts += topic_parts(view.partitions, shown, commit, owner)
    return parts


def _facts(view: GroupView, lag_problem: str, now_ms: int) -> Iterator[tuple[str, str]]:
    if view.programs is not None:
        yield from _program_facts(view, view.programs, lag_problem, now_ms)
        return
    group_state, settings = view.group_state, view.settings
    seen = "readable partitions" if view.closed else "partitions"
    yield "state", f"{view.state}: {view.owned:,} of {len(view.partitions):,} {seen} are owned"
    if view.state == "memberless":
        yield "offsets", f"{_committer(view.group)}, which is not a member; a member that joins would take over from it"
    yield "leader", _leader(view, view.member_ids)
    if group_state is not None:
        yield "generation", f"{group_state.generation}, {group_state.state}, {ago(group_state.created_at_ms, now_ms)}"
        yield "cause", group_state.cause
        yield "allocator", group_state.allocator
    if settings is not None:
        yield "settings", f"store {settings.store}, mode {settings.mode}, offset reset {settings.auto_offset_reset}"
    if view.foreign_members:
        yield "foreign", some(member.name for member in view.foreign_members)
    if follows := ", ".join(_follows(view)):
        yield "config", follows
    if view.weights:
        weighed = counted(view.weights, "partition", "partitions")
        yield "weights", f"of {weighed}; 'kiel-groups weights show {view.group}' shows them"
    yield "lag", whole_lag(_group_lag(view), view.partitions, lag_problem)


def _program_facts(view: GroupView, programs: ProgramView, lag_problem: str, now_ms: int) -> Iterator[tuple[str, str]]:
    newest = programs.round
    yield "state", f"{view.state}: {counted(programs.size, 'member', 'members')}"
    if programs.are_workers:
        yield "type", f"workers, which share connectors; 'kiel-groups workers describe {view.group}' shows them"
    else:
        yield "type", f"{programs.protocol_type or '?'}: programs, which share other work than partitions"
    if programs.state == "by brokers":
        yield "", f"'kiel-groups describe {view.group} --coordination brokers' shows their membership"
    else:
        yield "leader", _leader(view, {member.member_id for member in programs.members})
    if newest is not None:
        yield "generation", f"{newest.generation}, {newest.state}, {ago(newest.created_at_ms, now_ms)}"
        yield "cause", newest.cause
        yield "protocol", newest.protocol or "not chosen yet"
    if view.foreign_members:
        yield "foreign", some(member.name for member in view.foreign_members)
    if view.partitions:
        yield "lag", whole_lag(_group_lag(view), view.partitions, lag_problem)


def _committer(group: str) -> str:
    """
    Describe the program that commits the offsets.

    A Spark query or an archive that is given no group uses a group with a known prefix.
    """
    other = "" if group.startswith(SPARK_GROUPS) else "another program, such as "
    return f"committed by {other}a Spark query or an archive"


def _follows(view: GroupView) -> Iterator[str]:
    """Yield the settings that operators have changed in the group's config; they override the leader's options."""
    dynamic_config = view.dynamic_config
    if dynamic_config is None:
        yield "refused, see above"
        return
    if dynamic_config.allocator is not None:
        yield f"allocator {dynamic_config.allocator}"
    for name, milliseconds in dynamic_config.debounce:
        yield f"debounce {name} {milliseconds:,}"
    if dynamic_config.static_grace_ms is not None:
        yield f"static_grace_ms {dynamic_config.static_grace_ms:,}"
    unknown = dynamic_config.unknown_drained(view.slots)
    for slot in sorted(dynamic_config.drained):
        if slot in unknown:
            yield f"drained {slot} (not a member)"
        elif slot in view.slots:
            yield f"drained {slot}"


def _group_lag(view: GroupView) -> str:
    if view.programs is not None and not view.partitions:
        return ""
    return "?" if view.known_lag is None else lag_text(view.partitions)


def _leader(view: GroupView, members: Collection[MemberId]) -> str:
    if view.leader is None:
        return "?" if view.closed else "none"
    spare = sum(candidate not in members for candidate in view.candidates[1:])
    aside = "" if view.leader in members else ", an allocator process"
    spares = counted(spare, "spare allocator process", "spare allocator processes")
    return f"{view.leader}{aside}; {spares}" if spare else view.leader + aside


def _history(entries: Iterable[HistoryEntry], now_ms: int) -> Table:
    table = report_table()
    table.add_column("generation", justify="right", overflow="fold")
    table.add_column("planned", overflow="fold")
    for column in ("moved", "members", "took"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("cause", overflow="fold")
    for entry in entries:
        numbers = (f"{entry.moved:,}", f"{entry.members:,}", f"{entry.took_ms:,} ms")
        table.add_row(str(entry.generation), ago(entry.created_at_ms, now_ms), *numbers, entry.cause)
    return table


def _members(view: GroupView, now_ms: int) -> Table:
    table = report_table()
    table.add_column("member", overflow="fold")
    table.add_column("host", overflow="fold", max_width=20)
    table.add_column("pid", justify="right", overflow="fold")
    table.add_column("joined", overflow="fold")
    table.add_column("partitions", justify="right", overflow="fold")
    table.add_column("lag", justify="right", overflow="fold")
    for member in view.members:
        info = member.info
        leads = " leads" if member.leads else ""
        table.add_row(
            f"{short_name(info.member_id)}{leads}" + (f", {info.instance_id}" if info.instance_id else ""),
            info.host,
            str(info.pid),
            ago(info.started_at_ms, now_ms),
            member.share,
            lag_text(member.owned),
        )
    return table


def _program_members(members: Iterable[RoundMember], leader: MemberId | None, now_ms: int) -> Table:
    table = report_table()
    table.add_column("member", overflow="fold")
    table.add_column("host", overflow="fold", max_width=20)
    table.add_column("pid", justify="right", overflow="fold")
    table.add_column("joined", overflow="fold")
    table.add_column("protocols", overflow="fold")
    for member in members:
        table.add_row(
            short_name(member.member_id) + (" leads" if member.member_id == leader else ""),
            member.host,
            str(member.pid),
            ago(member.started_at_ms, now_ms),
            ", ".join(each.name for each in member.offer.protocols),
        )
    return table


def _owner(partition: PartitionView, members: frozenset[MemberId]) -> str:
    owner = "none" if partition.owner is None else partition.owner
    if partition.owner in members:
        owner = short_name(owner)
    if partition.target in (None, partition.owner):
        return owner
    return f"{owner} → {short_name(partition.target)}"
