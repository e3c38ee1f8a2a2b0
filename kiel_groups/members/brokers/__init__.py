"""
Be a member of a group that brokers coordinate, from Kafka 0.9 on: find the coordinator, join, sync, beat and leave.

Consumers and programs use it. The decisions are those of ``group.member_state``; what a member does with its assignment
is in the hooks that are passed to it.
"""
