"""ListGroups v0: ask a broker for the groups that it coordinates. All groups are found by asking every broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader

__all__ = ["ListGroupsRequest", "ListGroupsResponse", "ListedGroup"]

_LEAST_GROUP_BYTES = 2 + 2


class ListedGroup(NamedTuple):
    """
    A group that the broker coordinates.

    ``protocol_type`` is ``consumer`` for groups of consumers, and empty for a group that has only offsets.
    """

    group: str
    protocol_type: str


class ListGroupsResponse(NamedTuple):
    """The groups of one broker, in the broker's order. They are incomplete while the broker reads its offsets."""

    error: ErrorCode
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """Ask a broker for the groups that it coordinates."""

    API_KEY: ClassVar[int] = 16
    API_VERSION: ClassVar[int] = 0

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        return b""

    def decode_response(self, payload: Buffer) -> ListGroupsResponse:
        reader = Reader(payload, "a list-groups response")
        error = error_code(reader.int16())
        groups = tuple(ListedGroup(reader.string(), reader.string()) for _ in reader.array(_LEAST_GROUP_BYTES))
        reader.end()
        return ListGroupsResponse(error, groups)
