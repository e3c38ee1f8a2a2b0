"""
The data source ``kiel``. Spark instantiates it for ``format("kiel")``.

Spark imports this module in many short-lived processes, even for queries of other sources. So the module imports
little.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from kiel_groups.errors import ConfigError
from kiel_groups.spark.environment import can_bound_batches, check_libraries
from kiel_groups.spark.spark_calls import PortablePickle, cause_first

if TYPE_CHECKING:
    from kiel_groups.spark.readers import BatchReader, StreamReader
    from kiel_groups.spark.row_writer import BatchWriter, StreamWriter


class KielDataSource(PortablePickle, DataSource):
    """
    A data source that presents topics of Kafka 0.8 as tables and streams; ``docs/spark.rst`` lists its options.

    Raises:
        ConfigError: pyarrow is missing. The methods also raise ConfigError for an option or a schema that is not
            valid, for an option that needs a later Spark, and for a mode that would replace records.
    """

    @cause_first
    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_libraries()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "kiel"

    def schema(self) -> StructType:
        from kiel_groups.spark.columns import READ_SCHEMA

        return READ_SCHEMA

    @cause_first
    def reader(self, schema: StructType) -> BatchReader:
        from kiel_groups.spark.columns import check_read_schema
        from kiel_groups.spark.options import ReadOptions
        from kiel_groups.spark.readers import BatchReader

        return BatchReader(ReadOptions.parse(self.options, streaming=False), check_read_schema(schema))

    @cause_first
    def streamReader(self, schema: StructType) -> StreamReader:
        from kiel_groups.spark.columns import check_read_schema, merged_schema
        from kiel_groups.spark.options import ReadOptions
        from kiel_groups.spark.readers import BoundedStreamReader, StreamReader

        read = ReadOptions.parse(self.options, streaming=True)
        columns = check_read_schema(schema, merged_schema(read.schemas))
        if can_bound_batches():
            return BoundedStreamReader(read, columns)
        return StreamReader(read, columns)

    @cause_first
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from kiel_groups.spark.options import WriteOptions
        from kiel_groups.spark.row_writer import BatchWriter

        _refuse(overwrite, "mode: 'overwrite'")
        return BatchWriter(WriteOptions.parse(self.options), schema)

    @cause_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from kiel_groups.spark.options import WriteOptions
        from kiel_groups.spark.row_writer import StreamWriter

        _refuse(overwrite, "outputMode: 'complete'")
        return StreamWriter(WriteOptions.parse(self.options), schema)


def _refuse(overwrite: bool, mode: str) -> None:
    if overwrite:
        raise ConfigError(f"{mode} given, and records of a topic cannot be replaced; expected 'append'")
