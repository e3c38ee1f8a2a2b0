"""Parsers of the znodes of groups of programs, with generated data."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.round_contents import RoundAssignment, RoundMember, RoundSettings, RoundState

pytestmark = pytest.mark.property

NAMES = (
    "version",
    "joined",
    "protocol_type",
    "protocols",
    "generation",
    "state",
    "leader",
    "members",
    "refused",
    "for",
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.text(max_size=5))
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES).map(lambda fields: json.dumps({"version": 2, **fields}))


@given(st.binary(max_size=50) | OBJECTS.map(str.encode))
def test_garbage_is_refused(data: bytes) -> None:
    """Whatever the data is, it is parsed, or refused with ``ProtocolError``; what is parsed survives a round trip."""
    with contextlib.suppress(ProtocolError):
        member = RoundMember.parse("m", data, "path")
        assert RoundMember.parse("m", member.encode(), "path") == member
    with contextlib.suppress(ProtocolError):
        state = RoundState.parse(data, "path")
        assert RoundState.parse(state.encode(), "path") == state
    with contextlib.suppress(ProtocolError):
        assignment = RoundAssignment.parse(data, "path")
        assert RoundAssignment.parse(assignment.encode(), "path") == assignment
    with contextlib.suppress(ProtocolError):
        settings = RoundSettings.parse(data, "path")
        assert RoundSettings.parse(settings.encode(), "path") == settings
