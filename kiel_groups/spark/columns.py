"""The columns of a read and of a write: check a user's schema, and find its columns in rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import types

from kiel_groups.errors import ConfigError
from kiel_groups.spark.json_fields import arrow_type

__all__ = ["FIELDS", "INCARNATION", "READ_SCHEMA", "WriteColumns", "arrow_schema", "check_read_schema"]

log = logging.getLogger(__name__)


#: The column that identifies the topic's incarnation.
INCARNATION = "incarnation"
#: The column of an archive's query that has the fields of JSON values.
FIELDS = "fields"

_COLUMNS: Final[dict[str, tuple[types.DataType, pa.DataType]]] = {
    "key": (types.BinaryType(), pa.binary()),
    "value": (types.BinaryType(), pa.binary()),
    "topic": (types.StringType(), pa.string()),
    "partition": (types.IntegerType(), pa.int32()),
    "offset": (types.LongType(), pa.int64()),
    # Messages of magic 0 have no timestamp: the column is null, and the type is -1.
    "timestamp": (types.TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (types.IntegerType(), pa.int32()),
    # The creation zxid of the topic; null without ZooKeeper.
    INCARNATION: (types.LongType(), pa.int64()),
    # Null but in the rows of bad records, with ``kiel.onBadRecord`` set to ``row``.
    "error": (types.StringType(), pa.string()),
    "raw": (types.BinaryType(), pa.binary()),
}

#: Columns that only a schema that names them has.
_OPTIONAL_COLUMNS = (INCARNATION, "error", "raw")

#: The schema of a read if the user gives none.
READ_SCHEMA = types.StructType(
    [types.StructField(name, kind, True) for name, (kind, _) in _COLUMNS.items() if name not in _OPTIONAL_COLUMNS]
)


def check_read_schema(schema: types.StructType, fields: types.StructType | None = None) -> types.StructType:
    """
    Check that a user's schema consists of known columns, in any order, and return it.

    Args:
        schema: The schema.
        fields: The type of the column ``fields``, which only the query of an archive may have.

    Raises:
        ConfigError: A column is unknown, given twice, or has another type; the message names the known columns or type.
    """
    for field in schema.fields:
        if fields is not None and (field.name, field.dataType) == (FIELDS, fields):
            continue
        known = _COLUMNS.get(field.name)
        if known is None:
            raise ConfigError(f"schema: there is no column {field.name!r}; there are {', '.join(_COLUMNS)}")
        if field.dataType != known[0]:
            raise ConfigError(
                f"schema: {field.name} is given as {field.dataType.simpleString()}, and is {known[0].simpleString()};"
                " cast it after reading"
            )
        if not field.nullable and field.name in ("key", "value", "timestamp", *_OPTIONAL_COLUMNS):
            raise ConfigError(f"schema: {field.name} is given as not nullable, and may be null")
    names = schema.fieldNames()
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"schema: {twice[0]} is named twice")
    if not names:
        raise ConfigError(f"schema: no column is named; there are {', '.join(_COLUMNS)}")
    return schema


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """
    Return the Arrow schema for a schema of Spark.

    Spark expects every batch to have the same names, order, types and nullability as its schema.
    """
    kinds = [_COLUMNS[each.name][1] if each.name in _COLUMNS else arrow_type(each.dataType) for each in schema.fields]
    return pa.schema(
        [pa.field(each.name, kind, each.nullable) for each, kind in zip(schema.fields, kinds, strict=True)]
    )


_TEXT_OR_BYTES: tuple[types.DataType, ...] = (types.StringType(), types.BinaryType())
_ALLOWED: Mapping[str, tuple[types.DataType, ...]] = {
    "key": _TEXT_OR_BYTES,
    "value": _TEXT_OR_BYTES,
    "topic": (types.StringType(),),
    "partition": (types.IntegerType(),),
}
#: Columns of a read that are ignored, because a written message has no such field.
_IGNORED = ("offset", "timestamp", "timestamptype")
#: The column for which Spark's own Kafka sink writes headers.
_HEADERS = "headers"


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The indexes of the columns in a row: None for a missing column, or for ``topic`` if an option names the topic."""

    value: int
    key: int | None
    topic: int | None
    partition: int | None

    @classmethod
    def of(cls, schema: types.StructType, topic: str | None) -> WriteColumns:
        """
        Find the columns by their names, in any case. Warn of columns that are not written.

        Args:
            schema: The schema of the rows.
            topic: The topic of the options, which takes precedence over a column.

        Raises:
            ConfigError: There is no value column; neither an option nor a column names the topic; there are headers; or
                a column occurs twice, or has a type that is not allowed.
        """
        places: dict[str, int] = {}
        extra = []
        for place, field in enumerate(schema.fields):
            name = field.name.lower()
            if name in _IGNORED:
                continue
            allowed = _ALLOWED.get(name)
            if name == _HEADERS:
                raise ConfigError(f"column {field.name}: messages of Kafka 0.8 have no headers; drop it")
            if allowed is None:
                extra.append(field.name)
                continue
            if field.dataType not in allowed:
                kinds = " or ".join(kind.simpleString() for kind in allowed)
                raise ConfigError(f"column {field.name}: is {field.dataType.simpleString()}, expected {kinds}; cast it")
            if name in places:
                raise ConfigError(f"column {field.name}: there are two of that name; select one")
            places[name] = place
        if "value" not in places:
            raise ConfigError("there is no column 'value', which every message needs; null is a value, too")
        if topic is None and "topic" not in places:
            raise ConfigError("nothing says which topic to write to; give the option topic, or a column of that name")
        if extra:
            log.warning("ignoring columns that have no place in a message: %s", ", ".join(extra))
        return cls(places["value"], places.get("key"), None if topic else places.get("topic"), places.get("partition"))
