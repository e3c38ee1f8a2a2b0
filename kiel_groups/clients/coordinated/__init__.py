"""
Be the member of a consumer in a group that brokers coordinate: subscriptions, assignments, start positions, commits.

``clients.connected`` makes a ``ConsumerMember`` where it would make a ``GroupMember`` with ZooKeeper. The package has
the hooks for a generic member of ``clients.coordinator``, and neither fetches nor delivers a record.
"""
