"""
The data source ``kiel``, which Spark instantiates for ``format("kiel")``.

Spark imports this module in many short-lived processes, even for queries of other sources. So it imports little.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from kiel_groups.spark.environment import check_libraries
from kiel_groups.spark.tasks.task_inputs import PortablePickle

if TYPE_CHECKING:
    from kiel_groups.spark.batch import BatchReader
    from kiel_groups.spark.stream.stream_reader import StreamReader
    from kiel_groups.spark.tasks.row_writer import BatchWriter, StreamWriter

__all__ = ["KielDataSource"]


class KielDataSource(PortablePickle, DataSource):
    """
    A data source that presents topics of Kafka 0.8 as tables and streams; ``docs/spark.rst`` lists its options.

    Raises:
        ConfigError: pyarrow is missing. The methods raise it for an option or a schema that is not valid.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_libraries()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "kiel"

    def schema(self) -> StructType:
        from kiel_groups.spark.options import READ_SCHEMA

        return READ_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        from kiel_groups.spark.reader_factory import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from kiel_groups.spark.reader_factory import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from kiel_groups.spark.reader_factory import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from kiel_groups.spark.reader_factory import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)
