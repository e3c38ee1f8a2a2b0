"""
The columns that JSON values of an archive's topics have: their schemas, and which values fit.

Spark's own ``from_json`` is not strict enough: it takes a number for a string, and ignores text after the document.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from kiel_groups.errors import ConfigError

__all__ = [
    "JsonFields",
    "MisfitError",
    "arrow_type",
    "check_schema",
    "is_json",
    "merged_schema",
    "parse_schema",
    "removed_or_changed",
]


def parse_schema(text: str) -> StructType:
    """
    Parse the text of a schema: JSON, as ``df.schema.json()`` returns it, or DDL, such as ``user STRING, amount INT``.

    Every field of the result may be null. DDL needs an active session.

    Raises:
        ConfigError: The text is neither.
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


def _nullable(each: dict[str, Any]) -> dict[str, Any]:
    return each | dict.fromkeys({"nullable", "containsNull", "valueContainsNull"} & each.keys(), True)


def is_json(text: str) -> bool:
    """Return whether the text of a schema is JSON, and so needs no session to be parsed."""
    return text.lstrip().startswith("{")


def check_schema(schema: StructType, taken: Collection[str]) -> None:
    """
    Check that the fields of values can be columns of a table.

    Args:
        schema: The schema of the values.
        taken: The names of the table's other columns, in lower case.

    Raises:
        ConfigError: There is no field, one has the name of another column or of another field in any case, or one has a
            type that no JSON value has.
    """
    for field in schema.fields:
        if field.name.lower() in taken:
            raise ConfigError(
                f"schema: the table has a column {field.name} already; leave this field out, it stays in 'value'"
            )
    _reader(schema, "")


def merged_schema(schemas: Mapping[str, StructType]) -> StructType:
    """
    Return the columns of a table whose topics have these schemas.

    Raises:
        ConfigError: Two topics have a field of the same name, in any case, with different types.
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
    """Return what a new schema takes from an old one, such as ``a.b is removed``, or None if it only adds fields."""
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
    """A value does not fit its schema. The message names the field, what it has, and what was expected."""


class JsonFields:
    """
    Reads the fields that a schema names from JSON values.

    A value fits if it is one JSON object in UTF-8, in which no key occurs twice, and each field of the schema is of the
    field's type, null or absent. Nothing is converted from one JSON type to another.
    """

    def __init__(self, schema: StructType) -> None:
        _, self._read = _reader(schema, "")

    def read(self, value: bytes) -> dict[str, Any]:
        """
        Return the fields of a value, as Arrow makes a struct of them.

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
    """Return Arrow's type for values of a type that ``check_schema`` accepts, exactly as Spark expects it."""
    return _reader(kind, "")[0]


def _reader(kind: DataType, path: str) -> tuple[pa.DataType, Read]:
    """
    Return Arrow's type of a field, and the function that checks and converts its values, which are not null.

    Raises:
        ConfigError: As ``check_schema``.
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
