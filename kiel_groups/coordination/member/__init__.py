"""
The driver of a group member: it registers, claims and releases partitions, and replaces lost sessions.

``clients`` and ``spark.member`` start a ``GroupMember`` and implement its ``PartitionHandler``.
It performs what ``group.member`` decides, and never delivers a record itself.
"""
