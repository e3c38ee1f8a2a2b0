"""Create readers and writers from options and a schema, with the features that the installed Spark supports."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.types import StructType

from kiel_groups.errors import ConfigError
from kiel_groups.spark.batch import BatchReader
from kiel_groups.spark.options import ReadOptions, WriteOptions, check_read_schema
from kiel_groups.spark.stream.stream_reader import StreamReader

if TYPE_CHECKING:
    from kiel_groups.spark.tasks.row_writer import BatchWriter, StreamWriter

__all__ = ["batch_reader", "batch_writer", "can_bound_batches", "stream_reader", "stream_writer"]


def batch_reader(options: Mapping[str, str], schema: StructType) -> BatchReader:
    """
    Create the reader of a batch query.

    Raises:
        ConfigError: An option or the schema is not valid.
    """
    return BatchReader(ReadOptions.parse(options, streaming=False), check_read_schema(schema))


def stream_reader(options: Mapping[str, str], schema: StructType) -> StreamReader:
    """
    Create the reader of a streaming query.

    Raises:
        ConfigError: An option or the schema is not valid, or an option needs a later Spark.
    """
    read = ReadOptions.parse(options, streaming=True)
    return _stream_reader_class(read)(read, check_read_schema(schema))


def can_bound_batches() -> bool:
    """Return whether this Spark lets a Python source bound its micro-batches; Spark 4.2 and later do."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def _stream_reader_class(read: ReadOptions) -> type[StreamReader]:
    if not can_bound_batches():
        if read.max_offsets_per_trigger is not None or read.min_offsets_per_trigger is not None:
            raise ConfigError(
                "maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2, which lets a Python source bound its"
                f" batches; this is {pyspark.__version__}"
            )
        return StreamReader
    from kiel_groups.spark.stream.stream_reader import BoundedStreamReader

    return BoundedStreamReader


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """
    Create the writer of a batch query.

    Raises:
        ConfigError: An option or a column is not valid, or the mode is ``overwrite``: records cannot be replaced.
    """
    if overwrite:
        raise ConfigError("mode: 'overwrite' given, and records of a topic cannot be replaced; expected 'append'")
    # Imported here: otherwise each of Spark's short-lived planner processes of a read would import the producer, too.
    from kiel_groups.spark.tasks.row_writer import BatchWriter

    return BatchWriter(WriteOptions.parse(options), schema)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """
    Create the writer of a streaming query.

    Raises:
        ConfigError: An option or a column is not valid, or the output mode is ``complete``: records cannot be replaced.
    """
    if overwrite:
        raise ConfigError("outputMode: 'complete' given, and records of a topic cannot be replaced; expected 'append'")
    from kiel_groups.spark.tasks.row_writer import StreamWriter

    return StreamWriter(WriteOptions.parse(options), schema)
