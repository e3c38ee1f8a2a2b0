"""
FindCoordinator v0: ask any broker which broker coordinates a group.

Kafka 0.8.2 has the same request under the name ConsumerMetadata; its coordinators store offsets, and know no members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.api.metadata_v0 import BrokerAddress
from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = ["FindCoordinatorRequest", "FoundCoordinator"]


class FoundCoordinator(NamedTuple):
    """The coordinator of a group. After an error, ``broker`` has the node id -1, no host, and the port -1."""

    error: ErrorCode
    broker: BrokerAddress


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """Ask for the coordinator of a group. The first such request to a cluster creates the topic of the offsets."""

    API_KEY: ClassVar[int] = 10
    API_VERSION: ClassVar[int] = 0

    group: str

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> FoundCoordinator:
        reader = Reader(payload, "a find-coordinator response")
        error = error_code(reader.int16())
        broker = BrokerAddress(reader.int32(), reader.string(), reader.int32())
        reader.end()
        return FoundCoordinator(error, broker)
