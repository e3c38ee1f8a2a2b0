"""The columns that JSON values have: which schemas can be columns, how a schema may change, and which values fit."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from kiel_groups.errors import ConfigError
from kiel_groups.spark.archive_table import _COLUMNS as COLUMNS
from kiel_groups.spark.columns import (
    JsonFields,
    MisfitError,
    arrow_type,
    check_schema,
    merged_schema,
    parse_schema,
    removed_or_changed,
)

pytestmark = pytest.mark.unit


def struct(**fields: DataType) -> StructType:
    schema = StructType()
    for name, kind in fields.items():
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (struct(), "it has no fields"),
        (struct(user=StringType(), Topic=StringType()), "the table has a column Topic already; leave this field out"),
        (struct(value=StringType()), "the table has a column value already"),
        (struct(incarnation=StringType()), "the table has a column incarnation already"),
        (struct(user=StringType(), User=StringType()), "user is named twice; upper and lower case are the same"),
        (struct(a=ArrayType(struct())), "a.element has no fields"),
        (struct(a=struct(b=NullType())), "a.b is void, which no JSON value is"),
        (struct(a=YearMonthIntervalType()), "a is interval"),
        (struct(a=MapType(IntegerType(), StringType())), "a is a map of int; keys of JSON are strings"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(schema: StructType, message: str) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match=f"^schema: {message}"):
        check_schema(schema, COLUMNS)


def test_a_schema_is_read_from_json() -> None:
    """A schema has nested fields, too. A text that is no schema is refused."""
    schema = struct(
        user=StringType(), tags=ArrayType(struct(name=StringType(), value=MapType(StringType(), LongType())))
    )
    assert parse_schema(schema.json()) == schema
    check_schema(schema, COLUMNS)
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


def test_topics_share_columns_of_the_same_type() -> None:
    """The table has the fields of all topics. A field that is of another type in another topic is refused."""
    first, second = struct(user=StringType(), n=LongType()), struct(n=LongType(), tags=ArrayType(StringType()))
    assert merged_schema({"b": second, "a": first}).fieldNames() == ["user", "n", "tags"]
    for other in (struct(n=StringType()), struct(N=LongType())):
        with pytest.raises(ConfigError, match=r"^schema: b has a field .* and a has n of bigint; a column has one"):
            merged_schema({"a": first, "b": other})


def test_a_schema_allows_null_everywhere() -> None:
    """A field that values must have would be a null in the records of other topics."""
    strict = StructType().add("a", ArrayType(StringType(), False), nullable=False)
    assert parse_schema(strict.json()) == struct(a=ArrayType(StringType()))


VALUES = struct(
    text=StringType(),
    yes=BooleanType(),
    small=IntegerType(),
    large=LongType(),
    rough=FloatType(),
    number=DoubleType(),
    money=DecimalType(5, 2),
    day=DateType(),
    at=TimestampType(),
    local=TimestampNTZType(),
    raw=BinaryType(),
    tags=ArrayType(StringType()),
    more=MapType(StringType(), struct(n=IntegerType())),
)
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (b' {"other": {"n": 1e400}}\n', {}),
        (b'{"text": null, "tags": [null, "a"], "more": {"k": null, "l": {"n": 1, "m": 2}}}', {
            "tags": [None, "a"], "more": [("k", None), ("l", {"n": 1})]
        }),
        (b'{"text": "\\ud83d\\ude00", "yes": false, "small": -2147483648, "large": 9223372036854775807}', {
            "text": "\U0001f600", "yes": False, "small": -(1 << 31), "large": (1 << 63) - 1
        }),
        (b'{"rough": 3.4028234663852886e38, "number": 1, "money": -999.99}', {
            "rough": 3.4028234663852886e38, "number": 1.0, "money": Decimal("-999.99")
        }),
        (b'{"money": 1.5e2, "day": "2026-11-28", "local": "2026-11-28T12:00", "raw": "AAE="}', {
            "money": Decimal(150), "day": date(2026, 11, 28), "local": NOON.replace(tzinfo=None), "raw": b"\0\1"
        }),
        (b'{"at": "2026-11-28T13:00:00.000+01:00"}', {"at": NOON}),
        (b'{"at": "2026-11-28T12:00:00.000000999Z"}', {"at": NOON}),
        (b'{"at": "2026-11-28 12:00"}', {"at": NOON}),
    ],
)  # fmt: skip
def test_a_value_that_fits_has_fields(value: bytes, fields: dict[str, Any]) -> None:
    """Absent fields are null, other fields are ignored, and Arrow takes the fields as they are."""
    found = JsonFields(VALUES).read(value)
    assert {name: each for name, each in found.items() if each is not None} == fields
    (row,) = pa.array([found], arrow_type(VALUES)).to_pylist()
    assert row == {
        **dict.fromkeys(VALUES.fieldNames()),
        **fields,
        **({"rough": row["rough"]} if "rough" in fields else {}),
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"text": 5}', "text is 5, expected a string"),
        (b'{"text": {"a": 1.5}}', r'text is {"a": "1.5"}, expected a string'),
        (b'{"text": "\\ud800"}', "text is .*, expected a string"),
        (b'{"text": "a"} b', "it is no JSON document: Extra data"),
        (b'{"text": "a"}{}', "it is no JSON document: Extra data"),
        (b'{"number": 1e400}', r"number is 1E\+400, expected a number of a double's range"),
        (b'{"number": NaN}', "it has NaN, which JSON does not know"),
        (b'{"other": [-Infinity]}', "it has -Infinity, which JSON does not know"),
        (b'{"number": "1.5"}', "number is "),
        (b'{"number": true}', "number is true"),
        (b'{"rough": 1e39}', "rough is "),
        (b'{"text": "a", "text": "b"}', "the key 'text' occurs twice in an object"),
        (b'{"other": {"a": 1, "a": 1}}', "the key 'a' occurs twice in an object"),
        (b'{"small": 2147483648}', "small is 2147483648, expected a whole number of 32 bits"),
        (b'{"small": 1.0}', "small is 1.0"),
        (b'{"large": true}', "large is true"),
        (b'{"yes": 1}', "yes is 1, expected true or false"),
        (b'{"money": 1000}', r"money is 1000, expected a number that fits decimal\(5,2\)"),
        (b'{"money": 1.234}', "money is 1.234"),
        (b'{"money": 1e400}', "money is "),
        (b'{"day": "2026-02-29"}', "day is "),
        (b'{"at": 1795871100}', "at is 1795871100, expected a time"),
        (b'{"at": "13:05"}', "at is "),
        (b'{"at": "0001-01-01T00:00+01:00"}', "at is "),
        (b'{"local": "2026-11-28T12:00Z"}', "local is "),
        (b'{"raw": "A"}', "raw is "),
        (b'{"tags": "a"}', 'tags is "a", expected an array'),
        (b'{"tags": [5]}', "tags.element is 5, expected a string"),
        (b'{"more": []}', r"more is \[\], expected an object"),
        (b'{"more": {"k": {"n": "1"}}}', 'more.value.n is "1"'),
        (b"[]", r"it is \[\], expected an object"),
        (b"null", "it is null, expected an object"),
        (b"", "it is no JSON document: Expecting value"),
        (b"\xff", "it is not UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"large": ' + b"9" * 5_000 + b"}", "it is no JSON document: "),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_value_that_does_not_fit_has_a_reason(value: bytes, reason: str) -> None:
    """No JSON type is converted to another one, no number is rounded, and the whole text is one document."""
    with pytest.raises(MisfitError, match=f"^{reason}"):
        JsonFields(VALUES).read(value)
