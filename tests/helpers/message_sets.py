"""Message sets for tests of decoders: valid sets, damaged sets, and sets that every decoder must refuse."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from kiel_groups.errors import ProtocolError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets import decoder, encoder
from kiel_groups.wire.message_sets.decoder import message_steps
from kiel_groups.wire.message_sets.message_layout import NoRecords, PartialMessage
from kiel_groups.wire.primitives import Buffer
from tests.helpers.reference_codec import Message, blob, decode, encode, int32, int64, message, raw_message, wrapper
from tests.helpers.reference_compression import NUMBERS, RefusedError

SOURCE = TopicPartition("t", 0)
LIMIT = 1 << 20

PLAIN = [(7, None, b"seven"), (8, b"key", None), (9, b"", b""), (12, b"k", b"twelve")]

#: The implementations of the decoder: the compiled one, if available, and the one in Python.
WAYS = ["compiled", "uncompiled"] if decoder.COMPILED else ["uncompiled"]


@contextmanager
def reading(way: str, run_bytes: int = decoder.RUN_BYTES) -> Iterator[None]:
    """Use the implementation ``way`` of the decoder and the encoder, and runs of this size, during the block."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (decoder, encoder):
            patch.setattr(module, "COMPILED", way == "compiled")
        patch.setattr(decoder, "RUN_BYTES", run_bytes)
        patch.setattr(decoder, "_PIECE_BYTES", min(run_bytes, decoder._PIECE_BYTES))
        yield


def decode_message_set(
    message_set: Buffer, source: TopicPartition, position: int, *, max_decompressed_bytes: int
) -> list[Record]:
    """Return the records of a message set, as a consumer creates them: run by run."""
    runs = message_steps(message_set, source, position, max_decompressed_bytes=max_decompressed_bytes)
    return [record for run in runs if run is not None for record in run.records()]


def with_flipped_bit(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def filler(size: int) -> bytes:
    """Return filler of this many bytes, as brokers from 2.0 on write it: the beginning of a message of offset -1."""
    return (int64(-1) + int32(max(size + 1, 61))).ljust(size, b"\0")[: max(size, 0)]


WRAPPED = encode(PLAIN)

REFUSED = {
    "bad CRC": (
        message(4, None, b"ok") + with_flipped_bit(message(5, None, b"value"), 30),
        5,
        "does not match its CRC",
    ),
    "bad CRC of a wrapper": (with_flipped_bit(wrapper(WRAPPED, 12), 40), 12, "does not match its CRC"),
    "bad CRC inside a wrapper": (wrapper(with_flipped_bit(WRAPPED, 27), 12), 7, "does not match its CRC"),
    "magic 1": (message(4, None, b"ok") + message(5, None, b"v", magic=1), 5, "magic 1"),
    "magic 2": (message(5, None, b"v" * 60, magic=2), 5, "magic 2"),
    "magic 1 inside a wrapper": (wrapper(message(5, None, b"v", magic=1), 5), 5, "magic 1"),
    "codec 7": (message(5, None, b"packed", attributes=7), 5, "a compressed message: codec 7 does not exist"),
    "wrapper in a wrapper": (wrapper(wrapper(WRAPPED, 12), 12), 12, "inside a compressed message"),
    "plain, then wrapper in a wrapper": (
        wrapper(message(1, None, b"") + wrapper(WRAPPED, 12), 12),
        12,
        "inside a compressed message",
    ),
    "content of a wrapper is cut": (wrapper(WRAPPED[:-1], 12), 12, "content is truncated"),
    "content of a wrapper is empty": (wrapper(b"", 12), 12, "content ends at offset"),
    "wrapper has another offset": (wrapper(WRAPPED, 13), 13, "content ends at offset 12"),
    "no gzip": (message(5, None, b"no gzip at all", attributes=1), 5, "gzip stream is damaged"),
    "null wrapper": (message(5, None, None, attributes=1), 5, "a value of -1 bytes"),
    "empty wrapper": (message(5, None, b"", attributes=1), 5, "gzip stream of 0 bytes is truncated"),
    "wrapper with a hostile key": (raw_message(5, b"\0\1" + int32(1 << 30) + blob(b"v")), 5, "a key of 1073741824"),
    "wrapper with a negative key": (raw_message(5, b"\0\1" + int32(-2) + blob(b"v")), 5, "a key of -2"),
    "wrapper with bytes after its value": (
        raw_message(12, b"\0\1" + int32(-1) + blob(zlib.compress(WRAPPED, 6, 31)) + b"x"),
        12,
        "a value of",
    ),
    "offset repeats": (message(5, None, b"a") + message(5, None, b"b"), 5, "does not ascend, after 5"),
    "offset falls": (message(5, None, b"a") + message(4, None, b"b"), 4, "does not ascend, after 5"),
    "offset falls into a wrapper": (message(10, None, b"a") + wrapper(WRAPPED, 12), 7, "does not ascend, after 10"),
    "offset is negative": (message(-1, None, b"a"), -1, "does not ascend"),
    "size too small": (int64(5) + int32(13) + bytes(60), 5, "a message of 13 bytes; the smallest has 14"),
    "size negative": (int64(5) + int32(-1) + bytes(60), 5, "a message of -1 bytes"),
    "key beyond the message": (raw_message(5, b"\0\0" + int32(99) + blob(b"v")), 5, "length that makes no sense"),
    "value beyond the message": (
        message(4, None, b"ok") + raw_message(5, b"\0\0" + int32(-1) + int32(2**31 - 1) + b"v") + message(6, None, b""),
        5,
        "length that makes no sense",
    ),
    "key of negative length": (raw_message(5, b"\0\0" + int32(-2) + blob(b"v")), 5, "length that makes no sense"),
}


maybe_bytes = st.none() | st.binary(max_size=40)
codecs = st.sampled_from(list(NUMBERS))
messages = st.lists(st.tuples(maybe_bytes, maybe_bytes), max_size=12)


@st.composite
def placed(draw: st.DrawFn, least: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """Draw messages with ascending offsets."""
    drawn = draw(messages.filter(lambda found: len(found) >= least))
    steps = draw(st.lists(st.integers(1, 1 << 40), min_size=len(drawn), max_size=len(drawn)))
    offsets = [sum(steps[: n + 1]) - 1 for n in range(len(drawn))]
    return [(offset, *one) for offset, one in zip(offsets, drawn, strict=True)]


@st.composite
def message_sets(draw: st.DrawFn) -> bytes:
    """Draw valid message sets: plain messages and wrappers of all codecs, mixed."""
    drawn = draw(placed())
    pieces, start = [], 0
    while start < len(drawn):
        end = draw(st.integers(start + 1, len(drawn)))
        piece, codec = encode(drawn[start:end]), draw(st.none() | codecs)
        pieces.append(wrapper(piece, drawn[end - 1][0], codec=codec) if codec else piece)
        start = end
    return b"".join(pieces)


def damaged(draw: st.DrawFn, whole: bytes, most_changes: int) -> bytes:
    """Change, remove or duplicate some bytes, in up to ``most_changes`` places."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, most_changes))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        change = draw(st.sampled_from(["set", "cut", "double"]))
        if change == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif change == "cut":
            del data[at : at + draw(st.integers(1, 8))]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw a message set with some bytes changed, removed or duplicated. In half of the sets the CRCs are corrected."""
    data = damaged(draw, draw(message_sets()), 4)
    return with_valid_crcs(data) if draw(st.booleans()) else data


def with_valid_crcs(data: bytes) -> bytes:
    """Correct the CRC of each message with a valid size, so that damaged messages pass the CRC check."""
    repaired, at = bytearray(data), 0
    while len(data) - at >= 26:
        (size,) = struct.unpack_from(">i", data, at + 8)
        if size < 14 or at + 12 + size > len(data):
            break
        struct.pack_into(">I", repaired, at + 12, zlib.crc32(data[at + 16 : at + 12 + size]))
        at += 12 + size
    return bytes(repaired)


garbage_with_crc = st.lists(st.tuples(st.integers(0, 99), st.binary(min_size=10, max_size=60)), max_size=4).map(
    lambda found: b"".join(raw_message(offset, b"\0" + bytes([body[0] & 3]) + body[1:]) for offset, body in found)
)

#: Lengths near the limits, which random bytes rarely contain.
lengths = st.sampled_from([-(2**31), -3, -2, -1, 0, 1, 2, 30, 2**31 - 1])
hostile_lengths = st.tuples(lengths, st.binary(max_size=9), lengths, st.binary(max_size=9), st.integers(0, 1)).map(
    lambda x: raw_message(5, struct.pack(">bbi", 0, x[4], x[0]) + x[1] + struct.pack(">i", x[2]) + x[3])
)


def assert_decoders_agree(data: bytes, position: int = 0, *, limit: int = LIMIT) -> None:
    """Assert that all decoders return the same records up to the damage, or all raise an error."""
    expected: list[Message] = []
    nothing: object = []
    try:
        if rest := decode(data, expected):
            nothing = NoRecords if rest[:8] == b"\xff" * 8 and len(rest) >= 12 else PartialMessage
    except RefusedError:
        nothing = ProtocolError
    outcome = [one for one in expected if one[0] >= position] or nothing
    for way in WAYS:
        with reading(way):
            assert outcome_of(data, position, limit) == outcome, way


def outcome_of(data: bytes, position: int, limit: int) -> object:
    """Return the decoded records, or the class of the error."""
    try:
        return [record[2:] for record in decode_message_set(data, SOURCE, position, max_decompressed_bytes=limit)]
    except (PartialMessage, NoRecords) as error:
        return type(error)
    except ProtocolError:
        return ProtocolError
