"""
JoinGroup v0 and v1: become a member of a group, or take part in its next generation.

v1 exists from 0.10.1 on, and has a rebalance timeout of its own. Brokers of 0.9 and 0.10.0 do not answer it at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = ["GroupProtocol", "JoinGroupRequest", "JoinGroupRequestV1", "JoinGroupResponse"]

_LEAST_MEMBER_BYTES = 2 + 4


class GroupProtocol(NamedTuple):
    """
    A way of assigning partitions that a member offers, such as ``range``.

    ``metadata`` is what the member tells the group's leader: for consumers, a ``ConsumerSubscription``.
    """

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """
    The generation of the group that the member belongs to now.

    ``protocol`` is one that all members have offered. The member whose ``member_id`` equals ``leader_id`` is the
    leader. ``members`` has the metadata of each member by its id, and is empty unless the member is the leader.
    """

    error: ErrorCode
    generation: int
    protocol: str
    leader_id: str
    member_id: str
    members: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    """
    Join a group. The coordinator answers when all members have joined, or when those that have not are removed.

    ``member_id`` is empty for a new member, which finds its id in the answer. ``protocols`` are in the member's order
    of preference. The coordinator waits for other members as long as the longest session timeout among them.
    """

    API_KEY: ClassVar[int] = 11
    API_VERSION: ClassVar[int] = 0

    group: str
    session_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]

    @property
    def expects_response(self) -> bool:
        return True

    @property
    def timeouts_ms(self) -> tuple[int, ...]:
        """The timeouts in the order of the request."""
        return (self.session_timeout_ms,)

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        for timeout_ms in self.timeouts_ms:
            writer.int32(timeout_ms)
        writer.string(self.member_id)
        writer.string(self.protocol_type)
        writer.int32(len(self.protocols))
        for protocol in self.protocols:
            writer.string(protocol.name)
            writer.blob(protocol.metadata)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> JoinGroupResponse:
        reader = Reader(payload, "a join-group response")
        error, generation = error_code(reader.int16()), reader.int32()
        protocol, leader_id, member_id = reader.string(), reader.string(), reader.string()
        members = _read_members(reader)
        reader.end()
        return JoinGroupResponse(error, generation, protocol, leader_id, member_id, members)


@dataclass(frozen=True, slots=True)
class JoinGroupRequestV1(JoinGroupRequest):
    """
    Join a group, with a rebalance timeout.

    The coordinator waits for other members as long as the longest ``rebalance_timeout_ms`` among them.
    """

    API_VERSION: ClassVar[int] = 1

    rebalance_timeout_ms: int

    @property
    def timeouts_ms(self) -> tuple[int, ...]:
        """The timeouts in the order of the request."""
        return (self.session_timeout_ms, self.rebalance_timeout_ms)


def _read_members(reader: Reader) -> Mapping[str, bytes]:
    members: dict[str, bytes] = {}
    for _ in reader.array(_LEAST_MEMBER_BYTES):
        member_id = reader.string()
        if member_id in members:
            raise reader.refuse(f"member {member_id!r} twice")
        members[member_id] = bytes(reader.blob())
    return members
