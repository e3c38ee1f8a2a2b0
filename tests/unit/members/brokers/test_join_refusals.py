"""The errors of a member that its coordinator refuses for good: what was refused, and what to do."""

from __future__ import annotations

import pytest

from kiel_groups.errors import BrokerError, ConfigError, GroupConfigError, KielGroupsError
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest
from kiel_groups.members.brokers.coordinator import refusal
from kiel_groups.wire.group_requests import GroupProtocol
from tests.helpers.scripted_coordinator import MemberBench

pytestmark = pytest.mark.unit

C = CoordinatorCode
PROTOCOLS = (GroupProtocol("range", b""), GroupProtocol("kiel-sticky", b""))


@pytest.mark.parametrize(
    ("request_", "code", "kind", "words"),
    [
        (
            GroupRequest.JOIN,
            C.INCONSISTENT_PROTOCOL,
            GroupConfigError,
            "it offers range, kiel-sticky, .*Give all members the same partition_allocator",
        ),
        (
            GroupRequest.JOIN,
            C.INVALID_SESSION_TIMEOUT,
            ConfigError,
            r"session_timeout_ms: 6000 given.*group.min.session.timeout.ms \(6,000.*30,000 in Kafka 0.9, 300,000",
        ),
        (GroupRequest.FIND, C.INVALID_GROUP, ConfigError, r"refuses the name 'g' \(INVALID_GROUP_ID \(24\)\)"),
        (
            GroupRequest.HEARTBEAT,
            C.GROUP_AUTHORIZATION_FAILED,
            BrokerError,
            r"group g: Heartbeat: .*GROUP_AUTHORIZATION_FAILED \(30\): this client has no right to the group; grant it",
        ),
        (GroupRequest.JOIN, 81, BrokerError, r"JoinGroup: .*GROUP_MAX_SIZE_REACHED \(81\): .*group.max.size allows"),
        (GroupRequest.JOIN, 134, BrokerError, r"ERROR_134 \(134\): the code is newer than this package"),
    ],
)
async def test_a_refusal_says_what_to_do(
    request_: GroupRequest, code: int, kind: type[KielGroupsError], words: str
) -> None:
    """The class of the error says who can act, its text what to change."""
    error = refusal(request_, code, MemberBench().context, "consumer", PROTOCOLS)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error


async def test_a_refused_program_hears_of_programs() -> None:
    """The words for consumers and their allocators would mislead the author of another program."""
    offered = (GroupProtocol("by-host", b""),)
    error = refusal(GroupRequest.JOIN, C.INCONSISTENT_PROTOCOL, MemberBench().context, "crawlers", offered)
    assert type(error) is GroupConfigError
    assert str(error) == (
        "group g: the coordinator refuses this member (INCONSISTENT_GROUP_PROTOCOL (23)): it offers by-host, and the"
        " members of the group have no such protocol in common, or are of another type than 'crawlers'. Give the"
        " programs of all members a protocol in common, or choose another group"
    )
