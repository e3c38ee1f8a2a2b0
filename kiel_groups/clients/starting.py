"""Where ``SingleConsumer.consume`` starts: kiel's four ways to say it, as what brokers are asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ConfigError

__all__ = ["StartAt", "offset_time"]

#: BEGINNING, END, a moment (in UTC where it names no time zone), or how far back from now.
StartAt: TypeAlias = int | datetime | timedelta


def offset_time(start: StartAt | None, now: datetime) -> int:
    """
    The time to ask brokers for: -2, -1, or milliseconds since the epoch.

    Args:
        start: END where it is None. A moment before 1970 is the epoch.
        now: Aware; what a timedelta counts back from.

    Raises:
        ConfigError: It is none of these.
    """
    if start is None:
        return END
    if isinstance(start, timedelta):
        start = now - start
    if isinstance(start, datetime):
        moment = start if start.tzinfo is not None else start.replace(tzinfo=UTC)
        return max(0, (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))
    if type(start) is int and start in (BEGINNING, END):
        return start
    raise ConfigError(
        f"start: {start!r} given; expected BEGINNING (-2), END (-1), a datetime (UTC), or a timedelta into the past"
    )
