"""
ApiVersions v0: ask a broker which versions of each request it takes.

It exists from 0.10.0 on. An older broker does not answer: 0.9 ignores the request, and 0.8 closes the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader

__all__ = ["ApiVersionsRequest", "ApiVersionsResponse", "VersionRange"]

_API_BYTES = 2 + 2 + 2


class VersionRange(NamedTuple):
    """The versions of one request that a broker takes, both ends included."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    """
    The versions that a broker takes, by API key.

    4.x names version 0 of a produce request for the sake of old clients, and yet closes the connection when it comes.
    """

    error: ErrorCode
    versions: Mapping[int, VersionRange]


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    """Ask a broker which versions of each request it takes."""

    API_KEY: ClassVar[int] = 18
    API_VERSION: ClassVar[int] = 0

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        return b""

    def decode_response(self, payload: Buffer) -> ApiVersionsResponse:
        reader = Reader(payload, "an API-versions response")
        error = error_code(reader.int16())
        versions: dict[int, VersionRange] = {}
        for _ in reader.array(_API_BYTES):
            key = reader.int16()
            if key in versions:
                raise reader.refuse(f"API key {key} twice")
            versions[key] = VersionRange(reader.int16(), reader.int16())
        reader.end()
        return ApiVersionsResponse(error, versions)
