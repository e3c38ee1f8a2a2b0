"""The built-in allocators by name, for options and for a group's ``/config`` znode."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from kiel_groups.allocators.contiguous_ranges import range_allocator
from kiel_groups.allocators.group_spec import Allocator
from kiel_groups.allocators.rack_aware import rack_aware
from kiel_groups.allocators.round_robin import round_robin
from kiel_groups.allocators.sticky import sticky
from kiel_groups.allocators.weighted import lag_aware, weighted
from kiel_groups.errors import ConfigError

__all__ = ["ALLOCATORS", "allocator_of", "look_up", "named_allocator"]

ALLOCATORS: Mapping[str, Allocator] = {
    "round_robin": round_robin,
    "sticky": sticky,
    "weighted": weighted,
    "lag_aware": lag_aware,
    "rack_aware": rack_aware,
    "range": range_allocator,
}

_V = TypeVar("_V")


def named_allocator(name: str, setting: str) -> Allocator:
    """
    Return a built-in allocator by its name.

    Args:
        name: One of ``ALLOCATORS``.
        setting: The setting to name in an error.

    Raises:
        ConfigError: There is no allocator of that name; the text lists the names.
    """
    return look_up(name, ALLOCATORS, "allocator", setting)


def look_up(name: str, table: Mapping[str, _V], kind: str, setting: str) -> _V:
    """
    Return the entry of a name.

    Args:
        name: The name that a user gave.
        table: The entries by name.
        kind: What the entries are, for an error.
        setting: The setting to name in an error.

    Raises:
        ConfigError: There is no entry of that name; the text lists the names.
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"{setting}: there is no {kind} {name!r:.80}; expected one of {', '.join(table)}{meant}")


def allocator_of(given: Allocator | str | None, setting: str) -> Allocator:
    """
    Return the allocator that a user chose by a function, by the name of a built-in one, or by None for round robin.

    Raises:
        ConfigError: ``given`` is none of these.
    """
    if given is None:
        return round_robin
    if isinstance(given, str):
        return named_allocator(given, setting)
    if not callable(given):
        raise ConfigError(f"{setting}: {given!r} given; expected a function, or one of {', '.join(ALLOCATORS)}")
    return given
