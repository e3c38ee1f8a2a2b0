"""
Coordinate one process with its group through ZooKeeper: sessions, membership, claims, offsets, and the leader's work.

The consumers of ``clients``, the Spark source and ``kiel-groups serve`` use ``member``; the rest serves that package.
It performs what ``group`` decides. No other package but ``admin`` and ``testing`` imports kazoo.
"""
