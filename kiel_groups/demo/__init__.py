"""
Show a group that shares a topic, loses a member to kill -9, and proves that it lost no record.

``kiel-groups demo`` and ``scripts/demo`` run it, on a cluster of its own.
Its consumers are processes that use the public clients only.
"""
