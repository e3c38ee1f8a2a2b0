"""
Make the driver of a query a member of a consumer group, which reads in micro-batches.

``spark.stream.member_driver`` uses it from Spark's blocking thread; the member runs on an event loop of its own.
It decides which partitions the next batch may read, and never reads a record.
"""
