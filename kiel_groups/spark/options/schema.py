"""The schema of a read: the columns of Spark's own Kafka source, or some of them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kiel_groups.errors import ConfigError

__all__ = ["READ_SCHEMA", "arrow_schema", "check_read_schema"]

_COLUMNS: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    # Messages of magic 0 have no timestamp: the column is null, and the type is -1.
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (IntegerType(), pa.int32()),
}

#: The schema of a read if the user gives none.
READ_SCHEMA = StructType([StructField(name, kind, True) for name, (kind, _) in _COLUMNS.items()])


def check_read_schema(schema: StructType) -> StructType:
    """
    Check that a user's schema consists of known columns, in any order, and return it.

    Raises:
        ConfigError: A column is unknown, given twice, or has another type; the message names the known columns or type.
    """
    for field in schema.fields:
        known = _COLUMNS.get(field.name)
        if known is None:
            raise ConfigError(f"schema: there is no column {field.name!r}; there are {', '.join(_COLUMNS)}")
        if field.dataType != known[0]:
            raise ConfigError(
                f"schema: {field.name} is given as {field.dataType.simpleString()}, and is {known[0].simpleString()};"
                " cast it after reading"
            )
        if not field.nullable and field.name in ("key", "value", "timestamp"):
            raise ConfigError(f"schema: {field.name} is given as not nullable, and may be null")
    names = schema.fieldNames()
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"schema: {twice[0]} is named twice")
    if not names:
        raise ConfigError(f"schema: no column is named; there are {', '.join(_COLUMNS)}")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of every batch, with equal names, order, types and nullability."""
    return pa.schema([pa.field(each.name, _COLUMNS[each.name][1], each.nullable) for each in schema.fields])
