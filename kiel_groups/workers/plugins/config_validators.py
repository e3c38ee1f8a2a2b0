"""Define what a setting's value may be, beyond its type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kiel_groups.errors import ConfigError

__all__ = ["Validator", "at_least", "between", "each", "non_empty", "one_of"]


@dataclass(frozen=True, slots=True)
class Validator:
    """
    A test of a typed value, such as ``Validator(str.islower, "lower-case letters")``.

    Args:
        accepts: Returns whether a value is legal.
        expected: The legal values in words; errors say "expected" and these.
        choices: All legal values as texts, if they are few. Users see them as recommended values.

    Raises:
        ConfigError: ``expected`` is no text, or ``choices`` are no texts.
    """

    accepts: Callable[[Any], bool]
    expected: str
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        expected: object = self.expected
        if not isinstance(expected, str):
            raise ConfigError(
                f"the legal values of a validator are of the type {type(expected).__name__}; expected a str"
            )
        if not (isinstance(self.choices, list | tuple) and all(isinstance(choice, str) for choice in self.choices)):
            raise ConfigError(f"the choices of a validator are {self.choices!r}; expected a tuple of str")


def at_least(least: float) -> Validator:
    """Accept numbers from ``least`` on."""
    return Validator(lambda value: bool(value >= least), f"at least {least}")


def between(least: float, most: float) -> Validator:
    """Accept numbers from ``least`` to ``most``, both included."""
    return Validator(lambda value: bool(least <= value <= most), f"a number from {least} to {most}")


def one_of(*choices: str) -> Validator:
    """Accept these texts only."""
    return Validator(lambda value: value in choices, f"one of {', '.join(map(str, choices))}", choices)


def non_empty() -> Validator:
    """Accept texts, secrets and lists that are not empty."""
    return Validator(lambda value: bool(getattr(value, "value", value)), "a value that is not empty")


def each(validator: Validator) -> Validator:
    """Accept lists whose entries another validator accepts."""
    return Validator(lambda values: all(map(validator.accepts, values)), f"entries that are each {validator.expected}")
