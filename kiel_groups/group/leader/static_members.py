"""
Static members that went: their places in the plan are kept for a while, so that a restart moves nothing.

When a place became empty stands in its slice (``away_since``), so that the next leader knows it, too.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from kiel_groups.group.znodes.contents import MemberAssignment
from kiel_groups.model import Slot

__all__ = ["absences", "next_end_ms"]


def absences(
    assignments: Mapping[Slot, MemberAssignment | None], present: Container[Slot], now_ms: int, grace_ms: int
) -> dict[Slot, MemberAssignment]:
    """
    The slices of static slots whose member went less than the grace ago, with the time of its going.

    Args:
        slices: As they are stored; None for those that cannot be read, which are nobody's.
        present: Slots that have a member.
        now_ms: Wall-clock time, milliseconds since 1970. Clocks of leaders may differ: a time that lies in the future
            counts as now.
        grace_ms: How long a place is kept.
    """
    away = {}
    for slot, stored in assignments.items():
        # The slot of a dynamic member has that member's name, which nobody bears again.
        if stored is None or slot in present or stored.member_id == slot:
            continue
        since_ms = now_ms if stored.away_since_ms is None else min(stored.away_since_ms, now_ms)
        if now_ms - since_ms < grace_ms:
            away[slot] = replace(stored, away_since_ms=since_ms)
    return away


def next_end_ms(away: Mapping[Slot, MemberAssignment], grace_ms: int) -> int | None:
    """When the first of these graces ends, in milliseconds since 1970; None where nobody is away."""
    return min(
        (stored.away_since_ms + grace_ms for stored in away.values() if stored.away_since_ms is not None), default=None
    )
