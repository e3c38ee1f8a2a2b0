"""
Decide for the leader of a group: the election, when to plan, which member gets which partition, and what is published.

``coordination.leader`` feeds in what it has read and performs the effects; ``ops`` sorts candidates with it.
A leader only publishes plans; it never claims or releases a member's partitions.
"""
