"""LeaveGroup v0: end a member's session at once, so that the others get its partitions without a timeout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = ["LeaveGroupRequest"]


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    """Remove a member from its group. The answer is UNKNOWN_MEMBER_ID if the coordinator has removed it already."""

    API_KEY: ClassVar[int] = 13
    API_VERSION: ClassVar[int] = 0

    group: str
    member_id: str

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        writer.string(self.member_id)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> ErrorCode:
        reader = Reader(payload, "a leave-group response")
        error = error_code(reader.int16())
        reader.end()
        return error
