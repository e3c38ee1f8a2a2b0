"""
Coordinate one consumer with its group through ZooKeeper: registration, claims, leadership, and lost sessions.

Clients, Spark's drivers and ``kiel-groups serve`` use this package. ``group`` makes the decisions. This package carries
them out on a session of ``zookeeper``.
"""
