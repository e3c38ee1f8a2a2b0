"""Parse settings, which are texts, into values of their declared types, and write values as texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.class_loader import full_name, load_class
from kiel_groups.workers.plugins.secret_texts import HIDDEN, without_secrets

__all__ = ["TYPES", "Password", "TypeName", "TypeRules", "given", "parsed"]

TypeName: TypeAlias = Literal["string", "int", "long", "double", "boolean", "list", "password", "class"]

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class Password:
    """
    A secret text. Logs, errors and ``str`` show ``[hidden]``.

    Args:
        value: The text itself.
    """

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


@dataclass(frozen=True, slots=True)
class TypeRules:
    """
    The rules of a type.

    ``expected`` describes its values to users, and ``python`` to authors of connectors. ``parse`` raises ``ValueError``
    for a text that is not of the type, or a ``ConfigError`` that says what is wrong. ``accepts`` returns whether a
    default is of the type.
    """

    expected: str
    python: str
    parse: Callable[[str], Any]
    accepts: Callable[[Any], bool]
    text: Callable[[Any], str] = str


def _whole_number(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # ``int`` alone would also take underscores.
        if not _WHOLE_NUMBER.fullmatch(text) or not _is_whole(bits)(int(text[:30])):
            raise ValueError(text)
        return int(text)

    return parse


def _is_whole(bits: int) -> Callable[[Any], bool]:
    limit = 1 << (bits - 1)
    return lambda value: type(value) is int and -limit <= value < limit


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(part, str) and "," not in part for part in value)


TYPES: Mapping[TypeName, TypeRules] = {
    "string": TypeRules("a text", "a str", str, lambda value: isinstance(value, str)),
    "int": TypeRules("a whole number of 32 bits", "an int of 32 bits", _whole_number(32), _is_whole(32)),
    "long": TypeRules("a whole number of 64 bits", "an int of 64 bits", _whole_number(64), _is_whole(64)),
    "double": TypeRules(
        "a number",
        "a finite float or int",
        _number,
        lambda value: type(value) in (int, float) and math.isfinite(value),
    ),
    "boolean": TypeRules(
        "'true' or 'false'",
        "a bool",
        _boolean,
        lambda value: isinstance(value, bool),
        lambda value: str(value).lower(),
    ),
    "list": TypeRules(
        "texts that are separated by commas", "a list or tuple of str without commas", _list, _is_list, ",".join
    ),
    "password": TypeRules(
        "a secret text", "a Password, such as Password('')", Password, lambda value: isinstance(value, Password)
    ),
    "class": TypeRules("the name of a class", "a class", load_class, lambda value: isinstance(value, type), full_name),
}


def parsed(type_name: TypeName, text: str) -> Any:
    """
    Return the value of a setting, without blanks around it.

    Raises:
        ConfigError: The text is not of the type. The error says what was given, except a secret, and what is expected.
    """
    text = text.strip()
    try:
        return TYPES[type_name].parse(text)
    except ConfigError:
        raise
    except (ValueError, KeyError):
        raise ConfigError(f"{given(type_name, text)} given; expected {TYPES[type_name].expected}") from None


def given(type_name: TypeName, text: str) -> str:
    """Return a setting as an error may show it: quoted, at most 100 characters, and with its secrets hidden."""
    if type_name == "password":
        return HIDDEN
    text = without_secrets(text)
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."
