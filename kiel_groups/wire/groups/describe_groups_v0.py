"""DescribeGroups v0: ask a coordinator for the state and the members of its groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = ["DescribeGroupsRequest", "DescribedGroup", "DescribedMember"]

_LEAST_GROUP_BYTES = 2 + 2 + 2 + 2 + 2 + 4
_LEAST_MEMBER_BYTES = 2 + 2 + 2 + 4 + 4


class DescribedMember(NamedTuple):
    """
    A member as its coordinator knows it.

    ``client_host`` is the address that the coordinator sees, such as ``/127.0.0.1``. ``metadata`` and ``assignment``
    are empty unless the group is stable: for consumers, a ``ConsumerSubscription`` and a ``ConsumerAssignment``.
    """

    member_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """
    A group as its coordinator knows it.

    ``state`` is the broker's name for it: ``Stable``, ``PreparingRebalance``, ``AwaitingSync`` (in later
    releases ``CompletingRebalance``), ``Empty``, or ``Dead``, which is also the state of a group that does not exist.
    """

    error: ErrorCode
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    """Ask for some groups. A broker that does not coordinate one of them answers NOT_COORDINATOR_FOR_CONSUMER there."""

    API_KEY: ClassVar[int] = 15
    API_VERSION: ClassVar[int] = 0

    groups: tuple[str, ...]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(len(self.groups))
        for group in self.groups:
            writer.string(group)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> tuple[DescribedGroup, ...]:
        reader = Reader(payload, "a describe-groups response")
        groups = tuple(_read_group(reader) for _ in reader.array(_LEAST_GROUP_BYTES))
        reader.end()
        return groups


def _read_group(reader: Reader) -> DescribedGroup:
    error = error_code(reader.int16())
    group, state, protocol_type, protocol = (reader.string() for _ in range(4))
    members = tuple(_read_member(reader) for _ in reader.array(_LEAST_MEMBER_BYTES))
    return DescribedGroup(error, group, state, protocol_type, protocol, members)


def _read_member(reader: Reader) -> DescribedMember:
    member_id, client_id, client_host = (reader.string() for _ in range(3))
    return DescribedMember(member_id, client_id, client_host, bytes(reader.blob()), bytes(reader.blob()))
