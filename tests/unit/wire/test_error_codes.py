"""The error codes of brokers."""

from __future__ import annotations

import pytest

from kiel_groups.errors import BrokerError, OffsetOutOfRangeError, RequestTimeoutError, RetriableBrokerError
from kiel_groups.wire import error_codes
from kiel_groups.wire.error_codes import ErrorCode, error_code

pytestmark = pytest.mark.unit

ALL = [error_code(number) for number in range(-1, 21)]
OF_0_9 = [error_code(number) for number in range(21, 32)]
LATER = [error_code(number) for number in (35, 36, 37, 38, 42, 44, 60, 76, 81)]


def test_every_code_is_known_by_name_and_number() -> None:
    """Every error code is a constant of the module, and decoders return these constants."""
    assert [code.number for code in ALL] == list(range(-1, 21))
    assert [code.number for code in OF_0_9] == list(range(21, 32))
    for code in [*ALL, *OF_0_9, *LATER]:
        assert getattr(error_codes, code.name) is code
        assert code.name in error_codes.__all__
        assert code.hint


def test_codes_of_coordinators_and_later_brokers_are_not_retriable() -> None:
    """
    No code of 0.9 or a later release is retriable. After 22, 25 and 27, the member has to rejoin before it repeats the
    request; after the others, the user has to change something.
    """
    assert not any(code.retriable or code.refresh_metadata for code in [*OF_0_9, *LATER])
    for code in (error_codes.ILLEGAL_GENERATION, error_codes.REBALANCE_IN_PROGRESS):
        assert "has to rejoin" in code.hint
    assert "has to join anew" in error_codes.UNKNOWN_MEMBER_ID.hint


@pytest.mark.parametrize("number", [32, 87, -2, 32_767])
def test_unknown_number_is_a_value_too(number: int) -> None:
    """The code of a newer broker is named after its number, and is not retried."""
    code = error_code(number)
    assert (code.number, code.name, code.retriable, code.refresh_metadata) == (number, f"ERROR_{number}", False, False)
    assert code == error_code(number)


def test_temporary_errors_are_retriable() -> None:
    """
    Temporary errors are retriable. After errors about leaders, brokers and unknown topics, the metadata is refreshed,
    too.
    """
    assert {code.number for code in ALL if code.retriable} == {-1, 2, 3, 5, 6, 7, 8, 9, 14, 15, 16, 19, 20}
    assert {code.number for code in ALL if code.refresh_metadata} == {3, 5, 6, 8}


@pytest.mark.parametrize("code", [*ALL, *OF_0_9, *LATER, error_code(87)], ids=str)
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
