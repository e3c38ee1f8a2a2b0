"""
Demonstrate a group that shares a topic, loses a member to kill -9, and loses no record.

``kiel-groups demo`` and ``scripts/demo`` run it on a cluster of its own.
The consumers are separate processes, and use only the public clients.
"""
