"""Streams that are longer than one step of their codec, packed or unpacked."""

from __future__ import annotations

import random

import pytest

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.wire.codecs import GZIP, codec_by_name

pytestmark = pytest.mark.unit

NOISE = random.Random(5).randbytes((2 << 20) + 77)
CONTENTS = {"incompressible": NOISE, "zeros": bytes(3 << 20), "two steps": bytes(2 << 20)}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4"])
def test_large_content_is_unpacked_up_to_the_limit(name: str, content: bytes) -> None:
    """The limit is exact, and the packed bytes may be a view of others."""
    codec = codec_by_name(name)
    view = memoryview(b"before" + codec.compress(content))[6:]
    assert codec.decompress(view, len(content)) == content
    with pytest.raises(MessageTooLargeError):
        codec.decompress(view, len(content) - 1)


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_large_gzip_streams_are_checked_to_their_end(content: bytes) -> None:
    """A stream that ends early, at any step, or is followed by other bytes, is refused."""
    data = GZIP.compress(content)
    for cut in (1, 8, len(data) // 2, len(data) - 1):
        with pytest.raises(ProtocolError, match=f"of {len(data) - cut} bytes is truncated"):
            GZIP.decompress(data[:-cut], len(content))
    for size in (1, 3 << 20):
        with pytest.raises(ProtocolError, match=f"^{size} bytes follow its gzip stream"):
            GZIP.decompress(data + bytes(size), len(content))
