"""
Look up offsets for a query on the driver: log ranges, the group's offsets, and what the start options mean.

The batch planner, the streams and the jobs use it.
It writes only the offsets of a group that has no live member.
"""
