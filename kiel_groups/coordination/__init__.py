"""
Coordinate one process with its group through ZooKeeper: sessions, membership, claims, offsets, and the leader's work.

The consumers of ``clients``, the Spark source and ``kiel-groups serve`` use ``member``, which uses the other packages.
The packages perform what ``group`` decides. Apart from them, only ``admin`` and ``testing`` import kazoo.
"""
