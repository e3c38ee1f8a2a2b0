"""
Be a member of a group of programs of any kind, which ZooKeeper or the brokers coordinate.

Programs, such as the workers of connectors, bring hooks to a ``GenericMember``. The package does not know what metadata
and assignments mean, and fetches no records.
"""
