"""
Be a member of any group that brokers coordinate: find the coordinator, join, sync, beat and leave.

``clients.coordinated`` has the hooks of consumers; other programs may bring their own to a ``CoordinatedMember``. The
package performs what ``group.coordinated`` decides, and does not know what assignments mean.
"""
