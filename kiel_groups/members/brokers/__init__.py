"""
Run a member of a group that brokers coordinate (Kafka 0.9 or later): find the coordinator, join, sync, leave.

Consumers and other programs use this package. ``group.member_state`` makes the decisions. The hooks that the caller
passes decide what the member does with its assignment.
"""
