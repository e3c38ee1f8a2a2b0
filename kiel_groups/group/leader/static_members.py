"""
Absent static members: their slots keep their partitions for a grace period, so that a restart moves nothing.

The time at which a slot became empty is stored in its assignment (``away_since``), so that the next leader knows it.
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
    Return the assignments of static slots whose member left less than the grace period ago, with ``away_since_ms`` set.

    Args:
        assignments: The stored assignments, or None for an unreadable assignment, whose slot is not kept.
        present: Slots that have a member.
        now_ms: Wall-clock time, milliseconds since 1970. The clocks of two leaders may differ: a stored time in the
            future counts as now.
        grace_ms: How long a slot is kept, in milliseconds.
    """
    away = {}
    for slot, stored in assignments.items():
        # A dynamic member's slot is its member id, which no later member can have.
        if stored is None or slot in present or stored.member_id == slot:
            continue
        since_ms = now_ms if stored.away_since_ms is None else min(stored.away_since_ms, now_ms)
        if now_ms - since_ms < grace_ms:
            away[slot] = replace(stored, away_since_ms=since_ms)
    return away


def next_end_ms(away: Mapping[Slot, MemberAssignment], grace_ms: int) -> int | None:
    """Return when the first grace period ends, in milliseconds since 1970, or None if no member is away."""
    return min(
        (stored.away_since_ms + grace_ms for stored in away.values() if stored.away_since_ms is not None), default=None
    )
