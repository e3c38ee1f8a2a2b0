"""
Read a batch: resolve the start and end offsets of topics, and plan the tasks that read the ranges.

``spark.source`` gives the reader to Spark, which plans on the driver and reads on workers.
A batch commits nothing to a group.
"""
