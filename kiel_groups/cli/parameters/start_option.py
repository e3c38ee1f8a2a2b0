"""Parse ``--from``: where reading starts."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TypeAlias

from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ConfigError

__all__ = ["Offset", "Position", "Tail", "parse_position"]

_WORDS = {"earliest": BEGINNING, "latest": END}
_DURATION = re.compile(r"(\d+)([smhd])")
_TAIL = re.compile(r"-0*([1-9][0-9]*)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Offset(int):
    """An offset to start at; a plain int is BEGINNING or END."""


class Tail(int):
    """A number of offsets, 1 or more: start this far before the end of each partition."""


#: BEGINNING, END, an offset, a number of offsets before the end, a time, or how long ago.
Position: TypeAlias = int | Offset | Tail | datetime | timedelta


def parse_position(text: str) -> Position:
    """
    Parse ``earliest``, ``latest``, an offset, a time in ISO 8601, or how long ago: ``90s``, ``10m``, ``2h``, ``7d``.

    ``-N`` starts N offsets before the end of each partition; N is 1 or more.

    Raises:
        ConfigError: The text is none of these.
    """
    if text in _WORDS:
        return _WORDS[text]
    try:
        if text.isascii() and text.isdigit():
            return Offset(text)
        if tail := _TAIL.fullmatch(text):
            return Tail(tail[1])
        if duration := _DURATION.fullmatch(text):
            return timedelta(**{_UNITS[duration[2]]: int(duration[1])})
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--from: {text!r:.80} given; expected 'earliest', 'latest', an offset, '-N' for the last N (1 or more) of"
            " each partition, a time such as '2026-11-21T17:45', or how long ago: '90s', '10m', '2h', '7d'"
        ) from None
