"""
Look up allocators by name, for options and for a group's ``config`` znode: built-in allocators and installed ones.

Another package offers an allocator as an entry point of the group ``kiel_groups.allocators``. The entry point is
imported when its name is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from kiel_groups.allocators.contiguous_ranges import range_allocator
from kiel_groups.allocators.group_spec import Allocator
from kiel_groups.allocators.rack_aware import rack_aware
from kiel_groups.allocators.round_robin import round_robin
from kiel_groups.allocators.sticky import sticky
from kiel_groups.allocators.weighted import lag_aware, weighted
from kiel_groups.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The group of entry points by which packages offer allocators.
ENTRY_POINTS = "kiel_groups.allocators"

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
    Return an allocator by its name.

    Args:
        name: One of ``ALLOCATORS``, or the name of an entry point of an installed package.
        setting: The setting to name in an error.

    Raises:
        ConfigError: There is no allocator of that name (the text lists the names), or the entry point cannot be
            imported or is not a function.
    """
    if name in ALLOCATORS:
        return ALLOCATORS[name]
    installed = installed_allocators()
    look_up(name, dict.fromkeys((*ALLOCATORS, *sorted(installed))), "allocator", setting)
    point = installed[name]
    place = f"{setting}: the allocator {name!r}, which an installed package offers as {point.value!r},"
    try:
        found: Allocator = point.load()
    except (Exception, SystemExit) as error:  # A module may do anything while it is imported.
        raise ConfigError(f"{place} cannot be imported: {error!r}") from error
    if isinstance(found, type) or not callable(found):
        kind = "a class" if isinstance(found, type) else f"a value of type {type(found).__name__}"
        raise ConfigError(f"{place} is {kind}; expected a function")
    return found


@cache
def installed_allocators() -> Mapping[str, EntryPoint]:
    """Return the entry points of installed packages by name. A built-in allocator of the same name takes precedence."""
    # Its import takes 15 ms, and most commands and consumers never look.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def look_up(name: str, table: Mapping[str, _V], kind: str, setting: str) -> _V:
    """
    Return the entry of a table for a name that a user gave.

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
    Return the allocator that a user chose by a function, by a name, or by None for round robin.

    Raises:
        ConfigError: ``given`` is not a function, or no allocator has this name, or the allocator cannot be imported.
    """
    if given is None:
        return round_robin
    if isinstance(given, str):
        return named_allocator(given, setting)
    if not callable(given):
        raise ConfigError(f"{setting}: {given!r} given; expected a function, or one of {', '.join(ALLOCATORS)}")
    return given
