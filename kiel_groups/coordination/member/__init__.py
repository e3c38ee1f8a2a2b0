"""
The driver of a group member: it registers, claims and releases partitions, and replaces lost sessions.

The group consumer and ``spark.member`` start a ``GroupMember``, and ``kiel-groups serve`` an ``AllocatorProcess``.
It performs what ``group.member`` decides, and never delivers a record itself.
"""
