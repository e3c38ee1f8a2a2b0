"""
Store the offsets of a member's partitions in ZooKeeper, through brokers or in Kafka, and find start positions.

Members of both coordinations use it.
A store never delivers records, and writes only what a gate allows.
"""
