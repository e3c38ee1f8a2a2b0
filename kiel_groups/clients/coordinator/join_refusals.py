"""Say why a coordinator refuses a member for good, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kiel_groups.clients.coordinator.member_hooks import CoordinatedContext
from kiel_groups.errors import ConfigError, GroupConfigError, KielGroupsError
from kiel_groups.group.coordinated.coordinator_codes import CoordinatorCode, GroupRequest
from kiel_groups.wire.error_codes import error_code
from kiel_groups.wire.groups.consumer_protocol import PROTOCOL_TYPE
from kiel_groups.wire.groups.join_group import GroupProtocol

__all__ = ["JoinOffer", "refusal"]


class JoinOffer(NamedTuple):
    """What a member joins with."""

    protocol_type: str
    protocols: Sequence[GroupProtocol]


def refusal(request: GroupRequest, code: int, context: CoordinatedContext, offer: JoinOffer) -> KielGroupsError:
    """
    Return the error of a member that a coordinator refuses.

    Args:
        request: The request that was refused.
        code: The coordinator's error code.
        context: The member's settings.
        offer: What the member has joined with.
    """
    group, known = context.group.group, error_code(code)
    match code:
        case CoordinatorCode.INCONSISTENT_PROTOCOL:
            names = ", ".join(protocol.name for protocol in offer.protocols)
            if offer.protocol_type == PROTOCOL_TYPE:
                others, advice = "are no consumers", "Give all members the same partition_allocator"
            else:
                others = f"are of another type than {offer.protocol_type!r}"
                advice = "Give the programs of all members a protocol in common"
            return GroupConfigError(
                f"group {group}: the coordinator refuses this member ({known}): it offers {names}, and the members of"
                f" the group have no such protocol in common, or {others}. {advice}, or choose another group"
            )
        case CoordinatorCode.INVALID_SESSION_TIMEOUT:
            return ConfigError(
                f"session_timeout_ms: {context.timing.session_timeout_ms} given, which the coordinator of group"
                f" {group} refuses ({known}): the brokers' group.min.session.timeout.ms (6,000 unless changed) and"
                " group.max.session.timeout.ms (30,000 in Kafka 0.9, 300,000 to 1,800,000 later) are its bounds"
            )
        case CoordinatorCode.INVALID_GROUP:
            return ConfigError(f"group: the coordinator refuses the name {group!r} ({known})")
    return known.exception(f"group {group}: {request.value}: the coordinator refuses this member")
