"""
Decide for the leader of a group: the election, when to plan, which member gets which partition, and what is published.

The drivers of ``coordination.leader`` feed in what they have read and perform the effects.
A leader only publishes plans; it never claims or releases a member's partitions.
"""
