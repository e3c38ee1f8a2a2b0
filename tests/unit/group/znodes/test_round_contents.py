"""The data of the znodes of groups of programs: round trips, garbage, and readers of consumers' groups."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import DONE, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.round_contents import (
    JOINING,
    Offer,
    OfferedProtocol,
    RoundAssignment,
    RoundLayout,
    RoundMember,
    RoundSettings,
    RoundState,
)

pytestmark = pytest.mark.unit

MEMBER = RoundMember(
    member_id="m",
    joined=3,
    offer=Offer("type", (OfferedProtocol("p", b"\x00\xff"), OfferedProtocol("é", b""))),
    session_timeout_ms=10_000,
    host="h",
    pid=7,
    client="generic",
    started_at_ms=8,
)
STATE = RoundState(
    generation=3,
    state=DONE,
    leader="m",
    protocol="p",
    members=("m", "n"),
    refused={"r": "why"},
    cause="join of n",
    created_at_ms=9,
)
ASSIGNMENT = RoundAssignment(3, "m", b"\x00\xff")

PARSERS: list[Any] = [
    lambda data: RoundMember.parse("m", data, "/path"),
    lambda data: RoundState.parse(data, "/path"),
    lambda data: RoundAssignment.parse(data, "/path"),
    lambda data: RoundSettings.parse(data, "/path"),
]


def test_contents_survive_a_round_trip() -> None:
    """What is encoded is parsed again, also binary metadata, and a round that waits for members."""
    joining = RoundState(generation=3, state=JOINING, leader="m", cause="first round")
    assert RoundMember.parse("m", MEMBER.encode(), "/path") == MEMBER
    assert RoundState.parse(STATE.encode(), "/path") == STATE
    assert RoundState.parse(joining.encode(), "/path") == joining
    assert RoundAssignment.parse(ASSIGNMENT.encode(), "/path") == ASSIGNMENT
    assert RoundSettings.parse(RoundSettings("t").encode(), "/path") == RoundSettings("t")


def test_operators_can_read_the_data() -> None:
    """The names, generations and reasons are plain JSON; bytes are base64."""
    assert json.loads(MEMBER.encode())["protocols"] == [["p", "AP8="], ["é", ""]]
    assert json.loads(STATE.encode()) == {
        "version": 2,
        "generation": 3,
        "state": "done",
        "leader": "m",
        "protocol": "p",
        "members": ["m", "n"],
        "refused": {"r": "why"},
        "cause": "join of n",
        "created_at": 9,
    }
    assert json.loads(ASSIGNMENT.encode()) == {"version": 2, "generation": 3, "for": "m", "assignment": "AP8="}
    assert json.loads(RoundSettings("t").encode()) == {"version": 2, "protocol_type": "t"}


@pytest.mark.parametrize("data", [MEMBER.encode(), STATE.encode(), ASSIGNMENT.encode(), RoundSettings("t").encode()])
@pytest.mark.parametrize(
    "parse",
    [
        lambda data: MemberInfo.parse("m", data, "/path"),
        lambda data: GroupState.parse(data, "/path"),
        lambda data: MemberAssignment.parse(data, "/path"),
    ],
)
def test_consumers_read_the_data_as_unknown(parse: Any, data: bytes) -> None:
    """A consumer takes no znode of a group of programs for one of its own."""
    with pytest.raises(ProtocolError, match="/path"):
        parse(data)


@pytest.mark.parametrize(
    "data",
    [
        MemberInfo(member_id="m", session_timeout_ms=1, subscription=("t",)).encode(),
        MemberAssignment(1, "m", frozenset()).encode(),
        b'{"version":1,"generation":1,"state":"done","leader":"m","members":[],"protocol_type":"t"}',
        b'{"version":3,"generation":1,"state":"done","leader":"m","members":[],"protocol_type":"t"}',
        b'{"version":1,"generation":1,"for":"m","assignment":"","joined":1,"protocols":[],"protocol_type":"t"}',
    ],
)
@pytest.mark.parametrize("parse", PARSERS)
def test_programs_read_the_data_of_other_versions_as_unknown(parse: Any, data: bytes) -> None:
    """A program takes no znode of consumers, and none of a later version, for one of its group."""
    with pytest.raises(ProtocolError, match="/path"):
        parse(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": -1},
        {"generation": True},
        {"generation": "1"},
        {"joined": -1},
        {"joined": None},
        {"protocols": {}},
        {"protocols": [["p"]]},
        {"protocols": [[1, ""]]},
        {"protocols": [["p", 1]]},
        {"protocols": [["p", "not base64"]]},
        {"state": "settled"},
        {"members": "m"},
        {"assignment": None},
        {"assignment": "%%%%"},
        {"for": 1},
        {"leader": None},
        {"protocol_type": 5},
    ],
)
def test_wrong_fields_are_refused(changes: dict[str, Any]) -> None:
    """A field of another type or range makes the znode unreadable; the error names the path."""
    fields = {
        **json.loads(MEMBER.encode()),
        **json.loads(STATE.encode()),
        **json.loads(ASSIGNMENT.encode()),
        **changes,
    }
    errors = [error for parse in PARSERS if (error := refusal(parse, json.dumps(fields).encode()))]
    assert errors
    assert all(error.startswith("/path: ") for error in errors)


def refusal(parse: Any, data: bytes) -> str:
    """Return the error of a parser, or "" if it accepts the data."""
    try:
        parse(data)
    except ProtocolError as error:
        return str(error)
    return ""


def test_kafkas_tools_do_not_see_the_group() -> None:
    """A group of programs creates no znode where Kafka's tools look for consumers."""
    assert all(path.startswith("/kiel-groups") for path in RoundLayout("g").parents)
