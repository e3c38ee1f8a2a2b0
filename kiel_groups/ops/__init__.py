"""
Read groups from ZooKeeper or from brokers, as views with the ends of logs. ``ops.actions`` changes what is stored.

The command line, workers, Spark jobs and embedded clusters use it.
The readers of both coordinations have the same methods, change nothing and set no watch. They block, except for
``BrokerSession`` and the functions that take one.
"""
