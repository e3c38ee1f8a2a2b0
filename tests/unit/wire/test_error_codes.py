"""The error codes of brokers."""

from __future__ import annotations

import re

import pytest

from kiel_groups.errors import BrokerError, OffsetOutOfRangeError, RequestTimeoutError, RetriableBrokerError
from kiel_groups.wire import error_codes
from kiel_groups.wire.error_codes import ErrorCode, error_code

pytestmark = pytest.mark.unit

KNOWN = range(-1, 134)
ALL = [error_code(number) for number in KNOWN]
#: The codes with a constant: those that a module tests for.
CONSTANTS = [value for value in vars(error_codes).values() if isinstance(value, ErrorCode)]

#: Another try may help.
RETRIABLE = {-1, 2, 3, 5, 6, 7, 8, 9, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 88, 89}
RETRIABLE |= {100, 103, 106, 122, 123, 133}
#: Another try does not help, and whether the broker has done what was asked is unknown.
UNKNOWN = {11, 13, 77, 96, 107, 108, 120}


@pytest.mark.parametrize("code", ALL, ids=str)
def test_each_code_is_retriable_final_or_unknown(code: ErrorCode) -> None:
    """Each code up to Kafka 4.1 has a name and a hint. It is retriable, or final, or leaves the outcome unknown."""
    assert re.fullmatch("[A-Z][A-Z_]+", code.name)
    assert not code.name.startswith("ERROR")
    assert code.hint
    assert code.retriable == (code.number in RETRIABLE)
    if code.number != 0:
        final = code.number not in RETRIABLE | UNKNOWN
        # A record that is refused by one of these two may be stored by another try; none of its tries has stored it.
        assert code.refuses == (final or code.number in (2, 19))


def test_names_and_numbers_are_unique() -> None:
    """Each number has its own name, and the constants are what decoders return."""
    assert [code.number for code in ALL] == list(KNOWN)
    assert len({code.name for code in ALL}) == len(KNOWN)
    for code in CONSTANTS:
        assert getattr(error_codes, code.name) is code


def test_members_rejoin_instead_of_repeating_a_request() -> None:
    """After 22, 25 and 27, the member has to rejoin before it repeats the request, and the hint says so."""
    for code in (error_codes.ILLEGAL_GENERATION, error_codes.REBALANCE_IN_PROGRESS):
        assert "has to rejoin" in code.hint
    assert "has to join anew" in error_codes.UNKNOWN_MEMBER_ID.hint


@pytest.mark.parametrize("number", [134, -2, 32_767])
def test_unknown_number_is_a_value_too(number: int) -> None:
    """The code of a newer broker is named after its number, and is not retried."""
    code = error_code(number)
    assert (code.number, code.name, code.retriable) == (number, f"ERROR_{number}", False)
    assert code == error_code(number)


@pytest.mark.parametrize("code", [*CONSTANTS, error_code(134)], ids=str)
def test_the_exception_of_a_code_has_its_hint(code: ErrorCode) -> None:
    """The exception of a code has a text with the place, the error and a hint. It says whether a retry may help."""
    error = code.exception("fetch of clicks:3")
    assert isinstance(error, BrokerError)
    assert error.code == code.number
    assert error.retriable == code.retriable
    assert str(error) == f"fetch of clicks:3: {code.name} ({code.number}): {code.hint}"


def test_codes_with_a_class_of_their_own() -> None:
    """Some codes have an exception class of their own, by which callers distinguish them."""
    assert type(error_codes.OFFSET_OUT_OF_RANGE.exception("")) is OffsetOutOfRangeError
    assert type(error_codes.REQUEST_TIMED_OUT.exception("")) is RequestTimeoutError
    assert type(error_codes.LEADER_NOT_AVAILABLE.exception("")) is RetriableBrokerError
    assert type(error_codes.INVALID_TOPIC.exception("")) is BrokerError
