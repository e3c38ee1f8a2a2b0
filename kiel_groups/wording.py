"""How log lines, errors and reports name many things and count them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["counted", "some"]


def some(things: Iterable[object], most: int = 4) -> str:
    """The first few of them (``most``), and how many more there are: ``a, b and 3 more``."""
    listed = [str(thing) for thing in things]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def counted(things: Iterable[object] | int, one: str, many: str = "") -> str:
    """``1 partition``, ``2 partitions``: of an int, or of as many as there are things; ``many`` is ``one`` and an s."""
    count = things if isinstance(things, int) else sum(1 for _ in things)
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
