"""
The compiled readers return what messages hold. For invalid runs they raise an exception, and never read outside of
their buffers.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.model import Record
from kiel_groups.wire.message_sets import decoder
from tests.helpers.message_sets import PLAIN
from tests.helpers.reference_codec import encode, int32, int64, message, raw_message, wrapper

COMPILED = pytest.mark.skipif(not decoder.COMPILED, reason="the package was installed without a C compiler")
pytestmark = [pytest.mark.unit, COMPILED]
if decoder.COMPILED:
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


def test_a_record_is_a_tuple() -> None:
    """The class of a record must be a tuple's, because objects of other types have no memory for the fields."""
    for kind in (dict, int, object, list):
        with pytest.raises(TypeError, match="a type of tuple"):
            _messages.records(((DATA, 0, len(DATA)),), LOWEST, HIGHEST, kind, "t", 0)  # type: ignore[arg-type]


def test_the_garbage_collector_skips_records() -> None:
    """
    The garbage collector does not visit records: numbers, bytes and text cannot be part of a cycle. For thousands of
    records in memory, its visits took an eighth of the time of ``getmany()``.
    """
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
    """The decoder leaks no memory: five thousand results and errors need no more than the first ones."""
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
        for _ in range(5_000):
            once()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One leaked object per round would be at least 150,000 bytes; Python itself uses the rest.
    assert after - before < 100_000
