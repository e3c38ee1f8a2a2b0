"""Messages as Arrow batches: exactly the columns that Spark expects, and no unnecessary copies."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import OffsetRange
from kiel_groups.spark.columns import READ_SCHEMA, arrow_schema, check_read_schema
from kiel_groups.spark.read_task import merged, record_batch
from kiel_groups.wire.message_sets.columns import Columns
from kiel_groups.wire.message_sets.decoder import decode_columns
from tests.helpers.message_sets import PLAIN
from tests.helpers.reference_codec import encode

pytestmark = pytest.mark.spark

SOURCE = TopicPartition("clicks", 3)
RANGE = OffsetRange(SOURCE, 0, 1, 7)
SCHEMA = arrow_schema(READ_SCHEMA)


def columns_of(messages: list[tuple[int, bytes | None, bytes | None]]) -> Columns:
    return decode_columns(encode(messages), SOURCE, 0, max_decompressed_bytes=0)


def test_a_batch_has_the_columns_of_sparks_source() -> None:
    """Null keys and values stay null, and empty ones empty. The timestamp is null, and the timestamp type is -1."""
    batch = record_batch(columns_of(PLAIN), RANGE, SCHEMA)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert batch.to_pylist() == [
        {
            "key": key,
            "value": value,
            "topic": "clicks",
            "partition": 3,
            "offset": offset,
            "timestamp": None,
            "timestampType": -1,
        }
        for offset, key, value in PLAIN
    ]


@pytest.mark.parametrize("names", [("value",), ("offset", "topic"), ("timestampType", "timestamp", "partition", "key")])
def test_a_schema_chooses_columns_and_their_order(names: tuple[str, ...]) -> None:
    """The batch has only the columns of the schema."""
    schema = pa.schema([SCHEMA.field(name) for name in names])
    batch = record_batch(columns_of(PLAIN), RANGE, schema)
    assert batch.schema == schema
    assert batch.num_rows == len(PLAIN)
    assert batch.to_pydict()[names[0]] == record_batch(columns_of(PLAIN), RANGE, SCHEMA).to_pydict()[names[0]]


@pytest.mark.parametrize("incarnation", [7, None])
def test_the_incarnation_is_a_column_on_demand(incarnation: int | None) -> None:
    """The column has the incarnation of the range, and is null if that is unknown."""
    schema = arrow_schema(check_read_schema(StructType().add("offset", LongType()).add("incarnation", LongType())))
    batch = record_batch(columns_of(PLAIN), RANGE._replace(incarnation=incarnation), schema)
    batch.validate(full=True)
    assert batch["incarnation"].to_pylist() == [incarnation] * len(PLAIN)


def test_no_rows_make_an_empty_batch() -> None:
    """Without rows, the batch is empty and has all columns."""
    batch = record_batch(columns_of([]), RANGE, SCHEMA)
    batch.validate(full=True)
    assert (batch.num_rows, batch.schema) == (0, SCHEMA)


def test_values_are_not_copied() -> None:
    """The batch refers to the decoder's memory, so values are not copied."""
    columns = columns_of(PLAIN)
    batch = record_batch(columns, RANGE, SCHEMA)
    assert batch["value"].buffers()[2].address == pa.py_buffer(columns.values.data).address
    assert batch["offset"].buffers()[1].address == pa.py_buffer(columns.offsets).address


@pytest.mark.parametrize("sizes", [[], [1], [5, 5], [3000] * 7, [9000, 1, 9000], [1] * 20, [8192, 8192], [8191, 1, 1]])
def test_small_batches_are_merged(sizes: list[int]) -> None:
    """
    Small batches are merged: no row is lost or moved, large batches do not change, and no two neighbours would fit into
    one batch.
    """
    batches, start = [], 0
    for size in sizes:
        batches.append(record_batch(columns_of([(start + n, None, b"v") for n in range(size)]), RANGE, SCHEMA))
        start += size
    found = list(merged(batches))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == SCHEMA
    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == list(range(start))
    rows = [batch.num_rows for batch in found]
    assert max(rows, default=0) <= max(8_192, *sizes, 0)
    assert all(sum(neighbours) > 8_192 for neighbours in pairwise(rows))
