"""
Store the offsets of a member's partitions, and read where they start: in ZooKeeper directly, or through brokers.

``coordination.member`` reads and commits through it.
It stores what it is told to, under the member's fence; which offset is due is decided by ``group.member``.
"""
