"""
Read groups from ZooKeeper or from brokers, as views with the ends of logs. ``ops.actions`` changes groups, offsets and
topics.

The command line, workers, Spark jobs and embedded clusters use this package.
The readers of both coordinations have the same methods, and change nothing. Only ``ZooKeeperGroups.watch`` sets
watches. The readers block, except for ``BrokerSession`` and the functions that take a ``BrokerSession``.
"""
