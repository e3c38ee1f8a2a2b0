"""
Settings of a group that operators may change while it runs: fields of its ``config`` znode that the leader follows.

The same znode has the settings that all members must agree on (see ``contents.GroupSettings``). The dynamic fields take
precedence over the settings that the leader's process was started with.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from kiel_groups.allocators import named_allocator
from kiel_groups.config import DebounceConfig, check_name
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.contents import GroupSettings, parse_object
from kiel_groups.model import Slot

__all__ = ["DynamicConfig"]

_DURATIONS = tuple(field.name for field in fields(DebounceConfig))
#: The other fields of the ``config`` znode: its version, and the settings that all members agree on.
_AGREED = ("version", *(field.name for field in fields(GroupSettings)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicConfig:
    """
    The dynamic settings of a group. If a field is None or empty, the leader's own setting applies.

    ``allocator`` is one of ``allocators.ALLOCATORS``. ``debounce`` has fields of ``DebounceConfig``, in milliseconds.
    ``static_grace_ms`` is how long the slot of an absent static member is kept. Slots in ``drained`` get no partitions.
    ``unknown`` has the field names that this version does not know. A later version may know them, so they are reported
    and not refused.
    """

    allocator: str | None = None
    debounce: tuple[tuple[str, int], ...] = ()
    static_grace_ms: int | None = None
    drained: frozenset[Slot] = frozenset()
    unknown: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: bytes, path: str) -> DynamicConfig:
        """
        Read a group's ``config`` znode.

        Raises:
            ProtocolError: The data is no JSON object, or a field is invalid. The text names the field and what was
                expected.
        """
        found = parse_object(data, path)
        try:
            return cls(
                allocator=_allocator(found.get("allocator")),
                debounce=_debounce(found.get("debounce")),
                static_grace_ms=_milliseconds(found.get("static_grace_ms"), "static_grace_ms"),
                drained=_drained(found.get("drained")),
                unknown=tuple(sorted(found.keys() - {*_AGREED, *_FIELDS})),
            )
        except ConfigError as error:
            raise ProtocolError(f"{path}: {error}") from error

    def debounced(self, own: DebounceConfig) -> DebounceConfig:
        """Return the leader's own debounce with the fields that operators have set for the group."""
        return replace(own, **dict(self.debounce))

    def unknown_field_hints(self) -> Iterator[str]:
        """Yield a text for each unknown field, with the known field that was probably meant, if any."""
        for name in self.unknown:
            near = get_close_matches(name[:80], _FIELDS, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(_FIELDS)}"
            yield f"field {name!r:.80} means nothing here; {meant}"

    def unknown_drained(self, slots: Collection[Slot]) -> tuple[Slot, ...]:
        """
        Return the drained slots that are probably misspelt: neither among ``slots`` nor ids of departed members.

        A member id ends in its session's id. The id of a departed member may stay in the list. An id that ends in the
        session's id of one of ``slots``, but is not equal to that slot, is a misspelling of that slot.
        """
        sessions = {slot.rpartition("-")[2] for slot in slots if _MEMBER_ID.fullmatch(slot)}
        return tuple(
            drained
            for drained in sorted(self.drained)
            if drained not in slots and (not _MEMBER_ID.fullmatch(drained) or drained.rpartition("-")[2] in sessions)
        )


#: ``group_host-milliseconds-session``, the id of a member without an instance id.
_MEMBER_ID = re.compile(r".[^_]*_.+-\d{13}-[0-9a-f]+")

#: The fields that operators may set.
_FIELDS = tuple(field.name for field in fields(DynamicConfig) if field.name != "unknown")


def _allocator(given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise ConfigError(f"allocator: {given!r:.80} given; expected a name")
    named_allocator(given, "allocator")
    return given


def _debounce(given: Any) -> tuple[tuple[str, int], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given.keys() <= set(_DURATIONS):
        raise ConfigError(f"debounce: {given!r:.80} given; expected an object with {', '.join(_DURATIONS)}")
    found = {name: _milliseconds(value, f"debounce.{name}") for name, value in given.items()}
    return tuple(sorted((name, value) for name, value in found.items() if value is not None))


def _milliseconds(given: Any, setting: str) -> int | None:
    if given is not None and (type(given) is not int or given < 0):
        raise ConfigError(f"{setting}: {given!r:.80} given; expected milliseconds, 0 or more")
    return given


def _drained(given: Any) -> frozenset[Slot]:
    if given is None:
        return frozenset()
    if not isinstance(given, list):
        raise ConfigError(f"drained: {given!r:.80} given; expected a list of member or instance ids")
    return frozenset(check_name(slot, "drained") for slot in given)
