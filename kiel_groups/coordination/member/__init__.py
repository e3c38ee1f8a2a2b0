"""
Drive a member of a group: registration, claims and releases on one session, and one session after another.

``clients`` and ``spark.member`` start a ``GroupMember`` and implement its ``PartitionHandler``.
It performs what ``group.member`` decides; it never delivers a record itself.
"""
