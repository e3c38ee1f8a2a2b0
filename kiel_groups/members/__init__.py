"""
Be a member of a group that ZooKeeper or brokers coordinate, as a consumer or as another kind of program.

Clients, workers and Spark's drivers use it. ``group`` makes the decisions. Members never deliver records themselves:
``partition_handler`` is the interface of the consumer that reads and delivers for them.
"""
