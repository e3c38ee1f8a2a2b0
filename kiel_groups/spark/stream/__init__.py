"""
Drive a stream on Spark's driver: bound each micro-batch, plan its tasks, and commit it afterwards.

``spark.source`` and ``spark.reader_factory`` give its readers to Spark; the archive job plans with its bounds.
No offset of a group moves before Spark has completed the batch.
"""
