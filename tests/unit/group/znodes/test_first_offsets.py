"""The znode with the first offsets of a topic."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import FirstOffsets

PATH = "/kiel-groups/g/starts/t"


@pytest.mark.parametrize("offsets", [{}, {0: 0}, {1: 7, 3: 2**63 - 1}])
def test_first_offsets_are_read_back(offsets: dict[int, int]) -> None:
    """A partition without a first offset is null in the list."""
    first = FirstOffsets(created=42, at_ms=1_000, offsets=offsets)
    assert FirstOffsets.parse(first.encode(), PATH) == first


def test_the_data_is_a_list_by_partition() -> None:
    """The list is short, because a znode has room for 1 MiB."""
    assert FirstOffsets(42, 1_000, {1: 7}).encode() == b'{"at":1000,"created":42,"offsets":[null,7],"version":1}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"at":1,"created":1}',
        b'{"at":1,"created":1,"offsets":[-1]}',
        b'{"at":1,"created":1,"offsets":[true]}',
        b'{"at":1,"created":1,"offsets":[9223372036854775808]}',
        b'{"at":1,"created":"1","offsets":[]}',
    ],
)
def test_other_data_is_refused(data: bytes) -> None:
    """The error names the path."""
    with pytest.raises(ProtocolError, match=PATH):
        FirstOffsets.parse(data, PATH)
