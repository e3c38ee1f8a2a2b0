"""
Be a member of a group of programs of any kind, which ZooKeeper or the brokers coordinate.

``GenericMember`` is public, and workers use it.
It knows nothing of partitions: the hooks of a program define the work that its group shares.
"""
