"""Message sets as columns: their layout, their limits, and invalid sets."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

import pytest

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets import decoder as decoder_module
from kiel_groups.wire.message_sets.columns import BinaryColumn, Columns
from kiel_groups.wire.message_sets.decoder import decode_columns
from kiel_groups.wire.message_sets.message_layout import PartialMessage
from tests.helpers.message_sets import PLAIN, REFUSED, WAYS, reading
from tests.helpers.reference_codec import encode, message, wrapper

pytestmark = pytest.mark.unit

SOURCE = TopicPartition("clicks", 3)
SETS = {"plain": encode(PLAIN), "wrapped": wrapper(encode(PLAIN), 12)}


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run each test with each implementation. All of them decode the same columns."""
    with reading(request.param):
        yield request.param


def read(data: bytes, position: int = 0, end: int | None = None, limit: int = 1 << 20) -> Columns:
    return decode_columns(data, SOURCE, position, max_decompressed_bytes=limit, end=end)


def rows(columns: Columns) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of each row, read from Arrow's layout."""
    offsets = array("q", columns.offsets)
    assert len(columns) == len(offsets)
    return list(zip(offsets, values(columns.keys), values(columns.values), strict=True))


def values(column: BinaryColumn) -> list[bytes | None]:
    ends = array("i", column.ends)
    assert (ends[0], ends[-1]) == (0, len(column.data))
    count = len(ends) - 1
    bits = column.validity if column.validity is not None else b"\xff" * (count // 8 + 1)
    found = [column.data[ends[row] : ends[row + 1]] if bits[row // 8] >> row % 8 & 1 else None for row in range(count)]
    assert found.count(None) == column.null_count
    return found


def test_columns_have_the_layout_of_arrow() -> None:
    """
    Columns have the layout of Arrow: offsets are int64, ends are int32 and start at 0, and the lowest validity bit
    comes first. Without nulls, there are no validity bits.
    """
    columns = read(encode([(7, b"k", b"seven"), (8, b"", None), (12, b"key", b"")]))
    assert columns.offsets == struct.pack("=3q", 7, 8, 12)
    assert columns.keys == BinaryColumn(b"kkey", struct.pack("=4i", 0, 1, 1, 4), None, 0)
    assert columns.values == BinaryColumn(b"seven", struct.pack("=4i", 0, 5, 5, 5), b"\x05", 1)
    assert columns.next_offset == 13


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_bits_of_nulls_fill_their_bytes(count: int) -> None:
    """The validity bits have one bit for each row, rounded up to bytes. Bits after the last row are 0."""
    sent = [(n, b"" if n % 2 else None, None if n % 3 == 0 else b"%d" % n) for n in range(count)]
    columns = read(encode(sent))
    assert rows(columns) == sent
    assert columns.values.validity is not None
    assert len(columns.values.validity) == (count + 7) // 8
    assert columns.values.validity[-1] >> ((count - 1) % 8 + 1) == 0


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("position", range(6, 14))
@pytest.mark.parametrize("end", [*range(6, 15), None])
def test_rows_are_limited_by_position_and_end(kind: str, position: int, end: int | None) -> None:
    """
    Rows start at the position and stop before the end. A message at or after the end proves that all messages before it
    were read.
    """
    end = end if end is None else max(position, end)
    wanted = [one for one in PLAIN if position <= one[0] and (end is None or one[0] < end)]
    columns = read(SETS[kind], position, end)
    assert rows(columns) == wanted
    assert columns.next_offset == max(position, 13 if end is None else min(13, end))


def test_data_after_the_end_is_not_read() -> None:
    """Data after the end is not read, so garbage or an unfinished message there is no error."""
    for tail in (b"garbage" * 9, message(9, None, b"unfinished")[:-1], wrapper(encode(PLAIN), 12)):
        columns = read(encode(PLAIN[:2]) + tail, 0, 8)
        assert rows(columns) == PLAIN[:1]
        assert columns.next_offset == 8


def test_an_unfinished_message_does_not_prove_the_end() -> None:
    """
    An unfinished message does not prove that the end was reached, because its offset may be garbage. Only a complete
    message with a valid CRC does.
    """
    with pytest.raises(PartialMessage) as caught:
        read(message(20, None, b"unfinished")[:-1], 5, 10)
    assert caught.value.needed_bytes == len(message(20, None, b"unfinished"))
    with pytest.raises(ProtocolError, match=r"offset 20: .*CRC"):
        read(message(20, None, b"damaged")[:-1] + b"!", 5, 10)


def test_a_gap_up_to_the_end_is_skipped() -> None:
    """If compaction has removed all messages up to the end, there are no rows, and the next offset is the end."""
    columns = read(message(4, None, b"before") + message(20, None, b"behind") + b"rest", 5, 10)
    assert (rows(columns), columns.next_offset) == ([], 10)


def test_older_messages_alone_leave_the_position() -> None:
    """A set of only older messages leaves the position, because they prove nothing about later ones."""
    columns = read(encode(PLAIN), 20, 30)
    assert (rows(columns), columns.next_offset) == ([], 20)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(kind: type) -> None:
    """Any buffer of bytes is read, so the buffer of an answer need not be copied."""
    assert rows(read(kind(SETS["plain"]))) == PLAIN
    assert rows(read(kind(SETS["wrapped"]))) == PLAIN


def test_an_empty_set_makes_empty_columns() -> None:
    """An empty set makes empty columns, which have one end, as Arrow requires."""
    columns = read(b"", 5)
    assert (rows(columns), columns.next_offset) == ([], 5)
    assert columns.keys == BinaryColumn(b"", struct.pack("=i", 0), None, 0)


@pytest.mark.parametrize(("data", "offset", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_sets_are_refused(data: bytes, offset: int, words: str) -> None:
    """
    Messages before the damage of an invalid set are returned first. Then an error of one line has the position and the
    reason.
    """
    with pytest.raises(ProtocolError) as caught:
        read_on(data)
    assert str(caught.value).startswith(f"clicks:3 at offset {offset}: ")
    assert words in str(caught.value)


def read_on(data: bytes) -> None:
    """Read from offset to offset, as successive fetches do."""
    position = 0
    while columns := read(data, position):
        position = columns.next_offset


def test_columns_stay_within_int32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decompressed size of columns is limited, because ends are int32. Messages that fit are returned first."""
    first, second = wrapper(message(0, None, b"v" * 500), 0), wrapper(message(1, None, b"v" * 500), 1)
    monkeypatch.setattr(decoder_module, "_MOST_COLUMN_BYTES", 1000)
    assert [offset for offset, _, _ in rows(read(first + second))] == [0]
    monkeypatch.setattr(decoder_module, "_MOST_COLUMN_BYTES", 500)
    with pytest.raises(MessageTooLargeError, match="clicks:3 at offset 0"):
        read(first + second)
