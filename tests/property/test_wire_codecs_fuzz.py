"""Snappy and lz4 against generated content and generated damage, with the plain Python decoders as the oracle."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.wire.codecs.compression import codec_by_name
from tests.helpers.message_sets import damaged
from tests.helpers.reference_compression import NUMBERS, RefusedError, lz4_frame, packed, raw_snappy, unpacked

pytestmark = pytest.mark.property

names = st.sampled_from(list(NUMBERS))
repeats = st.integers(1, 400) | st.sampled_from([32 << 10, 64 << 10, (64 << 10) + 1])
repeated = st.builds(lambda byte, times: byte * times, st.binary(min_size=1, max_size=1), repeats)
#: Literals and repeated bytes by turns, some of them longer than a block.
contents = st.lists(st.binary(max_size=60) | repeated, max_size=6).map(b"".join)
short_contents = contents.map(lambda content: content[:400])


@st.composite
def damaged_streams(draw: st.DrawFn) -> tuple[int, bytes]:
    """A codec's number and a stream with some bytes changed, removed or doubled."""
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
def test_packed_is_unpacked(content: bytes, name: str) -> None:
    """By the package and by the reference, whatever the content."""
    codec = codec_by_name(name)
    data = codec.compress(content)
    assert codec.decompress(data, len(content)) == content
    if len(content) < 5_000:
        assert unpacked(codec.number, data) == content


@given(short_contents, names)
def test_packed_by_the_reference_is_unpacked(content: bytes, name: str) -> None:
    """Short blocks and elements that fast packers seldom write."""
    assert codec_by_name(name).decompress(packed(name, content), len(content)) == content


@given(contents, names, st.integers(0, 1 << 17))
def test_the_bound_holds(content: bytes, name: str, limit: int) -> None:
    """All of it, or an error."""
    codec = codec_by_name(name)
    data = codec.compress(content)
    if len(content) <= limit:
        assert codec.decompress(data, limit) == content
    else:
        with pytest.raises(MessageTooLargeError, match=f"more than {limit} bytes"):
            codec.decompress(data, limit)


@settings(max_examples=500)
@given(damaged_streams(), st.sampled_from([100, 1 << 20]))
def test_damage_is_refused_or_harmless(found: tuple[int, bytes], limit: int) -> None:
    """What is unpacked is what the reference unpacks, within the bound; everything else is a ProtocolError."""
    number, data = found
    codec = codec_by_name(next(name for name in NUMBERS if NUMBERS[name] == number))
    try:
        content = codec.decompress(data, limit)
    except ProtocolError:
        return
    assert len(content) <= limit
    # The one thing that liblz4 takes although the format forbids it is a copy from distance 0.
    assert judged(number, data) in (content, "a copy from before the beginning" if number == 3 else content)


def judged(number: int, data: bytes) -> bytes | str:
    """What the reference unpacks, or why it refuses."""
    try:
        return unpacked(number, data)
    except RefusedError as error:
        return str(error)


@given(names, st.binary(max_size=200))
def test_garbage_is_refused_or_unpacked_within_the_bound(name: str, data: bytes) -> None:
    """No crash, no other error."""
    with contextlib.suppress(ProtocolError):
        assert len(codec_by_name(name).decompress(data, 1_000)) <= 1_000
