"""
Run one ZooKeeper session on the event loop: requests, heartbeat and lease, watchdog, fenced writes, close.

The drivers of members, leaders and offsets share a session, and record delivery asks its gate.
It does not decide what to write, and a lost session is never used again.
"""
