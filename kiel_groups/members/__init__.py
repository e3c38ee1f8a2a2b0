"""
Be a member of a group, whatever coordinates it: consumers on ZooKeeper or by brokers, and programs of any kind.

Clients, workers and Spark's drivers use it. Members decide by ``group``, and never deliver records themselves:
``partition_handler`` is the interface of what reads and delivers for them.
"""
