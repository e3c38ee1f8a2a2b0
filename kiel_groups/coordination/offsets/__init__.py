"""
Store the offsets of a member's partitions, and read where they start: in ZooKeeper directly, or through brokers.

``coordination.member`` reads and commits through this package.
The package stores offsets under the member's fence; ``group.member`` decides which offset is due.
"""
