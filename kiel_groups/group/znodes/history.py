"""The history of a group: one znode per generation, for the last ``MOST_KEPT`` generations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from kiel_groups.group.znodes.contents import encode_object, parse_object, typed_field
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Create, Delete, Operation
from kiel_groups.model import MemberId

__all__ = ["HistoryEntry", "generation_of", "record", "MOST_KEPT"]

#: Enough to reconstruct the incidents of a night.
MOST_KEPT = 100

_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """
    The cause of a generation, and its effect.

    ``moved`` counts the partitions that the plan moved from one slot to another. ``took_ms`` is the time from the first
    change that caused the generation to its plan.
    """

    generation: int
    cause: str
    leader: MemberId
    moved: int
    members: int
    partitions: int
    took_ms: int
    created_at_ms: int

    def encode(self) -> bytes:
        return encode_object(asdict(self))

    @classmethod
    def parse(cls, data: bytes, path: str) -> HistoryEntry:
        """Parse an entry, and raise ProtocolError if it is no JSON object, or lacks a field, or has a wrong type."""
        found = parse_object(data, path)
        texts = {name: typed_field(found, name, str, path) for name in ("cause", "leader")}
        numbers = ("generation", "moved", "members", "partitions", "took_ms", "created_at_ms")
        return cls(**texts, **{name: typed_field(found, name, int, path) for name in numbers})


def generation_of(name: str) -> int | None:
    """Return the generation in the name of a history entry's znode, or None for any other name."""
    return int(name) if len(name) == _DIGITS and name.isascii() and name.isdigit() else None


def record(layout: GroupLayout, entry: HistoryEntry, kept: Iterable[int]) -> Iterator[Operation]:
    """
    Yield the writes that add an entry and delete the oldest entries.

    The writes belong to the last transaction of a publication.

    Args:
        layout: The group's paths.
        entry: The new entry.
        kept: The generations that already have an entry.
    """
    yield Create(_path(layout, entry.generation), entry.encode())
    for generation in sorted(kept)[: -(MOST_KEPT - 1)]:
        yield Delete(_path(layout, generation))


def _path(layout: GroupLayout, generation: int) -> str:
    return f"{layout.history}/{generation:0{_DIGITS}d}"
