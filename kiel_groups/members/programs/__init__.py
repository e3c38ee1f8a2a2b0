"""
Run a member of a group of programs of any kind. ZooKeeper or brokers coordinate the group.

``GenericMember`` is public. Workers use this package, too. A member knows nothing of partitions: the hooks of a program
define the work that its group shares.
"""
