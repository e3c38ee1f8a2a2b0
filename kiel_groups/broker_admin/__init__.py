"""
Inspect and administer a cluster by requests to its brokers alone, without ZooKeeper: groups, offsets and topics.

``service``, ``embedded`` and the command line call it. Most of its functions are coroutines that take a
``BrokerSession``; ``in_session`` runs them for callers that block.
It joins no group, and commits no offset.
"""
