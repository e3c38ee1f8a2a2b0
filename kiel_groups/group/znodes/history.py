"""What a group keeps of its past: one znode a generation, the last ``MOST_KEPT`` of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from kiel_groups.group.znodes.contents import encode_object, parse_object, typed_field
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Create, Delete, Operation
from kiel_groups.model import MemberId

__all__ = ["HistoryEntry", "generation_of", "record", "MOST_KEPT"]

#: Enough for a bad night.
MOST_KEPT = 100

_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """
    Why there was a generation, and what it did.

    ``moved`` partitions got another owner; ``took_ms`` passed from the first change that it is made from to the plan.
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
        """Read one; raises ProtocolError where a field is missing or of another type."""
        found = parse_object(data, path)
        texts = {name: typed_field(found, name, str, path) for name in ("cause", "leader")}
        numbers = ("generation", "moved", "members", "partitions", "took_ms", "created_at_ms")
        return cls(**texts, **{name: typed_field(found, name, int, path) for name in numbers})


def generation_of(name: str) -> int | None:
    """The generation that a znode of this name is about, None where it is none of ours."""
    return int(name) if len(name) == _DIGITS and name.isascii() and name.isdigit() else None


def record(layout: GroupLayout, entry: HistoryEntry, kept: Iterable[int]) -> Iterator[Operation]:
    """
    What to write, with a publication, so that it is kept and the oldest ones are not.

    Args:
        layout: The group's paths.
        entry: What is new.
        kept: The generations that are kept already.
    """
    yield Create(_path(layout, entry.generation), entry.encode())
    for generation in sorted(kept)[: -(MOST_KEPT - 1)]:
        yield Delete(_path(layout, generation))


def _path(layout: GroupLayout, generation: int) -> str:
    return f"{layout.history}/{generation:0{_DIGITS}d}"
