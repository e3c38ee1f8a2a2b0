"""
The settings of an archive, and the columns and folders of its table.

A record's folder depends on its value and on the time of its batch. Spark stores the time of a batch. So a repeated
batch puts each record into the same folder again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from kiel_groups.config import is_number
from kiel_groups.errors import ConfigError
from kiel_groups.spark import side_tables
from kiel_groups.spark.columns import FIELDS, INCARNATION, check_schema, merged_schema
from kiel_groups.spark.environment import can_bound_batches
from kiel_groups.spark.folders import local_path, located, names_a_host
from kiel_groups.spark.options import FAIL, QUARANTINE, SKIP, ReadOptions

#: The folders of records below those of topics.
DAY: Final = "day"
ROLLS: Final = {DAY: ("date",), "hour": ("date", "hour")}
#: The columns of the table that are no fields of values.
_COLUMNS: Final = ("topic", "date", "hour", "partition", "offset", "archived_at", "key", "value", INCARNATION)
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
    The field of JSON values that has the time of an event, and the format of that time.

    ``path`` is the name of the field, with dots between the names of nested fields. ``form`` is ``iso`` for ISO 8601,
    ``s`` or ``ms`` for seconds or milliseconds since 1970, or a datetime pattern of Spark. A time without a time zone
    is in UTC.
    """

    path: str
    form: str = _ISO

    @classmethod
    def parse(cls, text: str) -> TimeField:
        """
        Parse ``NAME`` or ``NAME:FORMAT``.

        Raises:
            ConfigError: The name is not valid, or the format is empty.
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
        """The datetime pattern with a time zone, or None for the formats ``iso``, ``s`` and ``ms``."""
        if self.form in (_ISO, _SECONDS, _MILLISECONDS):
            return None
        return self.form if self._has_zone else f"{self.form} VV"

    @property
    def _has_zone(self) -> bool:
        return _ZONE_LETTERS.search(_QUOTED.sub("", self.form)) is not None

    def seconds(self, value: Column) -> Column:
        """
        Return the column of event times, in whole seconds since 1970, for the column ``value``.

        For a value without a time between 1970 and 9999, the event time is null.
        """
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
    """
    Return ISO 8601 texts completed with a time, seconds and a time zone. A text without a date becomes null.

    For a text without a date, Spark would take today's date.
    """
    text = sql.when(text.rlike(r"^\d{4}-\d\d-\d\d([T ]|$)"), text)
    text = sql.regexp_replace(text, r"^(.{10})$", "$1T00:00")
    text = sql.regexp_replace(text, r"^(.{13}:\d\d)(?!:)", "$1:00")
    return sql.when(text.rlike(r"([A-Z]|[+-]\d\d(:?\d\d)?)$"), text).otherwise(sql.concat(text, sql.lit("Z")))


def check_pattern(spark: SparkSession, field: TimeField) -> None:
    """
    Check that Spark can parse times by the datetime pattern of a field. Do nothing for a field without a pattern.

    Raises:
        ConfigError: The pattern is not valid, or Spark can only format times with it.
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
    Return the rows of the archive's table, computed from rows of the source.

    Args:
        rows: The rows of the source, with the columns that the archive reads.
        roll: A key of ``ROLLS``.
        time_field: The field of values that has the time for the folder. Without this field, and for a record without a
            time, the time of the batch chooses the folder.
        fields: The names of the columns that are fields of JSON values.
        counts_bad: Whether the rows have the column ``error``. In rows of bad records, it is not null. These rows are
            counted and left out.
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


#: Enough for files of a useful size; such a batch takes some seconds to half a minute.
BATCH_RECORDS = 5_000_000
#: Large enough for readers of Parquet, small enough for several tasks in a batch of the default size.
FILE_MB = 128
#: The default checkpoint within the output; readers of Parquet ignore names that begin with an underscore.
_CHECKPOINT = "_checkpoint"
_YEAR_S = 365 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings:
    """
    An archive: the topics to read, and the folder of their records.

    Args:
        topics: The names of the topics; empty if ``pattern`` is given.
        pattern: A regular expression, instead of ``topics``. Topics whose names contain a match are read.
        output: The folder of the archive: a path of this machine, or a URI that Spark knows, such as ``hdfs://…``.
        brokers: Some brokers of the cluster, separated by commas.
        zookeeper: The cluster's ZooKeeper servers; needed if ``group`` is given.
        group: The group to commit offsets for. By default, each archive has a group of its own, ``kiel-spark-…``.
        start: ``earliest``, ``latest`` or ``group``: where the first run starts to read the existing partitions. Later
            runs continue at the checkpoint. Partitions that appear later are read from their beginning.
        checkpoint: The folder of the archive's progress; by default ``_checkpoint`` in the output.
        batch_records: The most records of a batch, or None for no bound. Before Spark 4.2, no bound is possible.
        interval_s: The seconds from one batch to the next, until the run is stopped. None means that the run ends when
            it has read the existing records.
        file_mb: The desired size of files, in MB of a topic's log (before Parquet compresses the records). In each
            batch, a topic has about one file for every ``file_mb``, and at least one file.
        roll: ``day`` or ``hour``: whether the records of a topic are in a folder for each day, or for each hour.
        time_field: The field of JSON values that has the time for the folder, as ``NAME`` or ``NAME:FORMAT``; see
            ``archive_table.TimeField``. Without this field, or for values without such a time, the batch's time counts.
        schemas: The fields of JSON values that become columns, by topic. Values of other topics may be anything. Later
            runs may add fields, but not remove fields. A value that does not fit is a bad record.
        bad_records: The treatment of bad records, which are damaged messages and values that do not fit. ``fail`` ends
            the archiving of the topic. ``skip`` records the offsets and the reason in ``_quarantine``. ``quarantine``
            also records the bytes there.
        fail_on_data_loss: Whether to end the run if records were lost before they were archived. Otherwise, the run
            logs a warning and continues with the records that are left; a recreated topic is read from its beginning.
        is_only_run: Whether the caller ensures that no other run of the archive is active. If the checkpoint is on
            this machine, a lock ensures that. Otherwise, the run needs this setting to exclude a topic that fails from
            a planned batch.

    Raises:
        ConfigError: A value is not valid, or two values contradict each other.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    output: str
    brokers: str
    zookeeper: str | None = None
    group: str | None = None
    start: str = "earliest"
    checkpoint: str | None = None
    batch_records: int | None = BATCH_RECORDS
    interval_s: float | None = None
    file_mb: int = FILE_MB
    roll: str = DAY
    time_field: str | None = None
    schemas: Mapping[str, StructType] = field(default_factory=dict)
    bad_records: str = FAIL
    fail_on_data_loss: bool = True
    is_only_run: bool = False

    def __post_init__(self) -> None:
        if not self.output.strip():
            raise ConfigError("output: nothing given; name the folder of the archive")
        if self.interval_s is not None and not (is_number(self.interval_s) and 0 < self.interval_s <= _YEAR_S):
            given = f"{self.interval_s:g}" if is_number(self.interval_s) else self.interval_s
            raise ConfigError(f"interval_s: {given} given; expected seconds above 0, at most a year")
        if self.bad_records not in (FAIL, SKIP, QUARANTINE):
            raise ConfigError(f"bad_records: {self.bad_records!r} given; expected {FAIL}, {SKIP} or {QUARANTINE}")
        if self.roll not in ROLLS:
            raise ConfigError(f"roll: {self.roll!r} given; expected {' or '.join(ROLLS)}")
        self.read_options()
        for topic, schema in self.schemas.items():
            if not self.reads(topic):
                raise ConfigError(f"schema: given for {topic!r:.80}, which is not among the topics; name it, too")
            check_schema(schema, _COLUMNS)
        merged_schema(self.schemas)
        _ = self.event_time
        for name, text in (("output", self.output), ("checkpoint", self.checkpoint or "")):
            if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:/*", text):
                raise ConfigError(f"{name}: {text!r} names no folder; expected such as 's3a://bucket/folder'")
            if names_a_host(text):
                raise ConfigError(
                    f"{name}: {text!r} names a host; a folder of this machine is written as 'file:///folder'"
                )
        inside = f"{self.output_uri}/"
        if self.checkpoint_uri.startswith(inside) and not self.checkpoint_uri.startswith(f"{inside}_"):
            raise ConfigError(
                f"checkpoint: {self.checkpoint} is among the records; name a folder outside of the output, or one in it"
                " that begins with '_'"
            )

    @property
    def output_uri(self) -> str:
        """The absolute URI of the output."""
        return located(self.output)

    @property
    def checkpoint_uri(self) -> str:
        """The absolute URI of the checkpoint."""
        return located(self.checkpoint) if self.checkpoint else f"{self.output_uri}/{_CHECKPOINT}"

    @property
    def is_local(self) -> bool:
        """Whether the output and the checkpoint are on this machine, so that they can be read without Spark."""
        return None not in (local_path(self.output_uri), local_path(self.checkpoint_uri))

    @property
    def event_time(self) -> TimeField | None:
        """The parsed ``time_field``, or None if not given. Raise ConfigError if it is not valid."""
        return None if self.time_field is None else TimeField.parse(self.time_field)

    def reads(self, topic: str) -> bool:
        """Return whether the settings choose a topic of this name."""
        return topic in self.topics if self.pattern is None else re.search(self.pattern, topic) is not None

    def source_options(self) -> dict[str, str]:
        """Return the settings as options of the data source."""
        named = {
            "kafka.bootstrap.servers": self.brokers,
            "subscribe": ",".join(self.topics) or None,
            "subscribePattern": self.pattern,
            "startingOffsets": self.start,
            "kafka.group.id": self.group,
            "kiel.zookeeper.connect": self.zookeeper,
            "failOnDataLoss": None if self.fail_on_data_loss else "false",
            "kiel.archive.file.mb": str(self.file_mb),
            "maxOffsetsPerTrigger": str(self.batch_records) if self._is_bounded else None,
            "kiel.onBadRecord": self.bad_records,
            "kiel.archive.output": self.output_uri,
            "kiel.archive.schemas": json.dumps({topic: each.jsonValue() for topic, each in self.schemas.items()}),
        }
        return {name: text for name, text in named.items() if text is not None}

    @property
    def _is_bounded(self) -> bool:
        """
        Whether the source gets ``batch_records`` as its bound.

        Before Spark 4.2, the default bound is left out. Any other bound is passed to the source, and the source refuses
        it.
        """
        return self.batch_records is not None and (can_bound_batches() or self.batch_records != BATCH_RECORDS)

    @property
    def side_tables(self) -> tuple[str, ...]:
        """The names of the side tables that a run may write, for bad records and for losses."""
        quarantine = () if self.bad_records == FAIL else (side_tables.QUARANTINE,)
        return quarantine if self.fail_on_data_loss else (*quarantine, side_tables.LOSSES)

    def read_options(self) -> ReadOptions:
        """
        Parse the settings as the data source does.

        Raises:
            ConfigError: The source refuses an option.
        """
        return ReadOptions.parse(self.source_options(), streaming=True)
