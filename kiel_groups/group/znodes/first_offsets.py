"""The first offsets of a group in a topic, for groups whose offsets are in Kafka: the data of one znode per topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import (
    LARGEST_OFFSET,
    LARGEST_PARTITION,
    encode_object,
    parse_object,
    typed_field,
)

__all__ = ["FirstOffsets"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class FirstOffsets:
    """
    Where a group began to read a topic.

    ``created`` is the topic's creation zxid, and ``at_ms`` the time of the decision in milliseconds since 1970.
    ``offsets`` has the first offset of each partition, by its number, as far as leaders returned them.
    """

    created: int
    at_ms: int
    offsets: Mapping[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the offsets as a list by partition, null for an unknown one, so that many partitions fit."""
        listed = [self.offsets.get(number) for number in range(max(self.offsets, default=-1) + 1)]
        return encode_object({"version": _VERSION, "created": self.created, "at": self.at_ms, "offsets": listed})

    @classmethod
    def parse(cls, data: bytes, path: str) -> FirstOffsets:
        """Parse the data of the znode; raise ProtocolError for any other data."""
        fields = parse_object(data, path)
        listed = typed_field(fields, "offsets", list, path)
        if len(listed) > LARGEST_PARTITION or not all(each is None or _is_offset(each) for each in listed):
            raise ProtocolError(f"{path}: field 'offsets' should have offsets, found {listed[:5]!r}")
        return cls(
            typed_field(fields, "created", int, path),
            typed_field(fields, "at", int, path),
            {number: offset for number, offset in enumerate(listed) if offset is not None},
        )


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_OFFSET
