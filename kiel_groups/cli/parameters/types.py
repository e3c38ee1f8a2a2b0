"""Types of options: numbers that may be omitted, and where reading starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile, zip_longest
from typing import Any, NoReturn, TypeAlias

import click

from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ConfigError

__all__ = [
    "NumbersCommand",
    "OptionalNumber",
    "Offset",
    "Position",
    "Tail",
    "parse_position",
]


class OptionalNumber(click.ParamType[float]):
    """
    An optional number. If GROUP follows the option, click takes it as the number; the error says so.

    Args:
        what: What is counted, in the plural.
        least: The least number.
        whole: Whether the number is an integer.
    """

    def __init__(self, what: str, *, least: float, whole: bool = False) -> None:
        self.name = what
        self._least = least
        self._number: click.ParamType[float] = click.IntRange(min=int(least)) if whole else click.FloatRange(min=least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail if it is none, or less than the least one."""
        try:
            return self._number.convert(value, param, ctx)
        except click.BadParameter:
            self.refuse(value, param, ctx)

    def refuse(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        """Raise BadParameter for a value that is no such number."""
        hint = "" if _is_number(value) else "; GROUP goes before this option"
        self.fail(f"{value!r} is not a number of {self.name} ≥ {self._least:g}{hint}.", param, ctx)


class NumbersCommand(click.Command):
    """
    A command with optional numbers, which refuses a negative one as a number.

    Click takes each word with a leading hyphen for the next option, even the value of ``--check=-1``.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command line. Raise BadParameter for an optional number that begins with a hyphen."""
        if not ctx.resilient_parsing:  # A completion shows no errors.
            for option in self.params:
                if isinstance(option.type, OptionalNumber) and (value := _hyphenated(option.opts, args)):
                    option.type.refuse(value, option, ctx)
        return super().parse_args(ctx, args)


def _hyphenated(names: Sequence[str], words: Sequence[str]) -> str:
    """Return the value of an option if it begins with a hyphen: a joined value, or the next word if it is a number."""
    before_arguments = takewhile(lambda pair: pair[0] != "--", zip_longest(words, words[1:], fillvalue=""))
    for word, following in before_arguments:
        name, is_joined, joined = word.partition("=")
        value = joined if is_joined else following
        if name in names and value.startswith("-") and (is_joined or _is_number(value)):
            return value
    return ""


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


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
