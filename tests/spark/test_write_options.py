"""The options and columns of the sink."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from kiel_groups.errors import ConfigError
from kiel_groups.spark import KielDataSource
from kiel_groups.spark.columns import WriteColumns
from kiel_groups.spark.options import WriteOptions

pytestmark = pytest.mark.spark

LEAST = {"kafka.bootstrap.servers": "one:9092"}


KINDS = {"STRING": StringType(), "BINARY": BinaryType(), "INT": IntegerType(), "BIGINT": LongType()}


def columns(text: str) -> StructType:
    """Parse a schema in SQL's syntax, because Spark's parser would need a session."""
    pairs = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def test_acks_and_compression_have_the_names_of_kafkas_producer() -> None:
    """
    Acks and compression have the names of Kafka's producer. The defaults are acknowledgement by all replicas, and no
    compression.
    """
    assert (WriteOptions.parse(LEAST).acks, WriteOptions.parse(LEAST).compression) == (-1, None)
    given = WriteOptions.parse({**LEAST, "kafka.acks": "1", "kafka.compression.type": "snappy", "topic": "t"})
    assert (given.acks, given.compression, given.topic) == (1, "snappy", "t")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kafka.acks": "2"}, "kafka.acks: '2' given; expected all or -1 or 0 or 1"),
        ({"kafka.compression.type": "zstd"}, "kafka.compression.type: 'zstd' given"),
        ({"subscribe": "t"}, "subscribe: has no meaning when writing"),
        ({"kafka.enable.idempotence": "true"}, "no idempotent producers"),
        ({"includeHeaders": "true"}, "have no headers"),
        ({"topic": "a/b"}, "topic: 'a/b' is not a legal name"),
    ],
)
def test_unsupported_options_are_refused(options: dict[str, str], reason: str) -> None:
    """The error has the reason, as for options of reads."""
    with pytest.raises(ConfigError, match=reason):
        WriteOptions.parse({**LEAST, **options})


def test_the_case_of_column_names_does_not_matter() -> None:
    """Columns that only the source has, such as ``offset``, are ignored."""
    found = WriteColumns.of(columns("offset BIGINT, Value STRING, KEY BINARY, topic STRING, partition INT"), None)
    assert found == WriteColumns(value=1, key=2, topic=3, partition=4)


def test_the_topic_option_overrides_the_column() -> None:
    """The topic option has priority in Spark's sink for Kafka, too."""
    assert WriteColumns.of(columns("value STRING, topic STRING"), "t").topic is None


def test_other_columns_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Spark's own Kafka sink ignores other columns without a word."""
    found = WriteColumns.of(columns("one INT, value STRING, two BIGINT, offset BIGINT"), "t")
    assert found == WriteColumns(value=1, key=None, topic=None, partition=None)
    assert caplog.messages == ["ignoring columns that have no place in a message: one, two"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("key STRING, topic STRING", "there is no column 'value'"),
        ("value STRING", "nothing says which topic to write to"),
        ("value INT, topic STRING", "column value: is int, expected string or binary; cast it"),
        ("value STRING, topic STRING, partition BIGINT", "column partition: is bigint, expected int"),
        ("value STRING, topic STRING, headers STRING", "column headers: messages of Kafka 0.8 have no headers"),
        ("value STRING, VALUE STRING, topic STRING", "column VALUE: there are two of that name"),
    ],
)
def test_columns_that_make_no_message_are_refused(schema: str, reason: str) -> None:
    """Columns that make no message are refused before any record is written."""
    with pytest.raises(ConfigError, match=reason):
        WriteColumns.of(columns(schema), None)


def test_records_cannot_be_replaced() -> None:
    """Modes that would delete existing records are refused."""
    with pytest.raises(ConfigError, match="'overwrite' given"):
        KielDataSource(LEAST).writer(columns("value STRING"), overwrite=True)
    with pytest.raises(ConfigError, match="'complete' given"):
        KielDataSource(LEAST).streamWriter(columns("value STRING"), overwrite=True)
