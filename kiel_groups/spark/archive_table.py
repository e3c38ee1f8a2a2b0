"""
The table of an archive: its folders and columns, and what JSON values add to them.

A record's folder depends on its value and on the time of its batch, which Spark stores. So a repeated batch puts each
record into the same folder again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, StringType, StructField, StructType

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.spark.columns import INCARNATION

__all__ = [
    "DAY",
    "OBSERVED",
    "ROLLS",
    "TimeField",
    "check_pattern",
    "check_schema",
    "parse_schema",
    "removed_or_changed",
    "table_rows",
]

#: The folders of records below those of topics.
DAY: Final = "day"
ROLLS: Final = {DAY: ("date",), "hour": ("date", "hour")}
#: The columns of the table that are no fields of values; one of them tells records apart that do not fit the schema.
_MISFIT: Final = "misfit"
_COLUMNS = ("topic", "date", "hour", "partition", "offset", "archived_at", "key", "value", INCARNATION, _MISFIT)
#: The name of the metrics of a batch in Spark's reports: records without a time, and values that do not fit the schema.
OBSERVED: Final = "archive"

_DAY_S = 86_400
_HOUR_S = 3_600
#: The end of the year 9999. Readers of Parquet know no later dates; such a number is mostly of another unit.
_LAST_S = 253_402_300_799
_ISO, _SECONDS, _MILLISECONDS = "iso", "s", "ms"
_PATH = re.compile(r"[\w@-]+(\.[\w@-]+)*")
#: The letters of Spark's datetime patterns that stand for a time zone, outside of quoted text.
_ZONE_LETTERS = re.compile(r"[VzOXxZ]")
_QUOTED = re.compile(r"'[^']*'")


@dataclass(frozen=True, slots=True)
class TimeField:
    """
    The field of JSON values that has the time of an event.

    ``path`` has dots between the names of nested fields. ``form`` is ``iso`` for ISO 8601, ``s`` or ``ms`` for seconds
    or milliseconds since 1970, or a datetime pattern of Spark. A text without a time zone is UTC.
    """

    path: str
    form: str = _ISO

    @classmethod
    def parse(cls, text: str) -> TimeField:
        """
        Parse ``NAME`` or ``NAME:FORMAT``.

        Raises:
            ConfigError: There is no such name, or the format is empty.
        """
        path, colon, form = text.strip().partition(":")
        if not _PATH.fullmatch(path) or (colon and not form):
            raise ConfigError(
                f"time_field: {text!r} given; expected the name of a field, such as 'at' or 'meta.at', and for other"
                " times than ISO 8601 a format: 'at:s', 'at:ms' or 'at:dd/MM/yyyy HH:mm'"
            )
        return cls(path, form or _ISO)

    def __str__(self) -> str:
        return f"{self.path}:{self.form}"

    @property
    def pattern(self) -> str | None:
        """The datetime pattern, with a zone, or None if the format has a name."""
        if self.form in (_ISO, _SECONDS, _MILLISECONDS):
            return None
        return self.form if self._has_zone else f"{self.form} VV"

    @property
    def _has_zone(self) -> bool:
        return _ZONE_LETTERS.search(_QUOTED.sub("", self.form)) is not None

    def seconds(self, value: Column) -> Column:
        """Return the event's time in whole seconds since 1970, or null if the value has none between 1970 and 9999."""
        names = "".join(f"['{name}']" for name in self.path.split("."))
        text = sql.trim(sql.get_json_object(value, f"${names}"))
        if self.form in (_SECONDS, _MILLISECONDS):
            number = text.try_cast("decimal(24, 6)")
            found = sql.floor(number if self.form == _SECONDS else number / 1000)
        elif self.pattern is None:
            found = sql.unix_seconds(_iso_text(text).try_cast("timestamp"))
        else:
            zoned = text if self._has_zone else sql.concat(text, sql.lit(" UTC"))
            found = sql.unix_seconds(sql.try_to_timestamp(zoned, sql.lit(self.pattern)))
        found = found.cast("bigint")
        return sql.when(found.between(0, _LAST_S), found)


def _iso_text(text: Column) -> Column:
    """Return a text of ISO 8601 with seconds and a time zone, or null; without a date, Spark would take today's."""
    text = sql.when(text.rlike(r"^\d{4}-\d\d-\d\d([T ]|$)"), text)
    text = sql.regexp_replace(text, r"^(.{10})$", "$1T00:00")
    text = sql.regexp_replace(text, r"^(.{13}:\d\d)(?!:)", "$1:00")
    return sql.when(text.rlike(r"([A-Z]|[+-]\d\d(:?\d\d)?)$"), text).otherwise(sql.concat(text, sql.lit("Z")))


def check_pattern(spark: SparkSession, field: TimeField) -> None:
    """
    Check a datetime pattern, which only Spark can parse.

    Raises:
        ConfigError: Spark does not know the pattern, or formats times with it but does not parse them.
    """
    if field.pattern is None:
        return
    try:
        spark.range(1).select(sql.try_to_timestamp(sql.lit(""), sql.lit(field.pattern))).collect()
    except PySparkException as error:
        raise ConfigError(
            f"time_field: {field.form!r} is no pattern with which Spark parses times; expected 'iso', 's', 'ms' or such"
            " as 'dd/MMM/yyyy:HH:mm:ss Z'"
        ) from error


def parse_schema(text: str) -> StructType:
    """
    Parse the text of a schema: JSON, as ``df.schema.json()`` returns it, or DDL, such as ``user STRING, amount INT``.

    DDL needs an active session.

    Raises:
        ConfigError: The text is neither.
    """
    try:
        found = StructType.fromJson(json.loads(text)) if is_json(text) else StructType.fromDDL(text)
        if not isinstance(found, StructType):
            raise TypeError(f"it is {found.simpleString()}")
        return found
    except (PySparkException, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(
            f"schema: {text.strip()!r:.80} is no schema ({lines[0] if lines else type(error).__name__}); expected such"
            " as 'user STRING, amount DOUBLE', or the JSON of df.schema.json()"
        ) from error


def is_json(text: str) -> bool:
    """Return whether the text of a schema is JSON, and so needs no session to be parsed."""
    return text.lstrip().startswith("{")


def check_schema(schema: StructType) -> None:
    """
    Check that the fields of values can be columns of the table.

    Raises:
        ConfigError: There is no field, one has the name of another column or of another field in any case, or one has a
            type that JSON or Parquet lacks.
    """
    taken = set(_COLUMNS)
    for field in schema.fields:
        if field.name.lower() in taken:
            raise ConfigError(
                f"schema: the table has a column {field.name} already; leave this field out, it stays in 'value'"
            )
    if problem := next(_problems(schema, ""), None):
        raise ConfigError(f"schema: {problem}")


def _problems(kind: DataType, path: str) -> Iterator[str]:
    if isinstance(kind, StructType):
        if not kind.fields:
            yield f"{path or 'it'} has no fields; name one at least"
        names = [name.lower() for name in kind.fieldNames()]
        for name, field in zip(names, kind.fields, strict=True):
            inner = f"{path}.{field.name}".lstrip(".")
            if names.count(name) > 1:
                yield f"{inner} is named twice; upper and lower case are the same"
            yield from _problems(field.dataType, inner)
    elif isinstance(kind, ArrayType):
        yield from _problems(kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            yield f"{path} is a map of {kind.keyType.simpleString()}; keys of JSON are strings"
        yield from _problems(kind.valueType, f"{path}.value")
    elif not isinstance(kind, AtomicType) or "interval" in kind.simpleString():
        yield f"{path} is {kind.simpleString()}, which a file of Parquet cannot have; give another type"


def removed_or_changed(before: DataType, after: DataType, path: str = "") -> str | None:
    """Return what a new schema takes from an old one, such as ``a.b is removed``, or None if it only adds fields."""
    if isinstance(before, StructType) and isinstance(after, StructType):
        types = {field.name: field.dataType for field in after.fields}
        for field in before.fields:
            inner = f"{path}.{field.name}".lstrip(".")
            if field.name not in types:
                return f"{inner} is removed"
            if found := removed_or_changed(field.dataType, types[field.name], inner):
                return found
        return None
    if isinstance(before, ArrayType) and isinstance(after, ArrayType):
        return removed_or_changed(before.elementType, after.elementType, f"{path}.element")
    if isinstance(before, MapType) and isinstance(after, MapType):
        return removed_or_changed(before.valueType, after.valueType, f"{path}.value")
    if before == after:
        return None
    return f"{path} was {before.simpleString()} and is {after.simpleString()}"


def table_rows(
    rows: DataFrame, *, roll: str, time_field: TimeField | None, schema: StructType | None, fails: bool
) -> DataFrame:
    """
    Return the rows of the table, from rows of the source.

    Args:
        rows: Rows with all columns of the source.
        roll: A key of ``ROLLS``.
        time_field: Where values have the time that decides on the folder. Without it, and for a record without a time,
            the time of the batch decides.
        schema: The fields of values that become columns.
        fails: Whether the query fails at a value that does not fit the schema. Otherwise, the record has null in all
            fields, and ``misfit`` true.
    """
    text, now = sql.col("value").cast("string"), sql.current_timestamp()
    counts: dict[str, Column] = {}
    arrived_s = event_s = sql.unix_seconds(now)
    if time_field is not None:
        rows = rows.withColumn("_event_s", time_field.seconds(text))
        event_s = sql.coalesce("_event_s", arrived_s)
        counts["untimed"] = sql.count_if(sql.isnull("_event_s"))
    fields: list[Column] = []
    if schema is not None:
        rows = rows.withColumn("_json", _parsed(text, schema))
        rows = rows.withColumn(_MISFIT, sql.expr("value IS NOT NULL AND (_json IS NULL OR _json._corrupt IS NOT NULL)"))
        # A value that does not fit has some fields, but which ones depends on Spark. So it has none.
        fields = [
            sql.when(~sql.col(_MISFIT), sql.col("_json").getField(field.name)).alias(field.name)
            for field in schema.fields
        ]
        counts["misfits"] = sql.count_if(_MISFIT)
        fields.append(_misfit(text) if fails else sql.col(_MISFIT))
    if counts:
        rows = rows.observe(OBSERVED, *(count.alias(name) for name, count in counts.items()))
    folders = {
        "date": sql.date_from_unix_date(sql.floor(event_s / _DAY_S).cast("int")),
        "hour": sql.lpad((sql.floor(event_s / _HOUR_S) % 24).cast("string"), 2, "0"),
    }
    return rows.select(
        "topic",
        *(folders[name].alias(name) for name in ROLLS[roll]),
        "partition",
        "offset",
        now.alias("archived_at"),
        "key",
        "value",
        INCARNATION,
        *fields,
    )


def _parsed(text: Column, schema: StructType) -> Column:
    wanted = StructType([*schema.fields, StructField("_corrupt", StringType())])
    options: dict[str, Any] = {"columnNameOfCorruptRecord": "_corrupt", "timeZone": "UTC"}
    return sql.from_json(text, wanted, options)


def _misfit(text: Column) -> Column:
    """Return the column ``misfit`` of a run that fails at the first value that does not fit."""
    shown = sql.regexp_replace(sql.substring(text, 1, 100), r"\s+", " ")
    # The error is one of this package's. Its name is in two parts, because Spark's errors show the query's plan, too.
    message = sql.format_string(
        "%s.ProtocolError: %s:%d: offset %d: the value does not fit the schema: %s",
        sql.lit(ProtocolError.__module__),
        sql.col("topic"),
        sql.col("partition"),
        sql.col("offset"),
        shown,
    )
    failed = sql.raise_error(message).cast("boolean")
    return sql.when(sql.col(_MISFIT), failed).otherwise(False).alias(_MISFIT)
