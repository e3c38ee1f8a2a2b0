"""
Encode and parse the znodes of a group of programs: its members share other work than partitions.

Such a group rebalances in rounds: all members join, and the leader assigns bytes of the program's protocol to each
member. The paths are the same as in ``contents``. The data has version 2: members that know only version 1 treat the
data as unreadable. Bytes are base64 in JSON, so that an operator can read all other fields with zkCli's ``get``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kiel_groups.config import is_whole
from kiel_groups.errors import GroupConfigError, ProtocolError
from kiel_groups.group.znodes.contents import (
    DONE,
    GroupSettings,
    PublicationState,
    check_version,
    encode_object,
    named_fields,
    parse_object,
    typed_field,
)
from kiel_groups.group.znodes.layout import ROOT, GroupLayout
from kiel_groups.model import CONNECT_TYPE, MemberId

_VERSION = 2

#: The state of a round that waits for members to join; the other state is ``DONE``.
JOINING: PublicationState = "joining"


class RoundLayout(GroupLayout):
    """
    The paths of a group of programs. The group has no znodes below ``/consumers``, where Kafka's tools look for groups.
    """

    @property
    def parents(self) -> tuple[str, ...]:
        """The paths of the persistent znodes that must exist before a member registers, parents first."""
        return (ROOT, self.root, self.members, self.election)


class OfferedProtocol(NamedTuple):
    """A protocol that a member knows, and the member's metadata for that protocol."""

    name: str
    metadata: bytes


class Offer(NamedTuple):
    """The protocol type of a member's program, and the protocols that it knows, with the preferred protocol first."""

    protocol_type: str
    protocols: tuple[OfferedProtocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMember:
    """
    A member's description of itself, the data of its member znode.

    ``joined`` is the generation that the member has joined or waits for. Before the member writes that generation, the
    member releases all earlier assignments. ``joined`` is 0 if the member does not know the newest round.
    """

    member_id: MemberId
    joined: int
    offer: Offer
    session_timeout_ms: int = 0
    host: str = ""
    pid: int = 0
    client: str = ""
    started_at_ms: int = 0

    def encode(self) -> bytes:
        return encode_object(
            {
                "version": _VERSION,
                "joined": self.joined,
                "protocol_type": self.offer.protocol_type,
                "protocols": [[each.name, _encoded(each.metadata)] for each in self.offer.protocols],
                "session_timeout_ms": self.session_timeout_ms,
                "host": self.host,
                "pid": self.pid,
                "client": self.client,
                "started_at": self.started_at_ms,
            }
        )

    @classmethod
    def parse(cls, member_id: MemberId, data: bytes, path: str) -> RoundMember:
        fields = _fields(data, path)
        protocols: list[OfferedProtocol] = []
        for entry in typed_field(fields, "protocols", list, path):
            if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
                raise ProtocolError(f"{path}: protocols should be names with metadata, found {entry!r}")
            protocols.append(OfferedProtocol(entry[0], _decoded(entry[1], path)))
        return cls(
            member_id=member_id,
            joined=_generation(fields, "joined", path),
            offer=Offer(typed_field(fields, "protocol_type", str, path), tuple(protocols)),
            session_timeout_ms=_number(fields, "session_timeout_ms"),
            host=str(fields.get("host", "")),
            pid=_number(fields, "pid"),
            client=str(fields.get("client", "")),
            started_at_ms=_number(fields, "started_at"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """
    The state of a group's latest round: the data of the ``allocation`` znode.

    While members join, ``protocol`` is "" and ``members`` is empty. After that, ``members`` are the members with an
    assignment of this generation. ``refused`` has the reason for each member that was refused because it shares no
    protocol with the accepted members.
    """

    generation: int
    state: PublicationState
    leader: MemberId
    protocol: str = ""
    members: tuple[MemberId, ...] = ()
    refused: Mapping[MemberId, str] = field(default_factory=dict)
    cause: str = ""
    created_at_ms: int = 0

    def encode(self) -> bytes:
        return encode_object({"version": _VERSION, **named_fields(self, created_at_ms="created_at")})

    @classmethod
    def parse(cls, data: bytes, path: str) -> RoundState:
        fields = _fields(data, path)
        state = typed_field(fields, "state", str, path)
        if state not in (JOINING, DONE):
            raise ProtocolError(f"{path}: field 'state' should be 'joining' or 'done', found {state!r}")
        members = typed_field(fields, "members", list, path)
        refused = fields.get("refused")
        return cls(
            generation=_generation(fields, "generation", path),
            state=state,
            leader=typed_field(fields, "leader", str, path),
            protocol=str(fields.get("protocol", "")),
            members=tuple(map(str, members)),
            refused={str(key): str(why) for key, why in refused.items()} if isinstance(refused, dict) else {},
            cause=str(fields.get("cause", "")),
            created_at_ms=_number(fields, "created_at"),
        )


@dataclass(frozen=True, slots=True)
class RoundAssignment:
    """The assignment of one member in one generation: bytes of the protocol that the leader chose."""

    generation: int
    member_id: MemberId
    assignment: bytes

    def encode(self) -> bytes:
        return encode_object(
            {
                "version": _VERSION,
                "generation": self.generation,
                "for": self.member_id,
                "assignment": _encoded(self.assignment),
            }
        )

    @classmethod
    def parse(cls, data: bytes, path: str) -> RoundAssignment:
        fields = _fields(data, path)
        return cls(
            _generation(fields, "generation", path),
            typed_field(fields, "for", str, path),
            _decoded(fields.get("assignment"), path),
        )


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The settings that all members of a group of programs must agree on, as the first member wrote them."""

    protocol_type: str

    def encode(self) -> bytes:
        return encode_object({"version": _VERSION, "protocol_type": self.protocol_type})

    @classmethod
    def parse(cls, data: bytes, path: str) -> RoundSettings:
        return cls(typed_field(_fields(data, path), "protocol_type", str, path))


def program_type(settings: bytes | None, configuration: bytes | None, *, has_workers: bool) -> str | None:
    """
    Return the protocol type of a group whose members are certainly programs, else None.

    The settings decide, because the first member of a group writes them. Workers of an earlier version in groups that
    brokers coordinate have written no settings. Their configuration and their own znodes identify such groups. The
    parents of these znodes prove nothing: such a worker created these parents in any group, even in a group that
    refused the worker.

    Args:
        settings: The data of the group's ``config``.
        configuration: The data of the znode with the workers' configuration offset. The data is empty before the first
            change.
        has_workers: Whether a worker's own znode exists.
    """
    if settings is not None:
        with suppress(ProtocolError):
            return RoundSettings.parse(settings, "config").protocol_type
        with suppress(ProtocolError):
            GroupSettings.parse(settings, "config")
            return None
    return CONNECT_TYPE if configuration or has_workers else None


def refusal_by_programs(group: str, protocol_type: str) -> GroupConfigError:
    """Return the error for a consumer, or a tool for consumers, in a group whose members are programs."""
    if protocol_type == CONNECT_TYPE:
        text = "its members are workers, which share connectors and no partitions"
    else:
        text = f"its members are of the type {protocol_type!r}, and share no partitions"
    return GroupConfigError(f"group {group}: {text}; choose another group")


def _fields(data: bytes, path: str) -> dict[str, Any]:
    fields = parse_object(data, path)
    check_version(fields, _VERSION, path)
    return fields


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decoded(text: object, path: str) -> bytes:
    if not isinstance(text, str):
        raise ProtocolError(f"{path}: base64 was expected, found {text!r}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"{path}: base64 was expected ({error}), found {text[:40]!r}") from error


def _generation(fields: Mapping[str, Any], name: str, path: str) -> int:
    generation: int = typed_field(fields, name, int, path)
    if generation < 0:
        raise ProtocolError(f"{path}: field {name!r} should not be negative, found {generation}")
    return generation


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if is_whole(value) else 0
