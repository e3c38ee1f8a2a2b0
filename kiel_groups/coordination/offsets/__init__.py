"""
Store the offsets of a member's partitions, and find their start positions: in ZooKeeper directly, or through brokers.

``coordination.member`` reads and commits offsets through this package.
The package checks the member znode with each write to ZooKeeper; ``group.member`` decides which offset to store.
"""
