"""
Read a batch: resolve the start and end offsets of topics, and plan the tasks that read the ranges.

``spark.reader_factory`` creates the reader, and ``spark.source`` gives it to Spark.
A batch commits nothing to a group.
"""
