"""
Decide for one member: its lease, the claims of its partitions, its subscription and its positions.

All of ``coordination`` but ``leader``, the group consumer and ``spark.member`` feed in events and perform the effects.
It never decides what another member may own: the leader's plan does.
"""
