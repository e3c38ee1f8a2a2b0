"""SyncGroup v0: the leader sends the assignments of all members, and each member receives its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = ["SyncGroupRequest", "SyncGroupResponse"]


class SyncGroupResponse(NamedTuple):
    """
    The member's assignment: for consumers, a ``ConsumerAssignment``.

    It is empty after an error, and if the leader has named no assignment for the member.
    """

    error: ErrorCode
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    """
    Ask for the member's assignment. The coordinator answers when the leader's request has arrived.

    ``assignments`` are by member id. Every member except the leader sends none.
    """

    API_KEY: ClassVar[int] = 14
    API_VERSION: ClassVar[int] = 0

    group: str
    generation: int
    member_id: str
    assignments: Mapping[str, bytes]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        writer.int32(self.generation)
        writer.string(self.member_id)
        writer.int32(len(self.assignments))
        for member_id, assignment in self.assignments.items():
            writer.string(member_id)
            writer.blob(assignment)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> SyncGroupResponse:
        reader = Reader(payload, "a sync-group response")
        response = SyncGroupResponse(error_code(reader.int16()), bytes(reader.blob()))
        reader.end()
        return response
