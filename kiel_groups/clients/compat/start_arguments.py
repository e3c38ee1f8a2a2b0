"""Where ``SingleConsumer.consume`` starts: kiel's four ways to say it, as what brokers are asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ConfigError

__all__ = ["StartAt", "offset_time"]

#: BEGINNING, END, a moment (in UTC where it names no time zone), or how far back from now.
StartAt: TypeAlias = int | datetime | timedelta

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)


def offset_time(start: StartAt | None, now: datetime) -> int:
    """
    The time to ask brokers for: -2, -1, or milliseconds since the epoch.

    Args:
        start: END where it is None. A moment before 1970 is the epoch, however far back.
        now: Aware; what a timedelta counts back from.

    Raises:
        ConfigError: It is none of these.
    """
    if start is None:
        return END
    if isinstance(start, timedelta):
        # In numbers: the moment itself may lie before the first year that a datetime can name, or after the last.
        return max(0, _milliseconds(now) - start // _MILLISECOND)
    if isinstance(start, datetime):
        return max(0, _milliseconds(start if start.tzinfo is not None else start.replace(tzinfo=UTC)))
    if type(start) is int and start in (BEGINNING, END):
        return start
    raise ConfigError(
        f"start: {start!r} given; expected BEGINNING (-2), END (-1), a datetime (UTC), or a timedelta into the past"
    )


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
