"""What a member does about each error code of each request to its coordinator."""

from __future__ import annotations

from itertools import product

import pytest

from kiel_groups.group.member_state import (
    REACTIONS,
    CoordinatorCode,
    GroupRequest,
    Reaction,
    reaction_to,
)
from kiel_groups.wire import error_codes

pytestmark = pytest.mark.unit

C = CoordinatorCode
PROCEED, WAIT, FIND, REJOIN, TAKE_ID, NEW_ID, LOST, FAIL = Reaction

#: The rows are requests, the columns codes; the last two columns are a code that a member does not know, and no answer.
COLUMNS: tuple[int | None, ...] = (*C, 8, 81, None)
TABLE: dict[GroupRequest, tuple[Reaction, ...]] = {
    # -1, 0, 7, 14, 15, 16, 22, 23, 24, 25, 26, 27, 30, 79, 8, 81, no answer
    GroupRequest.FIND: (
        *(WAIT, PROCEED, WAIT, WAIT, WAIT, WAIT),
        *(WAIT, WAIT, FAIL, WAIT, WAIT, WAIT, FAIL, WAIT),
        *(WAIT, WAIT, WAIT),
    ),
    GroupRequest.JOIN: (
        *(WAIT, PROCEED, WAIT, WAIT, FIND, FIND),
        *(NEW_ID, FAIL, FAIL, NEW_ID, FAIL, WAIT, FAIL, TAKE_ID),
        *(FAIL, FAIL, FIND),
    ),
    GroupRequest.SYNC: (
        *(WAIT, PROCEED, WAIT, WAIT, FIND, FIND),
        *(NEW_ID, WAIT, FAIL, NEW_ID, WAIT, REJOIN, FAIL, WAIT),
        *(WAIT, WAIT, FIND),
    ),
    GroupRequest.HEARTBEAT: (
        *(FIND, PROCEED, FIND, PROCEED, FIND, FIND),
        *(LOST, FIND, FAIL, LOST, FIND, REJOIN, FAIL, FIND),
        *(FIND, FIND, FIND),
    ),
    GroupRequest.COMMIT: (
        *(PROCEED, PROCEED, FIND, PROCEED, FIND, FIND),
        *(LOST, PROCEED, FAIL, LOST, PROCEED, REJOIN, FAIL, PROCEED),
        *(PROCEED, PROCEED, FIND),
    ),
    GroupRequest.FETCH: (
        *(PROCEED, PROCEED, PROCEED, PROCEED, FIND, FIND),
        *(LOST, PROCEED, FAIL, LOST, PROCEED, PROCEED, FAIL, PROCEED),
        *(PROCEED, PROCEED, FIND),
    ),
}


def test_each_code_of_each_request_has_its_reaction() -> None:
    """A member reacts to each code of each request, to an unknown code, and to no answer, as the table says."""
    found = {request: tuple(reaction_to(request, code) for code in COLUMNS) for request in GroupRequest}
    assert found == TABLE


def test_every_request_has_reactions() -> None:
    """No request is without a row, so that ``reaction_to`` is total."""
    assert set(REACTIONS) == set(GroupRequest)
    for request, code in product(GroupRequest, (*range(-1, 130), None)):
        assert isinstance(reaction_to(request, code), Reaction)


@pytest.mark.parametrize("code", CoordinatorCode, ids=lambda code: code.name)
def test_the_numbers_are_those_of_the_wire(code: CoordinatorCode) -> None:
    """A code of the pure package and the wire's code of the same number mean the same."""
    named = {
        C.LOADING: error_codes.OFFSETS_LOAD_IN_PROGRESS,
        C.NOT_AVAILABLE: error_codes.CONSUMER_COORDINATOR_NOT_AVAILABLE,
        C.NOT_COORDINATOR: error_codes.NOT_COORDINATOR_FOR_CONSUMER,
        C.INCONSISTENT_PROTOCOL: error_codes.INCONSISTENT_GROUP_PROTOCOL,
        C.INVALID_GROUP: error_codes.INVALID_GROUP_ID,
        C.UNKNOWN_MEMBER: error_codes.UNKNOWN_MEMBER_ID,
    }
    wire = named.get(code) or getattr(error_codes, code.name)
    assert wire.number == code
    assert error_codes.error_code(code) is wire
