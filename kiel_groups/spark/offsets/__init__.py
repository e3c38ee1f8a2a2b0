"""
Look up offsets for a query on the driver: the ends of logs, the group's offsets, and the offsets that options mean.

The batch planner, the streams and the jobs use it.
It commits only offsets of a group that has no live member.
"""
