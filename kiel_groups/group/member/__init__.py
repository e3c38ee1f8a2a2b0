"""
Decide for one member: its lease, the claims of its partitions, its subscription and its positions.

The drivers of ``coordination.member`` and the consumers of ``clients`` feed in events and perform the answers.
It never decides what another member may own: that is the leader's plan.
"""
