"""
Keep the offsets of a member's partitions in Kafka (the store ``broker-v1``), while ZooKeeper coordinates the members.

``coordination.member`` uses it in place of the offset znodes. It asks the brokers through the ``PartitionHandler``, and
writes nothing to ZooKeeper but where a group began to read a topic. Offsets in Kafka have neither versions nor fences:
a member stores them only while its lease runs and it owns the partition.
"""
