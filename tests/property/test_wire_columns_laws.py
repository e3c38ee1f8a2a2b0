"""Columns compared with records, and the compiled decoder with unchecked bytes."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.errors import ProtocolError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets import decoder
from kiel_groups.wire.message_sets.columns import BinaryColumn
from kiel_groups.wire.message_sets.decoder import decode_columns
from kiel_groups.wire.message_sets.message_layout import PartialMessage
from tests.helpers.examples import examples
from tests.helpers.message_sets import (
    WAYS,
    decode_message_set,
    garbage_with_crc,
    hostile_lengths,
    message_sets,
    mutated,
    reading,
)

pytestmark = pytest.mark.property

SOURCE = TopicPartition("t", 0)
LIMIT = 1 << 20

#: Message sets of every kind, and bounds within and far beyond their offsets.
any_set = message_sets() | mutated() | garbage_with_crc | hostile_lengths | st.binary(max_size=200)
bounds = st.integers(0, 60) | st.integers(0, 1 << 44)


def binary_column(values: list[bytes | None]) -> BinaryColumn:
    """Return the values in Arrow's layout, assembled one by one."""
    ends, data = array("i", [0]), b""
    for value in values:
        data += value or b""
        ends.append(len(data))
    nulls = values.count(None)
    bits = [
        sum((values[row] is not None) << row - at for row in range(at, min(at + 8, len(values))))
        for at in range(0, len(values), 8)
    ]
    return BinaryColumn(data, ends.tobytes(), bytes(bits) if nulls else None, nulls)


def outcome(data: bytes, position: int, end: int | None) -> object:
    """Return the decoded columns, or the class of the error."""
    try:
        columns = decode_columns(data, SOURCE, position, max_decompressed_bytes=LIMIT, end=end)
    except (PartialMessage, ProtocolError) as error:
        return type(error)
    return columns.offsets, columns.keys, columns.values, columns.next_offset


def expected(data: bytes, position: int, end: int | None) -> object:
    """Return the columns computed from the decoded records, or the class of the error."""
    try:
        with reading("uncompiled"):
            found = decode_message_set(data, SOURCE, position, max_decompressed_bytes=LIMIT)
    except (PartialMessage, ProtocolError) as error:
        return type(error)
    wanted = [record for record in found if end is None or record.offset < end]
    following = end if len(wanted) < len(found) else wanted[-1].offset + 1 if wanted else position
    assert following is not None
    offsets = array("q", [record.offset for record in wanted]).tobytes()
    keys, values = ([record[field] for record in wanted] for field in (3, 4))
    return offsets, binary_column(keys), binary_column(values), following


@settings(max_examples=examples(500))
@given(any_set, bounds, st.none() | bounds)
def test_columns_equal_the_records(data: bytes, position: int, length: int | None) -> None:
    """
    Columns equal the records of the same message set: rows, errors and the next offset are the same for every decoder.
    """
    end = None if length is None else position + length
    wanted = expected(data, position, end)
    for way in WAYS:
        with reading(way):
            assert outcome(data, position, end) == wanted, way


@given(message_sets(), st.data())
def test_columns_of_truncated_sets_equal_the_records(data: bytes, draw: st.DataObject) -> None:
    """
    Columns of a truncated set equal its records: the incomplete message at the end is dropped, or more bytes are
    needed.
    """
    cut = data[: draw.draw(st.integers(0, len(data)))]
    wanted = expected(cut, 0, None)
    for way in WAYS:
        with reading(way):
            assert outcome(cut, 0, None) == wanted, way


@pytest.mark.skipif(not decoder.COMPILED, reason="the package was installed without a C compiler")
@settings(max_examples=examples(500))
@given(any_set, st.integers(-9, 300), st.integers(-9, 300), bounds, bounds)
def test_unchecked_runs_are_decoded_or_refused(data: bytes, start: int, stop: int, first: int, last: int) -> None:
    """The compiled readers return rows for any bytes and bounds, or raise a ValueError. Columns and records agree."""
    from kiel_groups.wire import _messages  # exists only if it was compiled

    given_runs = ((data, start, stop), (data, 0, len(data)))
    try:
        offsets, keys, values = _messages.columns(given_runs, first, last)
    except ValueError:
        with pytest.raises(ValueError, match="a run"):
            _messages.records(given_runs, first, last, Record, "t", 0)
        with pytest.raises(ValueError, match="a run"):
            _messages.values(given_runs, first, last)
        return
    found = _messages.records(given_runs, first, last, Record, "t", 0)
    assert array("q", offsets).tolist() == [record.offset for record in found]
    assert BinaryColumn(*keys) == binary_column([record.key for record in found])
    assert BinaryColumn(*values) == binary_column([record.value for record in found])
    plain_values, plain_keys, plain_offsets = _messages.values(given_runs, first, last)
    assert plain_values == [record.value for record in found]
    assert (plain_keys or [None] * len(found)) == [record.key for record in found]
    if plain_offsets is None and found:
        plain_offsets = list(range(found[0].offset, found[-1].offset + 1))
    assert (plain_offsets or []) == [record.offset for record in found]
