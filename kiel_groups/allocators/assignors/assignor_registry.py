"""The choice of assignors: by names, by functions, or by objects of the application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from kiel_groups.allocators.adapter import Allocator
from kiel_groups.allocators.assignors.allocator_assignor import AllocatorAssignor
from kiel_groups.allocators.assignors.consumer_assignors import Assignor
from kiel_groups.allocators.assignors.java_assignors import range_assignor, roundrobin_assignor
from kiel_groups.allocators.registry import ALLOCATORS, look_up
from kiel_groups.errors import ConfigError

__all__ = ["ASSIGNORS", "AssignorChoice", "assignors_of"]

AssignorChoice: TypeAlias = str | Assignor | Allocator

#: The included assignors by the names of settings. The name ``range`` means Java's assignor, which other members have.
ASSIGNORS: Mapping[str, Assignor] = {
    **{name: AllocatorAssignor(allocator) for name, allocator in ALLOCATORS.items()},
    "range": range_assignor,
    "roundrobin": roundrobin_assignor,
}


def assignors_of(
    given: AssignorChoice | Sequence[AssignorChoice] | None, setting: str = "partition_allocator"
) -> tuple[Assignor, ...]:
    """
    Return the assignors that a member offers to its group, in the order of preference.

    Args:
        given: A name of ``ASSIGNORS``, an ``Assignor``, an allocator function, or a sequence of these. None means
            ``range`` and then ``roundrobin``, as in kafka-python; a member that offers others offers only these.
        setting: The setting to name in an error.

    Raises:
        ConfigError: ``given`` is none of these, the sequence is empty, or two assignors have the same name.
    """
    if given is None:
        return range_assignor, roundrobin_assignor
    choices = given if isinstance(given, (list, tuple)) else (given,)
    if not choices:
        raise ConfigError(f"{setting}: none given; expected one or more of {', '.join(ASSIGNORS)}, or functions")
    assignors = tuple(_assignor_of(choice, setting) for choice in choices)
    names = [assignor.name for assignor in assignors]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{setting}: the assignor {twice[0]!r} is given twice; the members of a group agree on a name"
        )
    return assignors


def _assignor_of(given: object, setting: str) -> Assignor:
    if isinstance(given, str):
        return look_up(given, ASSIGNORS, "assignor", setting)
    if not isinstance(given, type):
        if isinstance(given, Assignor):
            return _named(given, setting)
        if callable(given):
            return AllocatorAssignor(given, setting)
    expected = f"a function, an object with name, metadata and assign, or one of {', '.join(ASSIGNORS)}"
    raise ConfigError(f"{setting}: {given!r} given; expected {expected}")


def _named(assignor: Assignor, setting: str) -> Assignor:
    name: object = assignor.name
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{setting}: an assignor with the name {name!r} given; expected a text")
    return assignor
