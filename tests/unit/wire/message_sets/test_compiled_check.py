"""The compiled module checks messages to their last byte, and finds wrappers, within the bytes that it is given."""

from __future__ import annotations

import random
import sys

import pytest

from kiel_groups.wire.message_sets import decoder
from tests.helpers.message_sets import PLAIN
from tests.helpers.reference_codec import encode, int32, message, packed, wrapper

COMPILED = pytest.mark.skipif(not decoder.COMPILED, reason="the package was installed without a C compiler")
pytestmark = [pytest.mark.unit, COMPILED]
if decoder.COMPILED:
    from kiel_groups.wire import _messages

DATA = encode(PLAIN)
WRAPPER = wrapper(DATA, 12, codec="snappy")
HIGHEST = (1 << 63) - 1


@pytest.mark.parametrize("start", [-1, len(DATA) + 1, sys.maxsize, -sys.maxsize - 1])
def test_a_check_is_of_bytes_that_exist(start: int) -> None:
    """A check must start within the bytes or at their end, where nothing is left to check."""
    assert _messages.check(DATA, len(DATA), len(DATA), -1, HIGHEST) == (len(DATA), -1, _messages.STOPPED)
    assert _messages.wrapper(DATA, len(DATA), -1) is None
    with pytest.raises(ValueError, match=f"from {start} to"):
        _messages.check(DATA, start, len(DATA), -1, HIGHEST)
    with pytest.raises(ValueError, match="start is"):
        _messages.wrapper(DATA, start, -1)


@pytest.mark.parametrize(("start", "stop"), [(0, len(DATA) + 1), (5, 4), (0, sys.maxsize), (0, -1)])
def test_a_check_stops_within_the_bytes(start: int, stop: int) -> None:
    """A check must stop within the bytes, and not before its start."""
    with pytest.raises(ValueError, match=f"from {start} to {stop}"):
        _messages.check(DATA, start, stop, -1, HIGHEST)


def test_a_check_reads_nothing_after_its_stop() -> None:
    """A message that is whole in the bytes, but not before the stop of a check, is not checked."""
    one, two = message(1, None, b"one"), message(2, None, b"two")
    assert _messages.check(one + two, 0, len(one + two) - 1, -1, HIGHEST) == (len(one), 1, _messages.STOPPED)
    assert _messages.check(one + two, 0, len(one + two), -1, HIGHEST) == (len(one + two), 2, _messages.STOPPED)


@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_a_wrapper_is_found_where_it_starts(key: bytes | None) -> None:
    """A wrapper is found with its end, offset and codec, and where its value starts."""
    value = packed("snappy", DATA)
    whole = message(12, key, value, attributes=2)
    place = _messages.wrapper(DATA + whole + DATA, len(DATA), 11)
    assert place == (len(DATA + whole), 12, 2, len(whole) - len(value))


@pytest.mark.parametrize(
    ("data", "last_offset"),
    [
        pytest.param(WRAPPER, 12, id="an offset that does not ascend"),
        pytest.param(WRAPPER[:-1], 11, id="an unfinished wrapper"),
        pytest.param(DATA, -1, id="a plain message"),
        pytest.param(WRAPPER[:16] + b"\1" + WRAPPER[17:], 11, id="magic 1"),
        pytest.param(WRAPPER[:25], 11, id="an unfinished head"),
        pytest.param(WRAPPER[:8] + int32(13) + WRAPPER[12:], 11, id="a size below the least"),
        pytest.param(b"", -1, id="nothing"),
    ],
)
def test_anything_but_a_whole_wrapper_is_no_wrapper(data: bytes, last_offset: int) -> None:
    """Only a whole wrapper of magic 0 with a higher offset is a wrapper."""
    assert _messages.wrapper(data, 0, last_offset) is None


@pytest.mark.parametrize("lengths", [(-2, 5), (1 << 30, 0), (-1, -1), (-1, 3), (-1, 1 << 30), (3, 0)])
def test_a_wrapper_whose_lengths_do_not_fill_it_has_no_value(lengths: tuple[int, int]) -> None:
    """A wrapper has a value only if the lengths of key and value fill it: the caller says what is wrong."""
    broken = WRAPPER[:18] + int32(lengths[0]) + int32(lengths[1]) + WRAPPER[26:]
    assert _messages.wrapper(broken, 0, -1) == (len(broken), 12, 2, -1)


@pytest.mark.parametrize("size", [0, 1_000, 256 << 10, 1 << 20])
def test_a_crc_matches_the_whole_message(size: int) -> None:
    """A changed bit anywhere behind the CRC, or in it, is found in messages of any size, with and without the lock."""
    whole = message(1, None, random.Random(size).randbytes(size))
    assert _messages.crc_matches(whole)
    assert _messages.crc_matches(memoryview(b"..." + whole)[3:])
    for at in (12, 15, 16, 20, len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[max(at, 12)] ^= 1
        assert not _messages.crc_matches(damaged), at


@pytest.mark.parametrize("size", range(26))
def test_bytes_that_are_shorter_than_any_message_match_no_crc(size: int) -> None:
    """Bytes that are shorter than any message match no CRC."""
    assert not _messages.crc_matches(message(1, None, b"")[:size])


@pytest.mark.parametrize("size", [*range(300), 1_000, 1_023, 1_024, 10_000])
def test_any_length_is_checked_to_its_last_byte(size: int) -> None:
    """
    Messages of any length are checked to their last byte. The CRC of short messages is computed by tables, and that of
    long ones by folding.
    """
    whole = message(1, None, random.Random(size).randbytes(size))
    assert _messages.check(whole, 0, len(whole), -1, HIGHEST) == (len(whole), 1, _messages.STOPPED)
    for at in range(len(whole) - size, len(whole), max(1, size // 40)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << size % 8
        assert _messages.check(damaged, 0, len(damaged), -1, HIGHEST) == (0, -1, _messages.STOPPED_BY_CRC), at
