"""What makes ``format("kiel")`` work without registering it: Spark looks into modules whose name begins like this."""

from kiel_groups.spark.source import KielDataSource as DefaultSource

__all__ = ["DefaultSource"]
