"""Snappy and lz4: each form that clients of Kafka 0.8 have written, damaged data, and wrong sizes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.codecs import LZ4, SNAPPY, codec_by_name
from tests.helpers.message_sets import decode_message_set
from tests.helpers.reference_codec import encode, message, wrapper
from tests.helpers.reference_compression import (
    LZ4_MAGIC,
    NUMBERS,
    XERIAL,
    lz4_frame,
    packed,
    raw_lz4,
    raw_snappy,
    unpacked,
    xerial,
    xxh32,
)

pytestmark = pytest.mark.unit

SOURCE = TopicPartition("clicks", 3)
NO_REPEATS = b"".join(struct.pack(">I", n * 2654435761 % 2**32) for n in range(50_000))
CONTENTS = {
    "one byte": b"a",
    "text": b'{"page": "/index.html", "visitor": 7}' * 9_000,
    "one byte, repeated": b"x" * 300_000,
    "incompressible": NO_REPEATS,
    "a whole block": NO_REPEATS[: 64 << 10],
}
LIMIT = 1 << 20


def refusal(unpack: Callable[[bytes, int], bytes], data: bytes, limit: int = LIMIT) -> ProtocolError:
    """Return the ProtocolError that the data raises. Any other outcome fails the test."""
    with pytest.raises(ProtocolError) as caught:
        unpack(data, limit)
    return caught.value


@pytest.mark.parametrize("name", NUMBERS)
def test_unpacked_data_stays_as_it_is(name: str) -> None:
    """What one set unpacks to does not change when the next one is unpacked."""
    codec = codec_by_name(name)
    contents = [letter * 1_000 for letter in (b"a", b"b")]
    unpacked_contents = [codec.decompress(codec.compress(content), LIMIT) for content in contents]
    assert list(map(bytes, unpacked_contents)) == contents


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", NUMBERS)
def test_compressed_data_is_read_by_package_and_reference(name: str, content: bytes) -> None:
    """
    Compressed data is read by the package, and by the reference decoder that follows the descriptions of the formats.
    """
    codec = codec_by_name(name)
    data = codec.compress(content)
    assert codec.decompress(data, LIMIT) == content
    assert unpacked(codec.number, data) == content


@pytest.mark.parametrize("name", NUMBERS)
def test_the_size_limit_is_exact(name: str) -> None:
    """
    The size limit is exact: content of this size is read, and one byte more raises an error with the limit and the
    setting.
    """
    codec, content = codec_by_name(name), CONTENTS["text"]
    data = codec.compress(content)
    assert codec.decompress(data, len(content)) == content
    error = refusal(codec.decompress, data, len(content) - 1)
    assert isinstance(error, MessageTooLargeError)
    assert str(error) == f"unpacks to more than {len(content) - 1} bytes; raise max_decompressed_bytes to read it"


@pytest.mark.parametrize("name", NUMBERS)
def test_a_truncated_stream_is_refused_or_shorter(name: str) -> None:
    """
    A truncated stream is refused. Only a snappy stream that is truncated between blocks is read, because it has no end
    mark. The decoder of the message set detects this.
    """
    codec, content = codec_by_name(name), b"some text, some more text " * 20
    data = packed(name, content)
    for cut in range(1, len(data)):
        if name == "snappy" and data[:cut] in (
            between := {xerial(content[:end]) for end in range(0, len(content), 100)}
        ):
            assert len(between) == 6
            assert content.startswith(codec.decompress(data[:cut], LIMIT))
        else:
            assert not isinstance(refusal(codec.decompress, data[:cut]), MessageTooLargeError)


@pytest.mark.parametrize("name", ["snappy", "lz4"])
def test_the_error_of_a_truncated_wrapper_names_its_offset(name: str) -> None:
    """The error of a truncated wrapper has topic, partition and offset, however few bytes are missing."""
    plain = encode([(4, None, b"four"), (5, b"k", b"five")])
    for cut in (1, 4, 9):
        data = message(5, None, packed(name, plain)[:-cut], attributes=NUMBERS[name])
        with pytest.raises(ProtocolError, match=r"^clicks:3 at offset 5: a compressed message: its .* is truncated$"):
            decode_message_set(data, SOURCE, 0, max_decompressed_bytes=LIMIT)


@pytest.mark.parametrize("outer", NUMBERS)
@pytest.mark.parametrize("inner", NUMBERS)
def test_nested_wrappers_are_refused(outer: str, inner: str) -> None:
    """A wrapper inside a wrapper is refused, for each pair of codecs."""
    data = wrapper(wrapper(encode([(5, None, b"v")]), 5, codec=inner), 5, codec=outer)
    with pytest.raises(ProtocolError, match="offset 5: a compressed message inside a compressed message"):
        decode_message_set(data, SOURCE, 0, max_decompressed_bytes=LIMIT)


def framed(body: bytes) -> bytes:
    """Return a block of an lz4 frame: its size and its content."""
    return struct.pack("<I", len(body)) + body


#: The number of a codec, and a function that makes the bomb: a second's work, which the collection of tests leaves out.
BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "snappy": (2, lambda: SNAPPY.compress(message(5, None, bytes(30_000_000)))),
    "snappy, bare": (2, lambda: bytes(cramjam.snappy.compress_raw(message(5, None, bytes(30_000_000))))),
    "lz4": (3, lambda: LZ4.compress(message(5, None, bytes(100_000_000)))),
    "lz4, blocks of 4 MiB": (
        3,
        lambda: lz4_frame(b"", sizes=0x70)[:7] + framed(raw_lz4(bytes(4 << 20))) * 40 + bytes(4),
    ),
}


def peak_bytes_of(action: Callable[[], object]) -> int:
    """
    Run ``action``, and return the largest growth of this process's memory, including the memory of compiled codecs.
    """

    def measured(field: str) -> int:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        assert found
        return int(found[1]) << 10

    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = measured("VmRSS")
    action()
    return measured("VmHWM") - before


@pytest.mark.parametrize(("number", "make"), BOMBS.values(), ids=BOMBS)
def test_decompression_bombs_are_refused(number: int, make: Callable[[], bytes]) -> None:
    """Decompression bombs are refused without allocating the 30 to 160 MB to which they would expand."""
    data = message(5, None, make(), attributes=number)

    def read() -> None:
        with pytest.raises(
            ProtocolError, match=r"^clicks:3 at offset 5: a compressed message of \d+ bytes unpacks to more"
        ):
            decode_message_set(data, SOURCE, 0, max_decompressed_bytes=1_000_000)

    assert peak_bytes_of(read) < 5 * len(data) + 12_000_000


# --- snappy ---


def test_bare_snappy_block_is_read() -> None:
    """A single snappy block without xerial's header is read, as some clients wrote it."""
    for content in CONTENTS.values():
        assert SNAPPY.decompress(raw_snappy(content), LIMIT) == content
        assert SNAPPY.decompress(bytes(cramjam.snappy.compress_raw(content)), LIMIT) == content


def test_xerial_stream_is_written_as_java_writes_it() -> None:
    """
    A snappy stream is written as Java writes it: with xerial's magic, version 1, compatible version 1, and blocks of 32
    KiB.
    """
    data = SNAPPY.compress(NO_REPEATS[:40_000])
    assert data[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    (size,) = struct.unpack_from(">i", data, 16)
    assert cramjam.snappy.decompress_raw_len(data[20 : 20 + size]) == 32 << 10


def test_blocks_of_a_xerial_stream_may_have_any_size() -> None:
    """The blocks of a snappy stream may have any size. Writers usually choose 32 KiB."""
    assert SNAPPY.decompress(xerial(CONTENTS["text"], 7), LIMIT) == CONTENTS["text"]


def block(data: bytes) -> bytes:
    return XERIAL + struct.pack(">i", len(data)) + data


DAMAGED_SNAPPY = {
    "nothing": (b"", "snappy block of 0 bytes is damaged"),
    "a header in part": (XERIAL[:12], "snappy stream of 12 bytes is truncated"),
    "a block's size in part": (XERIAL + b"\0\0", "snappy stream of 18 bytes is truncated"),
    "a block beyond the end": (XERIAL + struct.pack(">i", 1 << 30) + b"\0", "snappy stream of 21 bytes is truncated"),
    "a block of negative size": (XERIAL + struct.pack(">i", -5), "holds a block of -5 bytes"),
    "an empty block": (block(b""), "snappy block of 0 bytes is damaged"),
    "a claim of 4 GiB": (block(b"\xff\xff\xff\xff\x0f"), "snappy block of 5 bytes claims to hold 4294967295"),
    "a bare claim of 1 MB": (b"\x80\x89\x7a" + b"\0a" * 9, "snappy block of 21 bytes claims to hold 2000000"),
    "a length without an end": (block(b"\xff" * 9), "snappy block of 9 bytes is damaged"),
    "less than it claims": (block(b"\2\0a"), "snappy block of 3 bytes is damaged"),
    "more than it claims": (block(b"\1\4ab"), "snappy block of 4 bytes is damaged"),
    "a copy from before its beginning": (block(b"\5\0a\x01\2"), "snappy block of 5 bytes is damaged"),
    "text": (b"no snappy at all", "snappy block of 16 bytes"),
}


@pytest.mark.parametrize(("data", "words"), DAMAGED_SNAPPY.values(), ids=DAMAGED_SNAPPY)
def test_damaged_snappy_is_refused(data: bytes, words: str) -> None:
    """Damaged snappy is refused with the size of the stream or block, and never as too large."""
    error = refusal(SNAPPY.decompress, data)
    assert words in str(error)
    assert not isinstance(error, MessageTooLargeError)


# --- lz4 ---


def test_lz4_is_written_with_kafkas_header_checksum() -> None:
    """
    An lz4 frame is written with Kafka's header checksum, which includes the magic, because Java clients of 0.8 refuse
    any other. Its blocks have 64 KiB.
    """
    data = LZ4.compress(NO_REPEATS[: 65 << 10])
    assert data[:7] == bytes.fromhex("04224d18 60 40 1a")
    assert data[7:11] == struct.pack("<I", 64 << 10 | 1 << 31)
    assert LZ4.compress(b"") == data[:7] + bytes(4)


@pytest.mark.parametrize("kafka", [True, False], ids=["Kafka's checksum", "the right checksum"])
@pytest.mark.parametrize("flags", range(0x40, 0x80, 4), ids=hex)
def test_every_kind_of_lz4_frame_is_read(flags: int, kafka: bool) -> None:
    """
    Every kind of lz4 frame is read: with or without linked blocks, block checksums, a content size and a content
    checksum.
    """
    content = CONTENTS["text"][:1_000] + bytes(500) + NO_REPEATS[:300]
    assert LZ4.decompress(lz4_frame(content, kafka=kafka, flags=flags), LIMIT) == content


def test_lz4_frames_of_other_writers_are_read() -> None:
    """Frames of liblz4 are read. They have linked blocks, a content checksum and the correct header checksum."""
    for content in CONTENTS.values():
        assert LZ4.decompress(bytes(cramjam.lz4.compress(content)), LIMIT) == content


def changed(data: bytes, at: int, to: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes((to,)) + data[at + 1 :]


FRAME = lz4_frame(b"some text" * 9)
CHECKED = lz4_frame(b"some text" * 30, flags=0x7C)


def with_body(body: bytes, size: int | None = None) -> bytes:
    """Return a frame with one compressed block; ``size`` replaces the block's true size."""
    return FRAME[:7] + struct.pack("<I", len(body) if size is None else size) + body + bytes(4)


DAMAGED_LZ4 = {
    "nothing": (b"", "lz4 frame of 0 bytes is truncated"),
    "a magic alone": (FRAME[:4], "lz4 frame of 4 bytes is truncated"),
    "a content size in part": (CHECKED[:12], "lz4 frame of 12 bytes is truncated"),
    "another magic": (changed(FRAME, 0, 5), "no lz4 frame: it starts with 05 22 4d 18"),
    "version 2": (changed(FRAME, 4, 0xA0), "has the flags 0xa0; expected version 1"),
    "a dictionary": (changed(FRAME, 4, 0x61), "has the flags 0x61; expected version 1 without a dictionary"),
    "a block size that does not exist": (changed(FRAME, 5, 0x30), "blocks of a size that does not exist"),
    "another header checksum": (changed(FRAME, 6, 0x77), "matches neither checksum"),
    "a block beyond the end": (with_body(b"\0", 1 << 30), "lz4 frame of 16 bytes is truncated"),
    "no end mark": (FRAME[:-4], "is truncated"),
    "bytes after the end": (FRAME + b"abc", "3 bytes follow its lz4 frame"),
    "a content checksum cut short": (CHECKED[:-2], "is truncated"),
    "another content checksum": (changed(CHECKED, -1, CHECKED[-1] ^ 1), "lz4 frame is damaged"),
    "a literal beyond its block": (with_body(b"\xf0\xff\xff"), "lz4 frame is damaged"),
    "a copy from before its beginning": (with_body(b"\x10a\x09\0\x50bcdef"), "lz4 frame is damaged"),
    "a block larger than the frame allows": (with_body(raw_lz4(bytes(65_537))), "lz4 frame is damaged"),
    "a stored block larger than the frame allows": (with_body(bytes(65_537), 65_537 | 1 << 31), "lz4 frame is damaged"),
    "text": (b"no lz4 at all", "no lz4 frame: it starts with 6e 6f 20 6c"),
}


@pytest.mark.parametrize(("data", "words"), DAMAGED_LZ4.values(), ids=DAMAGED_LZ4)
def test_damaged_lz4_is_refused(data: bytes, words: str) -> None:
    """Damaged lz4 is refused with the reason, and not as too large."""
    error = refusal(LZ4.decompress, data)
    assert words in str(error)
    assert not isinstance(error, MessageTooLargeError)


def test_a_wrong_content_size_is_refused() -> None:
    """An lz4 frame whose content has another size than its header declares is refused."""
    valid = lz4_frame(bytes(90), flags=0x68, kafka=False)
    header = valid[4:6] + struct.pack("<Q", 91)
    frame = LZ4_MAGIC + header + bytes((xxh32(header) >> 8 & 255,)) + valid[15:]
    assert "lz4 frame is damaged" in str(refusal(LZ4.decompress, frame))


def test_damaged_lz4_that_may_be_too_large_counts_as_too_large() -> None:
    """
    Damaged lz4 data counts as too large if its blocks could expand beyond the limit, because the decoder, which stops
    at the limit, cannot tell damage from size.
    """
    data = with_body(b"\xf0" + b"\xff" * 1_000)
    assert isinstance(refusal(LZ4.decompress, data, 1_000), MessageTooLargeError)
    assert not isinstance(refusal(LZ4.decompress, data, 1 << 16), MessageTooLargeError)


def test_lz4_copy_from_distance_zero_is_refused() -> None:
    """
    An lz4 copy from distance 0, which the format forbids, is refused. liblz4 decodes it to arbitrary bytes, which the
    message's CRC detects.
    """
    plain = message(5, None, b"v" * 40)
    body = b"\xf0" + bytes((len(plain) - 15 - 15,)) + plain[:-15] + b"\0\0" + b"\xb0" + plain[-11:]
    valid = body.replace(b"\0\0\xb0", b"\1\0\xb0")

    def read(packed: bytes) -> list[Record]:
        data = message(5, None, with_body(packed), attributes=3)
        return decode_message_set(data, SOURCE, 0, max_decompressed_bytes=LIMIT)

    assert read(valid)[0].value == b"v" * 40
    with pytest.raises(ProtocolError, match="offset 5: a message that does not match its CRC"):
        read(body)
