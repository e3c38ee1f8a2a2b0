"""
Demonstrate that a group shares a topic, and loses no record although kill -9 ends a member.

``kiel-groups demo`` and ``scripts/demo`` run the demo on a cluster of its own. The consumers are separate processes
that use only the public clients.
"""
