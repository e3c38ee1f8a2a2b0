"""For invalid arguments, the compiled module raises an exception, and never reads outside its buffers."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.model import Record
from kiel_groups.wire.message_sets import compiled_decoder
from tests.helpers.message_sets import PLAIN
from tests.helpers.reference_codec import encode, int32, int64, message, packed, raw_message, wrapper

COMPILED = pytest.mark.skipif(not compiled_decoder.COMPILED, reason="the package was installed without a C compiler")
pytestmark = [pytest.mark.unit, COMPILED]
if compiled_decoder.COMPILED:
    from kiel_groups.wire import _messages

DATA = encode(PLAIN)
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


def columns(given: Any, first: int = LOWEST, last: int = HIGHEST) -> Any:
    return _messages.columns(given, first, last)


def records(given: Any, first: int = LOWEST, last: int = HIGHEST) -> Any:
    return _messages.records(given, first, last, Record, "t", 0)


def values(given: Any, first: int = LOWEST, last: int = HIGHEST) -> Any:
    return _messages.values(given, first, last)


def span(given: Any, first: int = LOWEST, last: int = HIGHEST) -> Any:
    return _messages.span(given, first, last)


READERS = pytest.mark.parametrize("read", [columns, records, values, span])

INVALID_RUNS = {
    "stop beyond the bytes": (DATA, 0, len(DATA) + 1),
    "stop far beyond the bytes": (DATA, 0, sys.maxsize),
    "start before the bytes": (DATA, -1, len(DATA)),
    "start far before the bytes": (DATA, -sys.maxsize - 1, len(DATA)),
    "start after stop": (DATA, 27, 26),
    "start inside a message": (DATA, 1, len(DATA)),
    "stop inside a message": (DATA, 0, len(DATA) - 1),
    "a wrapper": (wrapper(DATA, 12), 0, len(wrapper(DATA, 12))),
    "another magic": (message(1, None, b"v", magic=1), 0, len(message(1, None, b"v"))),
    "a size beyond the bytes": (int64(1) + int32(2**31 - 1) + bytes(60), 0, 72),
    "a negative size": (int64(1) + int32(-5) + bytes(60), 0, 72),
    "a key beyond its message": (raw_message(1, b"\0\0" + int32(2**31 - 1) + bytes(8)) + DATA, 0, 30),
    "a value beyond its message": (raw_message(1, b"\0\0" + int32(-1) + int32(9) + bytes(8)) + DATA, 0, 34),
    "a negative value": (raw_message(1, b"\0\0" + int32(-1) + int32(-2) + bytes(8)), 0, 34),
    "no room for the value's length": (raw_message(1, b"\0\0" + int32(3) + bytes(4)) + DATA, 0, 26),
}


@READERS
@pytest.mark.parametrize("run", INVALID_RUNS.values(), ids=INVALID_RUNS)
def test_invalid_runs_are_refused(read: Callable[[Any], Any], run: tuple[bytes, int, int]) -> None:
    """The compiled readers refuse invalid runs: they check the bounds themselves, and do not rely on ``check()``."""
    with pytest.raises(ValueError, match="a run"):
        read((run,))
    with pytest.raises(ValueError, match="a run"):
        read(((DATA, 0, len(DATA)), run))


@READERS
@pytest.mark.parametrize(
    "given", [None, [], [(DATA, 0, 1)], (None,), ((),), ((DATA,),), (("text", 0, 1),), ((DATA, 0.5, 1),), (DATA,)]
)
def test_arguments_of_other_types_are_refused(read: Callable[[Any], Any], given: object) -> None:
    """The compiled readers raise a TypeError for arguments of other types."""
    with pytest.raises(TypeError):
        read(given)


@READERS
def test_without_runs_there_are_no_messages(read: Callable[[Any], Any]) -> None:
    """Neither no runs nor empty runs have messages, wherever they start."""
    assert read(()) == read(((DATA, 0, 0), (b"", 0, 0), (DATA, len(DATA), len(DATA))))


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


WRAPPER = wrapper(DATA, 12, codec="snappy")


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


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [(LOWEST, HIGHEST, (4, 7, 12)), (8, 9, (2, 8, 9)), (10, HIGHEST, (1, 12, 12)), (10, 11, (0, -1, -1))],
)
def test_a_span_is_counted(first: int, last: int, found: tuple[int, int, int]) -> None:
    """The number of messages within the bounds, and their first and last offset."""
    assert span(((DATA, 0, len(DATA)),), first, last) == found


@pytest.mark.parametrize(
    ("messages", "keys", "offsets"),
    [
        ([(7, None), (8, None), (9, None)], None, None),
        ([(7, None), (9, None), (10, None)], None, [7, 9, 10]),
        ([(7, None), (8, None), (11, None)], None, [7, 8, 11]),
        ([(7, None), (8, b""), (9, None)], [None, b"", None], None),
        ([(7, b"k"), (8, None)], [b"k", None], None),
        ([(5, None), (7, b"k")], [None, b"k"], [5, 7]),
        ([(-2, None), (-1, None), (0, None)], None, None),
        ([(HIGHEST, None), (LOWEST, None)], None, [HIGHEST, LOWEST]),
        ([], None, None),
    ],
)
def test_values_have_keys_and_offsets_only_where_these_say_more(
    messages: list[tuple[int, bytes | None]], keys: object, offsets: object
) -> None:
    """Without keys there is no list of keys. If each offset follows the one before, there is no list of offsets."""
    data = encode([(offset, key, b"%d" % offset) for offset, key in messages])
    assert values(((data, 0, len(data)),)) == ([b"%d" % offset for offset, _ in messages], keys, offsets)


def test_the_garbage_collector_does_not_visit_records() -> None:
    """They cannot be part of a cycle, and a program may keep very many of them."""
    assert not any(map(gc.is_tracked, records(((DATA, 0, len(DATA)),))))


def test_a_record_is_a_tuple() -> None:
    """The class of a record must be a tuple's, because objects of other types have no memory for the fields."""
    for kind in (dict, int, object, list):
        with pytest.raises(TypeError, match="a type of tuple"):
            _messages.records(((DATA, 0, len(DATA)),), LOWEST, HIGHEST, kind, "t", 0)  # type: ignore[arg-type]


def test_the_garbage_collector_skips_records() -> None:
    """Buffered records cost the garbage collector nothing: numbers, bytes and text cannot be part of a cycle."""
    found = records(((DATA, 0, len(DATA)),))
    assert len(found) == 4
    assert not any(map(gc.is_tracked, found))
    assert gc.is_tracked(Record(*found[0])), "others may have any values"
    assert gc.is_tracked(found[0]._replace(value=[]))


class RecordWithAttributes(Record):
    """A record that can refer to itself."""


@pytest.mark.parametrize(
    ("kind", "topic", "partition"),
    [(RecordWithAttributes, "t", 0), (Record, ["t"], 0), (Record, "t", [0])],
    ids=["attributes", "topic", "partition"],
)
def test_the_garbage_collector_sees_records_of_other_contents(kind: Any, topic: Any, partition: Any) -> None:
    """A record that could be part of a reference cycle can be collected."""
    found = _messages.records(((DATA, 0, len(DATA)),), LOWEST, HIGHEST, kind, topic, partition)
    assert all(map(gc.is_tracked, found))


def test_bytes_that_change_after_the_check_are_read_within_their_bounds() -> None:
    """
    Bytes that change after the check are read within their bounds. The owner of a buffer may change it, so each pass
    reads the lengths again.
    """
    data = bytearray(DATA)
    stop, _, _ = _messages.check(data, 0, len(data), -1, HIGHEST)
    data[8:12] = int32(1 << 30)
    for read in (columns, records, values, span):
        with pytest.raises(ValueError, match="a run"):
            read(((data, 0, stop),))


@READERS
def test_buffers_are_released(read: Callable[[Any], Any]) -> None:
    """Buffers are released after a result and after an error, so a bytearray can grow again."""
    data = bytearray(DATA)
    read(((data, 0, len(data)), (data, 0, len(data))))
    with pytest.raises(ValueError, match="a run"):
        read(((data, 0, len(data)), (data, 1, len(data))))
    _messages.check(data, 0, len(data), -1, HIGHEST)
    data += b"more"


@READERS
def test_no_memory_is_leaked(read: Callable[[Any], Any]) -> None:
    """The decoder leaks no memory: a thousand results and errors need no more than the first ones."""
    large = encode([(n, b"k" * 100, b"v" * 1000 if n % 2 else None) for n in range(10)])
    whole, cut = ((large, 0, len(large)),), ((large, 0, len(large)), (large, 0, len(large) - 1))

    def once() -> None:
        read(whole)
        with contextlib.suppress(ValueError):
            read(cut)
        _messages.check(large, 0, len(large), -1, HIGHEST)

    once()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1_000):
            once()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One leaked object per round would be at least 30,000 bytes; Python itself uses the rest.
    assert after - before < 20_000


def test_records_are_left_to_reference_counts() -> None:
    """
    The garbage collector does not visit records: they cannot be part of a cycle. For thousands of records in memory,
    its visits took an eighth of the time of ``getmany()``.
    """
    found = records(((DATA, 0, len(DATA)),))
    assert found
    assert not any(map(gc.is_tracked, found))
