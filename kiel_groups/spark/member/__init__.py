"""
Make the driver of a query a member of a consumer group that reads in micro-batches.

``spark.stream`` calls it from Spark's blocking thread; the member runs on an event loop of its own.
The member decides which partitions the next batch may read, and never reads a record itself.
"""
