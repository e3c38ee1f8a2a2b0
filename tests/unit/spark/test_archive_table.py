"""The table of an archive: where times are, which schemas can be columns, and how a schema may change."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    YearMonthIntervalType,
)

from kiel_groups.errors import ConfigError
from kiel_groups.spark.archive_table import TimeField, check_schema, parse_schema, removed_or_changed

pytestmark = pytest.mark.unit


def struct(**fields: DataType) -> StructType:
    schema = StructType()
    for name, kind in fields.items():
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("text", "path", "form", "pattern"),
    [
        ("at", "at", "iso", None),
        ("meta.at:ms", "meta.at", "ms", None),
        ("@at:s", "@at", "s", None),
        ("at:dd/MM/yyyy HH:mm", "at", "dd/MM/yyyy HH:mm", "dd/MM/yyyy HH:mm VV"),
        ("at:yyyy-MM-dd'T'HH:mm:ssXXX", "at", "yyyy-MM-dd'T'HH:mm:ssXXX", "yyyy-MM-dd'T'HH:mm:ssXXX"),
        ("at:yyyy'V'", "at", "yyyy'V'", "yyyy'V' VV"),
    ],
)
def test_a_time_field_has_a_path_and_a_format(text: str, path: str, form: str, pattern: str | None) -> None:
    """A pattern without a time zone gets one, which is then UTC. Letters in quotes are text."""
    field = TimeField.parse(text)
    assert (field.path, field.form, field.pattern) == (path, form, pattern)
    assert TimeField.parse(str(field)) == field


@pytest.mark.parametrize("text", ["", ":s", "at:", "a..b", "a b", "a['b']", "at.", "a'b"])
def test_an_invalid_time_field_is_refused(text: str) -> None:
    """The error shows what a time field looks like."""
    with pytest.raises(ConfigError, match=r"^time_field: .* given; expected the name of a field, such as 'at'"):
        TimeField.parse(text)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (struct(), "it has no fields"),
        (struct(user=StringType(), Topic=StringType()), "the table has a column Topic already; leave this field out"),
        (struct(value=StringType()), "the table has a column value already"),
        (struct(incarnation=StringType()), "the table has a column incarnation already"),
        (struct(user=StringType(), User=StringType()), "user is named twice; upper and lower case are the same"),
        (struct(a=ArrayType(struct())), "a.element has no fields"),
        (struct(a=struct(b=NullType())), "a.b is void, which a file of Parquet cannot have"),
        (struct(a=YearMonthIntervalType()), "a is interval"),
        (struct(a=MapType(IntegerType(), StringType())), "a is a map of int; keys of JSON are strings"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(schema: StructType, message: str) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match=f"^schema: {message}"):
        check_schema(schema)


def test_a_schema_is_read_from_json() -> None:
    """A schema has nested fields, too. A text that is no schema is refused."""
    schema = struct(
        user=StringType(), tags=ArrayType(struct(name=StringType(), value=MapType(StringType(), LongType())))
    )
    assert parse_schema(schema.json()) == schema
    check_schema(schema)
    for text in ("{", "{}", '{"type": "array"}', '{"fields": [{"name": "a", "type": "nosuch"}]}', '{"fields": 1}'):
        with pytest.raises(ConfigError, match=r"^schema: .* is no schema \(.*expected such as 'user STRING"):
            parse_schema(text)


def test_a_schema_may_only_grow() -> None:
    """Fields may be added, also within others. A removed or changed field is named."""
    before = struct(a=IntegerType(), b=ArrayType(struct(c=MapType(StringType(), struct(d=LongType())))))
    grown = struct(
        e=StringType(),
        a=IntegerType(),
        b=ArrayType(struct(c=MapType(StringType(), struct(d=LongType(), f=LongType())))),
    )
    assert removed_or_changed(before, before) is None
    assert removed_or_changed(before, grown) is None
    assert removed_or_changed(grown, before) == "e is removed"
    changed = struct(a=DoubleType(), b=before["b"].dataType)
    assert removed_or_changed(before, changed) == "a was int and is double"
    other = struct(a=IntegerType(), b=ArrayType(struct(c=MapType(StringType(), struct(d=StringType())))))
    assert removed_or_changed(before, other) == "b.element.c.value.d was bigint and is string"
    assert removed_or_changed(before, struct(a=IntegerType(), b=StringType())).startswith("b was array<")  # type: ignore[union-attr]
