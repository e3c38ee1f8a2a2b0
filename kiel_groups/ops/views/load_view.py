"""Report the weights of a group's partitions, and the load that the newest plan assigns to each member."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kiel_groups.allocators import ALLOCATORS, loads_of, weighted
from kiel_groups.group.znodes.contents import Snapshot
from kiel_groups.group.znodes.group_settings import Weights, printed_weights
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import Allocation, MemberId, TopicPartition
from kiel_groups.ops.views.checks import short_name
from kiel_groups.ops.views.group_reading import GroupReading
from kiel_groups.ops.views.report import Column, report_table, topic_tables
from kiel_groups.wording import counted


@dataclass(frozen=True, slots=True)
class PlanView:
    """
    The newest plan of a group: its allocator ("" before the first plan) and its assignments.

    Members are named by the session id at the end of their member ids, and static members by their instance ids.
    """

    group: str
    allocator: str
    allocation: Allocation

    @property
    def hint(self) -> str:
        """A text on why weights have, or may have, no effect, or "" if the allocator uses them or no plan exists."""
        known = ALLOCATORS.get(self.allocator)
        if not self.allocator or known is weighted:
            return ""
        use = "uses weights only if it was written to do so" if known is None else "does not use weights"
        return (
            f"group {self.group} is allocated by {self.allocator}, which {use}; to make weights effective, start the"
            f' members with the allocator "weighted", or add "allocator":"weighted" to {GroupLayout(self.group).config}'
        )


def view_plan(group: str, znodes: Snapshot, members: Collection[MemberId]) -> PlanView:
    """
    Return the newest plan of a group. Unreadable assignments and empty assignments of departed members are left out.

    Args:
        group: The name of the group.
        znodes: The group state and the assignments.
        members: The ids of the live members.
    """
    reading = GroupReading(GroupLayout(group), znodes)
    state = reading.group_state()
    allocation = {
        short_name(slot) if slot == found.member_id else slot: found.partitions
        for slot, found in reading.assignments().items()
        if found is not None and (found.partitions or found.member_id in members)
    }
    return PlanView(group, "" if state is None else state.allocator, allocation)


def weights_report(weights: Weights, plan: PlanView) -> Iterator[RenderableType]:
    """Yield the numbers of partitions with and without a weight, a table of members' loads, and tables of weights."""
    owners = {partition: slot for slot, owned in plan.allocation.items() for partition in owned}
    yield Text(f"group {plan.group}: {counted(weights, 'partition has a weight', 'partitions have weights')}")
    loads = loads_of(owners, weights)
    if others := [partition for partition in owners if partition not in weights]:
        default = _number(loads[others[0]])
        reason = "the median of the others" if len(others) < len(owners) else "because none has a weight"
        yield Text(
            f"  {counted(others, 'partition without one counts', 'partitions without one count')} {default}, {reason}"
        )
    if owners:
        yield Text("\nmembers, and the load that the plan assigns to each", style="bold")
        yield _members(plan.allocation, loads)
    columns = (
        Column[TopicPartition]("load", lambda partition: _number(weights[partition]), is_right=True),
        Column[TopicPartition]("member", lambda partition: owners.get(partition, "")),
    )
    yield from topic_tables(weights, columns)


def _members(allocation: Allocation, loads: Mapping[TopicPartition, float]) -> Table:
    whole = sum(loads.values())
    load_of = {slot: sum(loads[partition] for partition in owned) for slot, owned in allocation.items()}
    columns = (
        Column[str]("member", lambda slot: slot),
        Column[str]("partitions", lambda slot: f"{len(allocation[slot]):,}", is_right=True),
        Column[str]("load", lambda slot: _number(load_of[slot]), is_right=True),
        Column[str]("share", lambda slot: f"{100 * load_of[slot] / whole:.1f} %" if whole else "", is_right=True),
    )
    return report_table(columns, sorted(allocation))


def _number(load: float) -> str:
    """Format a load with the digits that the znode keeps."""
    return f"{next(iter(printed_weights({TopicPartition('t', 0): load}).values())):,}"
