"""
Be a member of a group that brokers coordinate: find the coordinator, join, beat, store offsets, leave.

``clients.connected`` creates the member of a consumer; other programs may use the generic ``CoordinatedMember`` alone.
It performs what ``group.coordinated`` decides, and neither fetches nor delivers a record.
"""
