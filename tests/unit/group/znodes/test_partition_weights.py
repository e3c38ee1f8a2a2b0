"""The data of a group's ``weights`` znode, and data that is refused."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes import group_settings as partition_weights
from kiel_groups.group.znodes.group_settings import checked_weights, encode_weights, parse_weights, printed_weights
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

PATH = "/kiel-groups/g/weights"
ILLEGAL_TOPICS = ["\ud800:0", "\x1b[2J:0", "/../x:0", "..:0", "a b:0", "t:0:0", f"{'t' * 256}:0"]
loads = st.integers(0, 10**15) | st.floats(0, 1e15)
weights = st.dictionaries(st.builds(TopicPartition, st.sampled_from(["t", "a.b", "x-1"]), st.integers(0, 300)), loads)


@given(weights)
def test_written_weights_are_read_back(written: dict[TopicPartition, float]) -> None:
    """Written weights are read back, rounded to six significant digits. Writing them again changes nothing."""
    read = parse_weights(encode_weights(written), PATH)
    assert read.keys() == written.keys()
    assert all(read[each] == pytest.approx(load, rel=1e-5, abs=1e-300) for each, load in written.items())
    assert parse_weights(encode_weights(read), PATH) == read
    assert checked_weights(printed_weights(read)) == read


def test_the_data_is_compressed_json() -> None:
    """The data of weights is compressed JSON with a version, and with whole numbers without a fraction."""
    data = encode_weights({TopicPartition("t", 10): 2.0, TopicPartition("t", 9): 1234567.8})
    assert zlib.decompress(data) == b'{"version":1,"weights":{"t:10":2,"t:9":1234570}}'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "weights packed by zlib were expected, found the beginning only of something"),
        (b"{}", "weights packed by zlib were expected, found b'{}'"),
        (encode_weights({TopicPartition("t", 1): 1})[:-3], "found the beginning only of something"),
        (zlib.compress(b"[]"), "a JSON object was expected, found list"),
        (zlib.compress(b'{"version":1}'), "field 'weights' should be dict, found None"),
        (
            zlib.compress(b'{"version":1,"weights":{"t":1}}'),
            "weights: 't' given; expected a partition such as page-views:3",
        ),
        (zlib.compress(b'{"version":1,"weights":{"t:0":NaN}}'), "weights: nan given for t:0; expected a load, a"),
        (zlib.compress(b'{"version":1,"weights":{"\\ud800:0":1}}'), "weights: '\\ud800:0' given; expected a partition"),
        (zlib.compress(b'{"version":99,"weights":{"t:0":1}}'), "field 'version' should be 1, found 99"),
        (zlib.compress(b'{"weights":{"t:0":1}}'), "field 'version' should be int, found None"),
        (zlib.compress(b" " * (33 << 20), 1), "found more than 32 MiB of something"),
    ],
    ids=[
        "nothing",
        "not packed",
        "cut",
        "a list",
        "no weights",
        "no partition",
        "not a number",
        "no text",
        "a later version",
        "no version",
        "a bomb",
    ],
)
def test_other_data_is_refused_in_one_line(data: bytes, message: str) -> None:
    """
    Other data is refused with one printable line that has the path. Data that expands to more than 32 MiB is refused,
    too.
    """
    with pytest.raises(ProtocolError) as caught:
        parse_weights(data, PATH)
    assert str(caught.value).isprintable()
    assert str(caught.value).startswith(f"{PATH}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("load", [-1, -0.5, float("nan"), float("inf"), 10**15 + 1, "1", None, True, [1]])
def test_an_illegal_load_is_refused(load: Any) -> None:
    """A load that is not a number from 0 to 10 to the power of 15 is refused."""
    with pytest.raises(ConfigError, match=r"^weights: .* given for t:0; expected a load, a number from 0 to 1,000"):
        checked_weights({"t:0": load})


@pytest.mark.parametrize("name", ["", "t", "t:", ":1", "t:-1", "t:x", "t:01", "t:2147483648", *ILLEGAL_TOPICS])
def test_an_illegal_partition_is_refused(name: str) -> None:
    """
    The name of a partition with other characters than Kafka allows is refused, such as a lone surrogate, an escape
    sequence or a path.
    """
    with pytest.raises(ConfigError, match=r"^weights: .* given; expected a partition such as page-views:3$"):
        checked_weights({name: 1})


def test_weights_that_are_too_large_are_refused_with_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Weights above the limit of the compressed or of the uncompressed size are refused with their size, because a server
    would close the connection.
    """
    many = {TopicPartition("t", number): number for number in range(1_000)}
    monkeypatch.setattr(partition_weights, "LARGEST_BYTES", 1 << 10)
    with pytest.raises(ConfigError, match=r"^weights: 1,000 partitions take \d+ KiB packed, expected at most 1; leave"):
        encode_weights(many)
    monkeypatch.setattr(partition_weights, "LARGEST_BYTES", 1 << 20)
    monkeypatch.setattr(partition_weights, "LARGEST_TEXT", 2 << 10)
    with pytest.raises(ConfigError, match=r"^weights: 1,000 partitions take \d+ KiB, expected at most 2; leave"):
        encode_weights(many)


def test_the_weights_of_a_large_group_fit() -> None:
    """The weights of 100,000 partitions, all different, take less than 700 KiB."""
    loads = {
        TopicPartition(f"topic-{number % 20}", number // 20): (number * 7919 % 99991) / 7 for number in range(100_000)
    }
    assert len(encode_weights(loads)) < 700 << 10
