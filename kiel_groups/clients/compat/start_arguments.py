"""The ``start`` argument of ``SingleConsumer.consume``: kiel's four forms, converted to a time that brokers accept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ConfigError

__all__ = ["StartAt", "offset_time"]

#: BEGINNING, END, a datetime (in UTC if it has no time zone), or a timedelta into the past.
StartAt: TypeAlias = int | datetime | timedelta

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)


def offset_time(start: StartAt | None, now: datetime) -> int:
    """
    Return the time to ask brokers for: -2 (BEGINNING), -1 (END), or milliseconds since the epoch.

    Args:
        start: None means END. A datetime before 1970 means the epoch.
        now: An aware datetime, from which a timedelta counts back.

    Raises:
        ConfigError: The start has none of these forms.
    """
    if start is None:
        return END
    if isinstance(start, timedelta):
        # Compute with numbers: the resulting time may lie outside the years that a datetime can represent.
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
