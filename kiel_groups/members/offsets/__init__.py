"""
Store the offsets of a member's partitions in ZooKeeper, through brokers or in Kafka, and find start positions.

Members of both kinds of groups use this package: of groups on ZooKeeper, and of groups that brokers coordinate. A store
writes offsets only while the member's lease runs.
"""
