"""
Coordinate one consumer with its group through ZooKeeper: registration, claims, leadership, and lost sessions.

Clients, Spark's drivers and ``kiel-groups serve`` use it. The decisions are those of ``group``; this package performs
them on a session of ``zookeeper``.
"""
