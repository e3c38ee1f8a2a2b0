"""
Coordinate one process with its group through ZooKeeper: sessions, membership, claims, offsets, and the leader's work.

The group consumer, the Spark source and ``kiel-groups serve`` join groups with it; ``admin`` uses its list of hosts.
It performs what ``group`` decides. Apart from it, only ``admin`` and ``testing`` import kazoo.
"""
