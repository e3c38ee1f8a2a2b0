"""
Decide for one member: its lease, the claims of its partitions, its subscription and its positions.

The drivers of ``coordination.member`` and the consumers of ``clients`` feed in events and perform the effects.
It never decides what another member may own: the leader's plan does.
"""
