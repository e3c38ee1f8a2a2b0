"""Message sets: records that are returned, messages that are skipped, and data that is refused."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
from aiokafka.record.util import calc_crc32c

from kiel_groups.errors import ConfigError, MessageTooLargeError, ProtocolError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets import decoder
from kiel_groups.wire.message_sets.encoder import encode_message_set
from kiel_groups.wire.message_sets.message_layout import DamagedMessage, NoRecords, PartialMessage, offset_and_size_at
from tests.helpers.message_sets import (
    PLAIN,
    REFUSED,
    WAYS,
    WRAPPED,
    decode_message_set,
    filler,
    reading,
    with_flipped_bit,
)
from tests.helpers.reference_codec import Message, decode, encode, int32, int64, message, wrapper
from tests.helpers.reference_compression import NUMBERS

pytestmark = pytest.mark.unit

SOURCE = TopicPartition("clicks", 3)


@pytest.fixture(autouse=True, params=WAYS)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with each implementation. Results and errors are the same."""
    with reading(request.param):
        yield


def read(message_set: bytes | memoryview, position: int = 0, limit: int = 1 << 20) -> list[tuple[object, ...]]:
    """Return offset, key and value of the decoded records."""
    records = decode_message_set(message_set, SOURCE, position, max_decompressed_bytes=limit)
    assert all(type(record) is Record and record.topic_partition == SOURCE for record in records)
    return [record[2:] for record in records]


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_plain_messages_are_read(kind: type) -> None:
    """
    Plain messages are read. Keys and values are bytes or None, an empty value is not null, and offsets may have gaps.
    """
    assert read(kind(encode(PLAIN))) == PLAIN


def test_wrapper_is_unpacked_with_its_own_offsets() -> None:
    """A wrapper is unpacked with the offsets of its messages, which are absolute."""
    assert read(wrapper(encode(PLAIN), 12)) == PLAIN


#: What Kafka 3.9.1 sent for offsets 2, 3 and 4 of a log with a committed transaction (0, 1, its mark 2) and an aborted
#: one (3, its mark 4). After a mark, it sends the next batch twice.
_ABORTED = "0000000000000003000000134b0268100000ffffffff0000000561626f7274"
SENT_AT_2 = bytes.fromhex(2 * _ABORTED + "ffffffffffffffff000000a8" + 155 * "00")
SENT_AT_3 = bytes.fromhex(_ABORTED + "ffffffffffffffff00000079" + 108 * "00")
SENT_AT_4 = bytes.fromhex("ffffffffffffffff0000003d")


def test_filler_is_the_end_of_a_set() -> None:
    """Filler at the end of a set is dropped, whatever its size, as are messages that a broker has repeated."""
    assert read(SENT_AT_2, 2) == read(SENT_AT_3, 3) == [(3, None, b"abort")]
    for size in (1, 11, 12, 25, 26, 61, 200, 1 << 18):
        assert read(encode(PLAIN) + filler(size)) == PLAIN, size
        assert read(wrapper(WRAPPED, 12) + filler(size)) == PLAIN, size


@pytest.mark.parametrize("sent", [SENT_AT_4, filler(200), filler(1 << 18), message(2, None, b"older") + filler(60)])
def test_nothing_but_filler_is_no_damage(sent: bytes) -> None:
    """A set of filler only, or with older messages before it, raises NoRecords: the log has no message there."""
    with pytest.raises(NoRecords, match="clicks:3 at offset 4") as caught:
        read(sent, 4)
    assert caught.value.next_offset == 5


def test_a_whole_message_of_a_negative_offset_is_no_filler() -> None:
    """Filler is the beginning of a message; a whole message of offset -1 is damage."""
    with pytest.raises(ProtocolError, match="does not ascend"):
        read(message(-1, None, b"whole"))


#: What Kafka 1.1.1 sent for offset 4 of a log that ends with the mark of a transaction, as the log has it.
MARK_AT_4 = bytes.fromhex(
    "00000000000000040000004200000000025f215fff003000000000000001a214242a35000001a214242a3500000000000000010000ffffffff"
    "000000012000000008000000000c00000000000000"
)


def emptied_batch(first: int, last: int) -> bytes:
    """Return a batch of magic 2 of which compaction has left the header."""
    checked = struct.pack(">hiqqqhii", 0, last - first, 1, 1, -1, -1, -1, 0)
    return struct.pack(">qiibI", first, 49, 0, 2, calc_crc32c(checked)) + checked


def test_batches_without_records_are_no_damage() -> None:
    """
    Marks of transactions and emptied batches in magic 2 raise NoRecords with the offset after them; so do those in
    front of a batch that is cut off.
    """
    cut_off = int64(12) + int32(20_000) + int32(0) + b"\2" + bytes(60)
    for sent, following in (
        (MARK_AT_4, 5),
        (emptied_batch(0, 4), 5),
        (MARK_AT_4 + emptied_batch(5, 11), 12),
        (MARK_AT_4 + emptied_batch(5, 11) + cut_off, 12),
        (emptied_batch(2, 9) + MARK_AT_4[:-1], 10),
    ):
        with pytest.raises(NoRecords) as caught:
            read(sent, 4)
        assert caught.value.next_offset == following
    assert read(message(3, None, b"before") + MARK_AT_4, 3) == [(3, None, b"before")]


def test_many_batches_without_records_are_passed_in_parts() -> None:
    """Of many marks, the first thousand are passed at once, so that the event loop is not blocked for long."""
    marks = b"".join(int64(offset) + MARK_AT_4[8:] for offset in range(4, 3_004))
    for position in (4, 1_004, 2_004):
        with pytest.raises(NoRecords) as caught:
            read(marks[(position - 4) * len(MARK_AT_4) :], position)
        assert caught.value.next_offset == position + 1_000


@pytest.mark.parametrize("at", [7, 11, 17, 22, 26, 40, 77])
def test_a_damaged_batch_without_records_is_not_passed(at: int) -> None:
    """A mark of a transaction with a damaged bit is refused, or larger than the fetch, but has no next offset."""
    damaged = with_flipped_bit(MARK_AT_4, at)
    if at == 7:
        # No CRC covers the offset, as in messages of magic 0. The fetcher checks it against the high watermark.
        with pytest.raises(NoRecords):
            read(damaged, 4)
        return
    with pytest.raises((PartialMessage, ProtocolError)) as caught:
        read(damaged, 4)
    assert not isinstance(caught.value, NoRecords)


def test_a_batch_with_records_is_not_passed() -> None:
    """The beginning of a record batch says how many bytes it needs; a whole one is refused, since nothing reads it."""
    batch = MARK_AT_4[:17] + struct.pack(">I", calc_crc32c(b"\0\0" + MARK_AT_4[23:])) + b"\0\0" + MARK_AT_4[23:]
    with pytest.raises(PartialMessage) as caught:
        read(batch[:60], 4)
    assert caught.value.needed_bytes == 78
    with pytest.raises(ProtocolError, match="magic 2"):
        read(batch, 4)


def test_plain_messages_and_wrappers_mix() -> None:
    """One set may have plain messages and wrappers, in any order."""
    later = [(20, b"a", b"b"), (21, None, b"c")]
    data = message(1, None, b"one") + wrapper(encode(PLAIN), 12) + message(13, None, b"x") + wrapper(encode(later), 21)
    assert read(data + message(30, None, b"end")) == [
        (1, None, b"one"),
        *PLAIN,
        (13, None, b"x"),
        *later,
        (30, None, b"end"),
    ]


def test_wrapper_may_have_a_key() -> None:
    """A wrapper may have a key, which has no meaning."""
    assert read(wrapper(encode(PLAIN), 12, key=b"whatever")) == PLAIN


@pytest.mark.parametrize("position", range(14))
def test_records_before_the_position_are_skipped(position: int) -> None:
    """Records before the position are skipped. A wrapper, too, may have older records, which were read before."""
    expected = [one for one in PLAIN if one[0] >= position]
    assert read(encode(PLAIN), position) == expected
    assert read(wrapper(encode(PLAIN), 12), position) == expected


def test_wrapper_that_ends_before_the_position_is_not_unpacked() -> None:
    """A wrapper that ends before the position is neither unpacked nor checked, because its content was read before."""
    old = message(5, None, b"no gzip at all", attributes=1)
    assert read(old + message(6, None, b"new"), 6) == [(6, None, b"new")]


@pytest.mark.parametrize("cut", range(1, len(message(12, b"k", b"twelve"))))
def test_unfinished_last_message_is_dropped(cut: int) -> None:
    """An unfinished last message is dropped. A broker truncates the set at ``max_bytes``."""
    assert read(encode(PLAIN)[:-cut]) == PLAIN[:-1]


@pytest.mark.parametrize("data", [message(7, None, b"v" * 100), wrapper(encode(PLAIN), 12)], ids=["plain", "wrapper"])
def test_a_single_unfinished_message_needs_more_bytes(data: bytes) -> None:
    """
    A single unfinished message raises PartialMessage. The exception has the size of the message, if the size field was
    received.
    """
    for end in range(1, len(data)):
        with pytest.raises(PartialMessage, match=r"clicks:3 at offset 7: .* larger max_bytes") as caught:
            read(data[:end], 7)
        assert caught.value.needed_bytes == (len(data) if end >= 12 else None)
        size = f"{len(data)} bytes" if end >= 12 else "more bytes"
        assert f"the message takes {size}, only {end} were fetched" in str(caught.value)


def test_an_unfinished_message_after_older_records_needs_more_bytes() -> None:
    """
    An unfinished message after only older records raises PartialMessage. With an empty result, the fetcher would repeat
    the same request forever.
    """
    new = message(2, None, b"new")[:-1]
    with pytest.raises(PartialMessage, match=f"takes {len(new) + 1} bytes, only {len(new)} were fetched"):
        read(message(1, None, b"old") + new, 2)
    with pytest.raises(PartialMessage, match="takes more bytes, only 5 were fetched"):
        read(message(1, None, b"old") + new[:5], 2)


def test_partial_message_survives_pickling() -> None:
    """PartialMessage keeps its fields when it is pickled, because errors are sent to other processes."""
    with pytest.raises(PartialMessage) as caught:
        read(message(1, None, b"x")[:-1])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.needed_bytes) == (str(caught.value), 27)


def test_empty_set_has_no_records() -> None:
    """An empty set, as a broker sends it if it has no new records, has no records."""
    assert read(b"") == []


@pytest.mark.parametrize(("data", "offset", "words"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_set_is_refused_with_topic_partition_and_offset(data: bytes, offset: int, words: str) -> None:
    """
    An invalid set is refused with one line that has topic, partition and offset, whichever codec has found the damage.
    """
    with pytest.raises(ProtocolError) as caught:
        read_on(data)
    assert str(caught.value).startswith(f"clicks:3 at offset {offset}: ")
    assert words in str(caught.value)
    assert not isinstance(caught.value, MessageTooLargeError)


def read_on(data: bytes) -> None:
    """Read from offset to offset, as successive fetches do."""
    position = 0
    while found := read(data, position):
        position = int(str(found[-1][0])) + 1


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("data", [data for data, _, _ in REFUSED.values()], ids=REFUSED)
def test_messages_before_invalid_data_are_read(data: bytes, packed: bool) -> None:
    """Messages before invalid data are returned. The next fetch starts with the invalid data and fails."""
    head = message(0, b"key", b"value")
    assert read((wrapper(head, 0) if packed else head) + data)[0] == (0, b"key", b"value")


@pytest.mark.parametrize("cut", [1, 4, 8, 9, 20])
def test_truncated_gzip_is_refused(cut: int) -> None:
    """A truncated gzip stream is refused, even if only its trailer is incomplete."""
    packed = zlib.compress(WRAPPED, 6, 31)
    with pytest.raises(ProtocolError, match=r"offset 12: .*gzip stream of .* is truncated"):
        read(message(12, None, packed[:-cut], attributes=1))


def test_bytes_after_the_gzip_stream_are_refused() -> None:
    """Bytes after the gzip stream are refused, because a wrapper has exactly one stream."""
    packed = zlib.compress(WRAPPED, 6, 31)
    with pytest.raises(ProtocolError, match="3 bytes follow its gzip stream"):
        read(message(12, None, packed + b"abc", attributes=1))


def test_decompression_stops_at_the_limit() -> None:
    """
    Decompression stops at the limit: content of exactly this size is read, and one byte more raises an error that names
    the setting.
    """
    assert read(wrapper(WRAPPED, 12), limit=len(WRAPPED)) == PLAIN
    with pytest.raises(MessageTooLargeError, match=r"clicks:3 at offset 12: .*max_decompressed_bytes.* or seek to 13 "):
        read(wrapper(WRAPPED, 12), limit=len(WRAPPED) - 1)


def test_messages_before_a_wrapper_that_is_too_large_are_read() -> None:
    """Messages before a wrapper that is too large are returned. The next fetch starts with the wrapper and fails."""
    data = message(4, None, b"before") + wrapper(WRAPPED, 12)
    assert read(data, limit=len(WRAPPED) - 1) == [(4, None, b"before")]
    with pytest.raises(MessageTooLargeError, match="clicks:3 at offset 12: "):
        read(data, position=5, limit=len(WRAPPED) - 1)


def test_a_decompression_bomb_is_refused() -> None:
    """A decompression bomb is refused without allocating the 100 MB to which it would expand."""
    bomb = wrapper(message(5, None, bytes(100_000_000)), 5)
    tracemalloc.start()
    with pytest.raises(MessageTooLargeError):
        read(bomb, limit=1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_set_beyond_the_limit_is_read_in_parts() -> None:
    """
    If each wrapper of a set fits into the limit, but not all together, the first ones are returned, and the next fetch
    reads the rest.
    """
    parts = [[(n * 10 + i, None, b"v" * 50) for i in range(5)] for n in range(3)]
    data = b"".join(wrapper(encode(part), part[-1][0]) for part in parts)
    limit = 2 * len(encode(parts[0]))
    assert read(data, limit=limit) == parts[0] + parts[1]
    assert read(data, position=20, limit=limit) == parts[2]


@pytest.mark.parametrize("compression", [None, *NUMBERS])
def test_written_sets_are_read_by_the_reference(compression: str | None) -> None:
    """
    The reference decoder reads written sets. Offsets count from 0, and a wrapper has the offset of its last message, as
    Java's producer writes them.
    """
    messages = [(None, b"a"), (b"k", None), (b"", b"")]
    found: list[Message] = []
    left = decode(encode_message_set(*map(list, zip(*messages, strict=True)), compression), found)
    assert found == [(offset, *one) for offset, one in enumerate(messages)]
    assert left == b""


@pytest.mark.parametrize("compression", [None, *NUMBERS])
def test_no_messages_make_an_empty_set(compression: str | None) -> None:
    """Without messages, a written set has no bytes, even with compression."""
    assert encode_message_set([], [], compression) == b""


@pytest.mark.parametrize(("codec", "number"), NUMBERS.items())
def test_compressed_set_is_one_message(codec: str, number: int) -> None:
    """A compressed set is one wrapper with the offset of its last message, the codec in its attributes, and no key."""
    data = encode_message_set([None] * 5, [b"v"] * 5, codec)
    assert data[:8] == int64(4)
    assert data[8:12] == int32(len(data) - 12)
    assert data[16:22] == bytes((0, number)) + int32(-1)


@pytest.mark.parametrize("compression", ["zstd", "LZ4", "none", ""])
def test_unsupported_compression_is_the_callers_error(compression: str) -> None:
    """An unsupported compression raises a ConfigError that lists the supported codecs."""
    expected = f"compression: '{compression}' is not supported; expected 'gzip', 'snappy', 'lz4' or None"
    with pytest.raises(ConfigError, match=expected):
        encode_message_set([None], [b"v"], compression)


#: Sets that do not show where the refused message ends, or whether it is one of Kafka 0.8.
WITHOUT_BOUNDS = {"magic 1", "magic 2", "offset repeats", "offset falls", "offset is negative"} | {
    "size too small",
    "size negative",
}


@pytest.mark.parametrize("name", REFUSED)
def test_damage_says_what_a_fetch_behind_it_passes(name: str) -> None:
    """A damaged message has its offset and bytes, a wrapper those of the whole wrapper; other errors pass nothing."""
    data = REFUSED[name][0]
    with pytest.raises(ProtocolError) as caught:
        read_on(data)
    error = caught.value
    assert isinstance(error, DamagedMessage) == (name not in WITHOUT_BOUNDS)
    if isinstance(error, DamagedMessage):
        offset, size = offset_and_size_at(error.message, 0)
        assert error.offset == offset
        assert len(error.message) == 12 + size
        assert error.message in data


def test_damage_inside_a_wrapper_concerns_the_wrapper() -> None:
    """No message inside it is passed alone, although its own offset is known."""
    whole = wrapper(with_flipped_bit(WRAPPED, 27), 12)
    with pytest.raises(DamagedMessage, match="offset 7: a message that does not match its CRC") as caught:
        read(whole)
    assert (caught.value.offset, caught.value.message) == (12, whole)


@pytest.mark.parametrize(
    ("value_bytes", "least", "most"), [(10, 7_000, 8_000), (100, 4_000, 6_500), (1_024, 1_900, 2_000)]
)
def test_a_run_ends_at_its_size_or_at_some_four_thousand_messages(value_bytes: int, least: int, most: int) -> None:
    """Without the compiled code, the records of all runs exist before the first run, so only the size counts."""
    count = 20_000 if value_bytes < 1_000 else 4_500
    data = encode_message_set([None] * count, [bytes(value_bytes)] * count)
    runs = [run for run in decoder.message_steps(data, SOURCE, 0, max_decompressed_bytes=1) if run]
    assert sum(run.count for run in runs) == count
    assert all(run.size_bytes <= decoder.RUN_BYTES for run in runs)
    if decoder.COMPILED:
        assert all(least <= run.count <= most for run in runs[:-1])
