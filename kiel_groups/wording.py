"""Format lists and counts for log lines, errors and reports."""

from __future__ import annotations

from collections.abc import Iterable


def some(things: Iterable[object], most: int = 4) -> str:
    """List at most ``most`` things, and count the rest: ``a, b and 3 more``."""
    listed = [str(thing) for thing in things]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def counted(things: Iterable[object] | int, one: str, many: str = "") -> str:
    """Return ``1 partition`` or ``2 partitions`` for an int or an iterable; ``many`` defaults to ``one`` plus s."""
    count = things if isinstance(things, int) else sum(1 for _ in things)
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
