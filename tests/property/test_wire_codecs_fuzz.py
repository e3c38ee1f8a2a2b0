"""Snappy and lz4 with generated contents and damage, compared with decoders in plain Python."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.wire.codecs import codec_by_name
from tests.helpers.examples import examples
from tests.helpers.message_sets import damaged
from tests.helpers.reference_compression import NUMBERS, RefusedError, lz4_frame, packed, raw_snappy, unpacked

pytestmark = pytest.mark.property

names = st.sampled_from(list(NUMBERS))
repeats = st.integers(1, 400) | st.sampled_from([32 << 10, 64 << 10, (64 << 10) + 1])
repeated = st.builds(lambda byte, times: byte * times, st.binary(min_size=1, max_size=1), repeats)
#: Alternating literals and repeated bytes, some longer than a block.
contents = st.lists(st.binary(max_size=60) | repeated, max_size=6).map(b"".join)
short_contents = contents.map(lambda content: content[:400])


@st.composite
def damaged_streams(draw: st.DrawFn) -> tuple[int, bytes]:
    """Draw a codec's number, and a stream with some bytes changed, removed or doubled."""
    content = draw(short_contents)
    number, stream = draw(
        st.sampled_from([(1, packed("gzip", content)), (2, packed("snappy", content)), (2, raw_snappy(content))])
        | st.builds(
            lambda flags, kafka: (3, lz4_frame(content, flags=flags * 4 + 0x40, kafka=kafka)),
            st.integers(0, 15),
            st.booleans(),
        )
    )
    return number, damaged(draw, stream, 3)


@given(contents, names)
def test_compressed_content_is_decompressed(content: bytes, name: str) -> None:
    """Content that the package compresses is decompressed by the package and, if it is short, by the reference."""
    codec = codec_by_name(name)
    data = codec.compress(content)
    assert codec.decompress(data, len(content)) == content
    if len(content) < 5_000:
        assert unpacked(codec.number, data) == content


@given(short_contents, names)
def test_content_compressed_by_the_reference_is_decompressed(content: bytes, name: str) -> None:
    """
    Content that the reference compresses is decompressed. The reference writes short blocks, and elements that fast
    compressors seldom write.
    """
    assert codec_by_name(name).decompress(packed(name, content), len(content)) == content


@given(contents, names, st.integers(0, 1 << 17))
def test_content_beyond_the_limit_is_refused(content: bytes, name: str, limit: int) -> None:
    """Content beyond the limit raises a MessageTooLargeError. Other content is decompressed completely."""
    codec = codec_by_name(name)
    data = codec.compress(content)
    if len(content) <= limit:
        assert codec.decompress(data, limit) == content
    else:
        with pytest.raises(MessageTooLargeError, match=f"more than {limit} bytes"):
            codec.decompress(data, limit)


@settings(max_examples=examples(500))
@given(damaged_streams(), st.sampled_from([100, 1 << 20]))
def test_damage_is_refused_or_harmless(found: tuple[int, bytes], limit: int) -> None:
    """Damaged data raises a ProtocolError, or is decompressed as by the reference, within the limit."""
    number, data = found
    codec = codec_by_name(next(name for name in NUMBERS if NUMBERS[name] == number))
    try:
        content = codec.decompress(data, limit)
    except ProtocolError:
        return
    assert len(content) <= limit
    # Only one violation of the format is accepted by liblz4: a copy from distance 0.
    assert decompressed_by_the_reference(number, data) in (
        content,
        "a copy from before the beginning" if number == 3 else content,
    )


def decompressed_by_the_reference(number: int, data: bytes) -> bytes | str:
    """Return the reference's result, or the reason why it refuses the data."""
    try:
        return unpacked(number, data)
    except RefusedError as error:
        return str(error)


@given(names, st.binary(max_size=200))
def test_garbage_is_refused_or_decompressed_within_the_limit(name: str, data: bytes) -> None:
    """Garbage is decompressed within the limit, or raises a ProtocolError."""
    with contextlib.suppress(ProtocolError):
        assert len(codec_by_name(name).decompress(data, 1_000)) <= 1_000
