"""The type of options whose number may be omitted, such as ``--watch [SECONDS]``."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["OptionalNumber"]


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
            what = f"{value!r} is not a number of {self.name} ≥ {self._least:g}"
            self.fail(f"{what}; GROUP goes before this option.", param, ctx)
