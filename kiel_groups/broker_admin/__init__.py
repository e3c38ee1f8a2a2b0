"""
Inspect and administer a cluster by requests to its brokers alone, without ZooKeeper: groups, offsets and topics.

``service`` and the command line call it; its functions are coroutines that take a ``BrokerSession``.
It joins no group, and commits no offset.
"""
