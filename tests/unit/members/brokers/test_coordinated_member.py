"""What a member does about each answer of its coordinator, and what its program and its callers notice."""

from __future__ import annotations

import pytest

from kiel_groups.errors import (
    BrokerConnectionError,
)
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest
from kiel_groups.members.brokers.transport import FindError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.group_requests import JoinGroupRequest, SyncGroupRequest
from kiel_groups.wire.offsets import OffsetFetchRequestV1
from tests.helpers.scripted_coordinator import FIND, MemberBench

pytestmark = pytest.mark.unit

C = CoordinatorCode
SILENCE = BrokerConnectionError("broker 1: the connection broke")
READ = OffsetFetchRequestV1("g", (TopicPartition("t", 0),))

REJOIN = ("assign", "sync", "complete")
AGAIN = ("join m-1", *REJOIN)
ANEW = ("join anew", *REJOIN)

#: What a member does that joins again, after its partitions are given back, by the first answer to its join.
JOINS: dict[int | Exception, tuple[str, ...]] = {
    C.UNKNOWN: ("join m-1", *AGAIN),
    C.REQUEST_TIMED_OUT: ("join m-1", *AGAIN),
    C.LOADING: ("join m-1", *AGAIN),
    C.NOT_AVAILABLE: ("join m-1", "find", *AGAIN),
    C.NOT_COORDINATOR: ("join m-1", "find", *AGAIN),
    C.ILLEGAL_GENERATION: ("join m-1", *ANEW),
    C.INCONSISTENT_PROTOCOL: ("join m-1", "failed GroupConfigError"),
    C.INVALID_GROUP: ("join m-1", "failed ConfigError"),
    C.UNKNOWN_MEMBER: ("join m-1", *ANEW),
    C.INVALID_SESSION_TIMEOUT: ("join m-1", "failed ConfigError"),
    C.REBALANCE_IN_PROGRESS: ("join m-1", *AGAIN),
    C.GROUP_AUTHORIZATION_FAILED: ("join m-1", "failed BrokerError"),
    81: ("join m-1", "failed BrokerError"),
    SILENCE: ("join m-1", "find", *AGAIN),
}
TRIED = ("join m-1", "assign", "sync")
#: The same by the first answer to its sync.
SYNCS: dict[int | Exception, tuple[str, ...]] = {
    C.UNKNOWN: (*TRIED, *AGAIN),
    C.REQUEST_TIMED_OUT: (*TRIED, *AGAIN),
    C.LOADING: (*TRIED, *AGAIN),
    C.NOT_AVAILABLE: (*TRIED, "find", *AGAIN),
    C.NOT_COORDINATOR: (*TRIED, "find", *AGAIN),
    C.ILLEGAL_GENERATION: (*TRIED, *ANEW),
    C.INCONSISTENT_PROTOCOL: (*TRIED, *AGAIN),
    C.INVALID_GROUP: (*TRIED, "failed ConfigError"),
    C.UNKNOWN_MEMBER: (*TRIED, *ANEW),
    C.INVALID_SESSION_TIMEOUT: (*TRIED, *AGAIN),
    C.REBALANCE_IN_PROGRESS: (*TRIED, *AGAIN),
    C.GROUP_AUTHORIZATION_FAILED: (*TRIED, "failed BrokerError"),
    81: (*TRIED, *AGAIN),
    SILENCE: (*TRIED, "find", *AGAIN),
}
#: What a member with an assignment does by the answer to a heartbeat.
BEATS: dict[int | Exception, tuple[str, ...]] = {
    C.UNKNOWN: ("beat", "find"),
    C.NO_ERROR: ("beat",),
    C.REQUEST_TIMED_OUT: ("beat", "find"),
    C.LOADING: ("beat",),
    C.NOT_AVAILABLE: ("beat", "find"),
    C.NOT_COORDINATOR: ("beat", "find"),
    C.ILLEGAL_GENERATION: ("beat", "lost", *ANEW),
    C.INCONSISTENT_PROTOCOL: ("beat", "find"),
    C.INVALID_GROUP: ("beat", "lost", "failed ConfigError"),
    C.UNKNOWN_MEMBER: ("beat", "lost", *ANEW),
    C.INVALID_SESSION_TIMEOUT: ("beat", "find"),
    C.REBALANCE_IN_PROGRESS: ("beat", "prepare", *AGAIN),
    C.GROUP_AUTHORIZATION_FAILED: ("beat", "lost", "failed BrokerError"),
    81: ("beat", "find"),
    SILENCE: ("beat", "find"),
}
#: What a new member does by the first answer to its question for the coordinator.
FINDS: dict[int | Exception, tuple[str, ...]] = {
    **dict.fromkeys((code for code in C if code), ("find", "find", *ANEW)),
    C.INVALID_GROUP: ("find", "failed ConfigError"),
    C.GROUP_AUTHORIZATION_FAILED: ("find", "failed BrokerError"),
    81: ("find", "find", *ANEW),
    FindError("no broker has answered"): ("find", "find", *ANEW),
}
#: What a member with an assignment does by an answer to a commit.
OFFSETS: dict[int, tuple[str, ...]] = {
    C.UNKNOWN: (),
    C.NO_ERROR: (),
    C.REQUEST_TIMED_OUT: ("find",),
    C.LOADING: (),
    C.NOT_AVAILABLE: ("find",),
    C.NOT_COORDINATOR: ("find",),
    C.ILLEGAL_GENERATION: ("lost", *ANEW),
    C.INCONSISTENT_PROTOCOL: (),
    C.INVALID_GROUP: ("lost", "failed ConfigError"),
    C.UNKNOWN_MEMBER: ("lost", *ANEW),
    C.INVALID_SESSION_TIMEOUT: (),
    C.REBALANCE_IN_PROGRESS: ("prepare", *AGAIN),
    C.GROUP_AUTHORIZATION_FAILED: ("lost", "failed BrokerError"),
    12: (),
    28: (),
}


def shown(code: object) -> str:
    return code.name if isinstance(code, CoordinatorCode) else type(code).__name__ + str(code)[:3]


@pytest.mark.parametrize("answer", JOINS, ids=shown)
async def test_each_answer_to_a_join(answer: int | Exception) -> None:
    """The partitions were given back once before the join, and are neither given back nor lost again."""
    bench = await MemberBench().joined()
    bench.transport.script[JoinGroupRequest].append(answer)
    bench.member.request_rejoin()
    assert await bench.settled(("prepare", *JOINS[answer])) == ("prepare", *JOINS[answer])
    await bench.member.close()


@pytest.mark.parametrize("answer", SYNCS, ids=shown)
async def test_each_answer_to_a_sync(answer: int | Exception) -> None:
    """After any failed sync, the member joins again; its id is void only if the coordinator says so."""
    bench = await MemberBench().joined()
    bench.transport.script[SyncGroupRequest].append(answer)
    bench.member.request_rejoin()
    assert await bench.settled(("prepare", *SYNCS[answer])) == ("prepare", *SYNCS[answer])
    await bench.member.close()


@pytest.mark.parametrize("answer", BEATS, ids=shown)
async def test_each_answer_to_a_heartbeat(answer: int | Exception) -> None:
    """A rebalance drains, removal loses, a refusal stops the member; anything else finds the coordinator anew."""
    bench = await MemberBench().joined()
    await bench.beat(answer)
    assert await bench.settled(BEATS[answer]) == BEATS[answer]
    await bench.member.close()


@pytest.mark.parametrize("answer", FINDS, ids=shown)
async def test_each_answer_to_a_question_for_the_coordinator(answer: int | Exception) -> None:
    """A question is repeated after a pause, unless the broker refuses the group."""
    bench = MemberBench()
    bench.transport.script[FIND].append(answer)
    bench.member.request_rejoin()
    assert await bench.settled(FINDS[answer]) == FINDS[answer]
    await bench.member.close()


@pytest.mark.parametrize("code", OFFSETS, ids=shown)
async def test_each_code_in_an_answer_to_a_commit(code: int) -> None:
    """What a commit's answer says of the membership has the effects that a heartbeat's answer has."""
    bench = await MemberBench().joined()
    token = bench.member.token
    assert token is not None
    bench.member.note(GroupRequest.COMMIT, code, token)
    assert await bench.settled(OFFSETS[code]) == OFFSETS[code]
    await bench.member.close()


async def test_the_lease_of_a_program_is_logged_without_delivery(caplog: pytest.LogCaptureFixture) -> None:
    """A member that is no consumer delivers nothing: its log says whether the program may use the assignment."""
    bench = MemberBench(protocol_type="numbers")
    await bench.joined()
    await bench.beat(*[SILENCE] * 6, 0)
    lines = [record.message for record in caplog.records if "the assignment may" in record.message]
    assert [line.partition(": the lease")[0] for line in lines] == [
        "group g: the assignment may not be used",
        "group g: the assignment may be used again: the coordinator has confirmed the membership of m-1",
    ]
    assert "delivery" not in caplog.text
    await bench.member.close()
