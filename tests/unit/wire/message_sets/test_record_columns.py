"""Records as columns: views of keys and values, Arrow's arrays, and parts of both."""

from __future__ import annotations

import pickle
import sys

import pytest

from kiel_groups import KielGroupsError, RecordColumns
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.columns import columns_of

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)
RECORDS = [
    Record("t", 0, 7, None, b"seven"),
    Record("t", 0, 8, b"key", None),
    Record("t", 0, 9, b"", b""),
    Record("t", 0, 12, b"k", b"twelve"),
]
#: Without a key.
KEYLESS = [Record("t", 0, n, None, b"v") for n in range(9)]
#: Without a null.
PLAIN = [Record("t", 0, 20 + n, b"k", b"v" * n) for n in range(12)]


def some(records: list[Record], rows: slice = slice(None)) -> RecordColumns:
    """Return some of the records as columns of all of them."""
    return RecordColumns(T0, 5, columns_of(records, records[-1].offset + 1), range(len(records))[rows])


def bytes_of(views: object) -> list[bytes | None]:
    """Return the bytes of a column, or of a part of one."""
    assert hasattr(views, "__iter__")
    return [None if view is None else bytes(view) for view in views]


@pytest.mark.parametrize("records", [RECORDS, KEYLESS, PLAIN], ids=["nulls", "no keys", "no nulls"])
@pytest.mark.parametrize("rows", [slice(None), slice(1, None), slice(0, 2), slice(1, 3), slice(3, 4)], ids=str)
def test_columns_have_the_values_of_records(records: list[Record], rows: slice) -> None:
    """By iteration, by index from both ends, and by slices. Null and empty values differ."""
    columns, wanted = some(records, rows), records[rows]
    assert len(columns) == len(columns.keys) == len(columns.values) == len(wanted)
    assert columns.offsets.tolist() == [record.offset for record in wanted]
    assert (columns.first_offset, columns.next_offset) == (wanted[0].offset, wanted[-1].offset + 1)
    for column, expected in [(columns.keys, [r.key for r in wanted]), (columns.values, [r.value for r in wanted])]:
        assert bytes_of(column) == column.to_list() == expected
        assert bytes_of(column[n] for n in range(len(wanted))) == expected
        assert bytes_of([column[-1]]) == expected[-1:]
        assert bytes_of(column[:-1]) == expected[:-1]
        assert bytes_of(column[::-1]) == expected[::-1]
        with pytest.raises(IndexError):
            column[len(wanted)]
        with pytest.raises(IndexError):
            column[-len(wanted) - 1]


@pytest.mark.parametrize("records", [RECORDS, PLAIN], ids=["nulls", "no nulls"])
@pytest.mark.parametrize("rows", [slice(None), slice(1, None), slice(0, 2), slice(1, 3), slice(3, 4)], ids=str)
def test_columns_become_a_record_batch(records: list[Record], rows: slice) -> None:
    """It is valid, knows its nulls, and shares the memory of the columns."""
    columns, wanted = some(records, rows), records[rows]
    batch = columns.to_pyarrow()
    batch.validate(full=True)
    assert batch.to_pydict() == {
        "offset": [record.offset for record in wanted],
        "key": [record.key for record in wanted],
        "value": [record.value for record in wanted],
    }
    assert [column.null_count for column in batch.columns] == [
        0,
        sum(record.key is None for record in wanted),
        sum(record.value is None for record in wanted),
    ]
    assert batch.column("value").buffers()[2].equals(columns.to_pyarrow().column("value").buffers()[2])
    assert batch.column("value").buffers()[2].address == columns.to_pyarrow().column("value").buffers()[2].address


def test_an_error_says_how_to_do_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the extra."""
    monkeypatch.delitem(sys.modules, "kiel_groups.wire.message_sets.arrow_arrays", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(KielGroupsError, match=r"pyarrow is missing in .*; install kiel-groups\[arrow\], or use"):
        some(RECORDS).to_pyarrow()
    assert bytes_of(some(RECORDS).values) == [b"seven", None, b"", b"twelve"]


def test_columns_are_picklable_and_print_without_their_bytes() -> None:
    """A process may send them to another."""
    columns = pickle.loads(pickle.dumps(some(RECORDS, slice(1, 3))))
    assert (columns.topic_partition, columns.fencing_token) == (T0, 5)
    assert bytes_of(columns.values) == [None, b""]
    assert "seven" not in repr(columns)
