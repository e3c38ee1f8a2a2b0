"""Make ``format("kiel")`` work without registration: Spark searches modules named ``pyspark_…`` for data sources."""

from kiel_groups.spark.source import KielDataSource as DefaultSource

__all__ = ["DefaultSource"]
