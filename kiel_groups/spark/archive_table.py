"""
The table of an archive: its columns, and the folders that the times of records choose.

A record's folder depends on its value and on the time of its batch, which Spark stores. So a repeated batch puts each
record into the same folder again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from kiel_groups.errors import ConfigError
from kiel_groups.spark.columns import FIELDS, INCARNATION

__all__ = ["COLUMNS", "DAY", "OBSERVED", "ROLLS", "TimeField", "check_pattern", "table_rows"]

#: The folders of records below those of topics.
DAY: Final = "day"
ROLLS: Final = {DAY: ("date",), "hour": ("date", "hour")}
#: The columns of the table that are no fields of values.
COLUMNS: Final = ("topic", "date", "hour", "partition", "offset", "archived_at", "key", "value", INCARNATION)
#: The name of the metrics of a batch in Spark's reports: ``bad_records``, and ``untimed`` for records without a time.
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


def table_rows(
    rows: DataFrame, *, roll: str, time_field: TimeField | None, fields: Sequence[str], counts_bad: bool
) -> DataFrame:
    """
    Return the rows of the table, from rows of the source.

    Args:
        rows: Rows with all columns of the source.
        roll: A key of ``ROLLS``.
        time_field: Where values have the time that decides on the folder. Without it, and for a record without a time,
            the time of the batch decides.
        fields: The names of the columns that are fields of JSON values.
        counts_bad: Whether the rows have bad records, in which ``error`` is not null: the table has none of them.
    """
    now = sql.current_timestamp()
    counts: dict[str, Column] = {}
    arrived_s = event_s = sql.unix_seconds(now)
    is_good = sql.isnull("error") if counts_bad else sql.lit(True)
    if time_field is not None:
        rows = rows.withColumn("_event_s", time_field.seconds(sql.col("value").cast("string")))
        event_s = sql.coalesce("_event_s", arrived_s)
        counts["untimed"] = sql.count_if(sql.isnull("_event_s") & is_good)
    if counts_bad:
        counts["bad_records"] = sql.count_if(~is_good)
    if counts:
        rows = rows.observe(OBSERVED, *(count.alias(name) for name, count in counts.items())).where(is_good)
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
        *(sql.col(FIELDS).getField(name).alias(name) for name in fields),
    )
