"""
Define and check the columns of reads and writes, and the columns from JSON values of an archive's topics.

For JSON values, this module decides whether a value fits a schema. Spark's own ``from_json`` is not used, because it
accepts a number as a string, and ignores text after the document.
"""

from __future__ import annotations

import json
import logging
import sys
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from kiel_groups.errors import ConfigError

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
        fields: The type of the column ``fields`` in the query of an archive. None means that it is not allowed.

    Raises:
        ConfigError: There is no column; or a column is unknown, is given twice, has another type, or is not nullable
            although it may be null.
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
    Return the Arrow schema that corresponds to a schema of Spark.

    Spark requires that every batch has the names, the order, the types and the nullability of its schema.
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
    """The indexes of the columns in a row. An index is None if the column is missing or, for ``topic``, not used."""

    value: int
    key: int | None
    topic: int | None
    partition: int | None

    @classmethod
    def of(cls, schema: types.StructType, topic: str | None) -> WriteColumns:
        """
        Find the columns by their names, in upper or lower case. Log a warning about columns that are not written.

        Args:
            schema: The schema of the rows.
            topic: The topic that the options name, or None. It takes precedence over a column.

        Raises:
            ConfigError: There is no value column; neither an option nor a column names the topic; there is a column
                ``headers``; or a column occurs twice, or has a type that is not allowed.
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


# ---------------------------------------------------------------------- JSON


def parse_schema(text: str) -> StructType:
    """
    Parse the text of a schema: JSON, as ``df.schema.json()`` returns it, or DDL, such as ``user STRING, amount INT``.

    Every field of the result is nullable. DDL needs an active Spark session.

    Raises:
        ConfigError: The text is neither JSON of a schema nor DDL.
    """
    try:
        found = StructType.fromJson(json.loads(text)) if is_json(text) else StructType.fromDDL(text)
        if not isinstance(found, StructType):
            raise TypeError(f"it is {found.simpleString()}")
        return StructType.fromJson(json.loads(found.json(), object_hook=_nullable))
    except (PySparkException, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(
            f"schema: {text.strip()!r:.80} is no schema ({lines[0] if lines else type(error).__name__}); expected such"
            " as 'user STRING, amount DOUBLE', or the JSON of df.schema.json()"
        ) from error


def known_schemas(name: str, document: Mapping[str, Any]) -> dict[str, StructType]:
    """
    Decode the schemas of topics, each in the form of ``StructType.jsonValue``.

    Args:
        name: The name of the option or the file that has the schemas, for errors.
        document: The schemas by topic.

    Raises:
        ConfigError: The document has another form.
    """
    try:
        return {topic: StructType.fromJson(schema) for topic, schema in document.items()}
    except (PySparkException, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{name}: {document!r:.200} are no schemas of topics; expected df.schema.json() each"
        ) from error


def _nullable(each: dict[str, Any]) -> dict[str, Any]:
    return each | dict.fromkeys({"nullable", "containsNull", "valueContainsNull"} & each.keys(), True)


def is_json(text: str) -> bool:
    """Return whether the text of a schema is JSON. Only other texts need a Spark session to be parsed."""
    return text.lstrip().startswith("{")


def check_schema(schema: StructType, taken: Collection[str]) -> None:
    """
    Check that the fields of values can be columns of a table.

    Args:
        schema: The schema of the values.
        taken: The names of the table's other columns, in lower case.

    Raises:
        ConfigError: There is no field; or a field has the name of another column or of another field, in upper or lower
            case; or a field has a type that no JSON value has.
    """
    for field in schema.fields:
        if field.name.lower() in taken:
            raise ConfigError(
                f"schema: the table has a column {field.name} already; leave this field out, it stays in 'value'"
            )
    _reader(schema, "")


def merged_schema(schemas: Mapping[str, StructType]) -> StructType:
    """
    Merge the schemas of an archive's topics into the columns of its table.

    Raises:
        ConfigError: Two topics have a field of the same name with different types, or with a different case.
    """
    known: dict[str, tuple[str, StructField]] = {}
    for topic, schema in sorted(schemas.items()):
        for field in schema.fields:
            other, first = known.setdefault(field.name.lower(), (topic, field))
            if (field.name, field.dataType) != (first.name, first.dataType):
                raise ConfigError(
                    f"schema: {topic} has a field {field.name} of {field.dataType.simpleString()}, and {other} has"
                    f" {first.name} of {first.dataType.simpleString()}; a column has one type: leave one out, or name"
                    " another output for one of the topics"
                )
    return StructType([field for _, field in known.values()])


def removed_or_changed(before: DataType, after: DataType, path: str = "") -> str | None:
    """
    Return the first removal or change of a field in a new schema, such as ``a.b is removed``.

    Return None if the new schema only adds fields.

    Args:
        before: The type in the old schema.
        after: The type in the new schema.
        path: The name of the field, with dots between nested names; "" for the whole schema.
    """
    if isinstance(before, StructType) and isinstance(after, StructType):
        kinds = {field.name: field.dataType for field in after.fields}
        for field in before.fields:
            inner = f"{path}.{field.name}".lstrip(".")
            if field.name not in kinds:
                return f"{inner} is removed"
            if found := removed_or_changed(field.dataType, kinds[field.name], inner):
                return found
        return None
    if isinstance(before, ArrayType) and isinstance(after, ArrayType):
        return removed_or_changed(before.elementType, after.elementType, f"{path}.element")
    if isinstance(before, MapType) and isinstance(after, MapType):
        return removed_or_changed(before.valueType, after.valueType, f"{path}.value")
    if before == after:
        return None
    return f"{path} was {before.simpleString()} and is {after.simpleString()}"


# ---------------------------------------------------------------------- values


class MisfitError(ValueError):
    """A value does not fit its schema. The message has the field, its value, and the expected type."""


class JsonFields:
    """
    Reads from JSON values the fields that a schema names.

    A value fits if it is one JSON object in UTF-8 without duplicate keys, in which each field that the schema names is
    absent, is null, or has the type that the schema gives. No value is converted from one JSON type to another.
    """

    def __init__(self, schema: StructType) -> None:
        _, self._read = _reader(schema, "")

    def read(self, value: bytes) -> dict[str, Any]:
        """
        Return the fields of a value by name, converted for a struct of Arrow. An absent field is None.

        Raises:
            MisfitError: The value does not fit.
        """
        try:
            document = _DECODER.decode(value.decode())
        except MisfitError:
            raise
        except UnicodeDecodeError:
            raise MisfitError("it is not UTF-8") from None
        except RecursionError:
            raise MisfitError("it is nested too deeply") from None
        except (ValueError, ArithmeticError) as error:
            raise MisfitError(f"it is no JSON document: {error}") from None
        found: dict[str, Any] = self._read(document)
        return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MisfitError(f"the key {twice!r:.60} occurs twice in an object")
    return found


def _refuse_constant(name: str) -> None:
    raise MisfitError(f"it has {name}, which JSON does not know")


#: Decimal keeps the digits of numbers: a float would round those of decimal fields.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=Decimal)

Read = Callable[[Any], Any]
#: The largest number of 32 bits.
_LARGEST_FLOAT = 3.4028234663852886e38


def _encodable(found: str) -> str:
    found.encode()  # A surrogate without its other half has no encoding.
    return found


def _whole(bits: int, found: int) -> int:
    if not -(1 << bits) <= found < 1 << bits:
        raise OverflowError
    return found


def _float(most: float, found: int | Decimal) -> float:
    number = float(found)
    if abs(number) > most:
        raise OverflowError
    return number


def _instant(found: str) -> datetime:
    time = datetime.fromisoformat(found)
    return time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _local_time(found: str) -> datetime:
    time = datetime.fromisoformat(found)
    if time.tzinfo is not None:
        raise ValueError
    return time


_STRING: Final[tuple[type, ...]] = (str,)
_WHOLE: Final[tuple[type, ...]] = (int,)
_NUMBER: Final[tuple[type, ...]] = (int, Decimal)
#: What is expected of the value, Arrow's type, the types that the decoder makes of such JSON, and the function that
#: converts the value, or raises an error.
_SCALARS: Final[dict[type[DataType], tuple[str, pa.DataType, tuple[type, ...], Read]]] = {
    types.StringType: ("a string", pa.string(), _STRING, _encodable),
    types.BooleanType: ("true or false", pa.bool_(), (bool,), bool),
    types.ByteType: ("a whole number of 8 bits", pa.int8(), _WHOLE, partial(_whole, 7)),
    types.ShortType: ("a whole number of 16 bits", pa.int16(), _WHOLE, partial(_whole, 15)),
    types.IntegerType: ("a whole number of 32 bits", pa.int32(), _WHOLE, partial(_whole, 31)),
    types.LongType: ("a whole number of 64 bits", pa.int64(), _WHOLE, partial(_whole, 63)),
    types.FloatType: ("a number of a float's range", pa.float32(), _NUMBER, partial(_float, _LARGEST_FLOAT)),
    types.DoubleType: ("a number of a double's range", pa.float64(), _NUMBER, partial(_float, sys.float_info.max)),
    types.DateType: ("a date, as '2026-11-28'", pa.date32(), _STRING, date.fromisoformat),
    types.TimestampType: ("a time, as '2026-11-28T13:05:00Z'", pa.timestamp("us", tz="UTC"), _STRING, _instant),
    types.TimestampNTZType: ("a time without a zone, as '2026-11-28T13:05'", pa.timestamp("us"), _STRING, _local_time),
    types.BinaryType: ("a string in Base64", pa.binary(), _STRING, partial(b64decode, validate=True)),
}


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type that Spark expects for a type of a schema that ``check_schema`` accepts."""
    return _reader(kind, "")[0]


def _reader(kind: DataType, path: str) -> tuple[pa.DataType, Read]:
    """
    Return Arrow's type of a field, and a function that converts a value of the field.

    The function accepts any value except None. It raises MisfitError for a value that does not fit.

    Raises:
        ConfigError: No JSON value has this type, or a struct has no field or has a field twice.
    """
    if isinstance(kind, StructType):
        return _struct_reader(kind, path)
    if isinstance(kind, ArrayType):
        inner, read = _reader(kind.elementType, f"{path}.element")

        def read_array(found: Any) -> list[Any]:
            if type(found) is not list:
                raise _misfit(path, found, "an array")
            return [None if each is None else read(each) for each in found]

        return pa.list_(pa.field("element", inner)), read_array
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise ConfigError(f"schema: {path} is a map of {kind.keyType.simpleString()}; keys of JSON are strings")
        inner, read = _reader(kind.valueType, f"{path}.value")
        _, read_key = _reader(kind.keyType, f"a key of {path}")

        def read_map(found: Any) -> list[tuple[str, Any]]:
            if type(found) is not dict:
                raise _misfit(path, found, "an object")
            return [(read_key(name), None if each is None else read(each)) for name, each in found.items()]

        return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", inner)), read_map
    if isinstance(kind, DecimalType):
        step, digits = Decimal(1).scaleb(-kind.scale), Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
        expected, allowed = f"a number that fits {kind.simpleString()}", _NUMBER
        found_type = pa.decimal128(kind.precision, kind.scale)
        convert: Read = lambda found: Decimal(found).quantize(step, context=digits)  # noqa: E731
    elif type(kind) in _SCALARS:
        expected, found_type, allowed, convert = _SCALARS[type(kind)]
    else:
        raise ConfigError(f"schema: {path} is {kind.simpleString()}, which no JSON value is; give another type")

    def read_scalar(found: Any) -> Any:
        with suppress(ValueError, ArithmeticError):
            if type(found) in allowed:
                return convert(found)
        raise _misfit(path, found, expected)

    return found_type, read_scalar


def _struct_reader(kind: StructType, path: str) -> tuple[pa.DataType, Read]:
    names = [each.name.lower() for each in kind.fields]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"schema: {f'{path}.{twice[0]}'.lstrip('.')} is named twice; upper and lower case are the same"
        )
    if not names:
        raise ConfigError(f"schema: {path or 'it'} has no fields; name one at least")
    inner = [(each.name, *_reader(each.dataType, f"{path}.{each.name}".lstrip("."))) for each in kind.fields]
    readers = [(name, read) for name, _, read in inner]

    def read_struct(found: Any) -> dict[str, Any]:
        if type(found) is not dict:
            raise _misfit(path, found, "an object")
        return {name: None if (each := found.get(name)) is None else read(each) for name, read in readers}

    return pa.struct([pa.field(name, arrow) for name, arrow, _ in inner]), read_struct


def _misfit(path: str, found: Any, expected: str) -> MisfitError:
    shown = str(found) if isinstance(found, Decimal) else json.dumps(found, default=str)
    return MisfitError(f"{path or 'it'} is {shown:.60}, expected {expected}")
