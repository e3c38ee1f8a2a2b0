"""
Store the offsets of a member's partitions, and find where partitions start: in ZooKeeper, through brokers, in Kafka.

Members of both coordinations use it.
A store never delivers records, and writes only what a gate allows.
"""
