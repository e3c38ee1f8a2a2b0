"""
Store the offsets of a member's partitions, and find their start positions: in ZooKeeper directly, or through brokers.

``coordination.member`` reads and commits offsets through it.
It writes to ZooKeeper only while the member znode exists, and leaves to ``group.member`` which offset to store.
"""
