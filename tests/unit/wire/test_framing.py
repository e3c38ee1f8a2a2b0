"""The frames of responses: their sizes, and their correlation ids."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.wire.framing import decode_size, split_response
from tests.helpers.reference_codec import int32

pytestmark = pytest.mark.unit


def test_a_response_size_within_the_limits_is_accepted() -> None:
    """The smallest size is that of a correlation id, the largest one the limit."""
    assert decode_size(int32(4), 100) == 4
    assert decode_size(int32(100), 100) == 100


@pytest.mark.parametrize("header", [int32(101), int32(3), int32(-1), b"HTTP"])
def test_an_invalid_response_size_is_refused(header: bytes) -> None:
    """Negative and enormous sizes are refused, and the answers of a server that is no broker."""
    with pytest.raises(ProtocolError):
        decode_size(header, 100)


def test_response_splits_into_correlation_id_and_payload() -> None:
    """The payload is all bytes after the correlation id."""
    assert split_response(int32(-5) + b"rest") == (-5, b"rest")
    assert split_response(int32(1)) == (1, b"")
    with pytest.raises(ProtocolError, match="no room for its correlation id"):
        split_response(b"\0\0\0")
