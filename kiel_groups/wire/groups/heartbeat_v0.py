"""Heartbeat v0: keep a member's session at the coordinator, and learn whether the group rebalances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = ["HeartbeatRequest"]


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """
    Renew a member's session.

    The answer is REBALANCE_IN_PROGRESS while the member has to rejoin. After an eviction it is UNKNOWN_MEMBER_ID;
    0.9 answers REBALANCE_IN_PROGRESS to an evicted member, too, as long as the others rejoin.
    """

    API_KEY: ClassVar[int] = 12
    API_VERSION: ClassVar[int] = 0

    group: str
    generation: int
    member_id: str

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        writer.int32(self.generation)
        writer.string(self.member_id)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> ErrorCode:
        reader = Reader(payload, "a heartbeat response")
        error = error_code(reader.int16())
        reader.end()
        return error
