"""
Run one ZooKeeper session on the event loop: requests, heartbeat and lease, watchdog, fenced writes, and its close.

The drivers of members and leaders are built on it, one session each; a session that is lost is never used again.
It does not decide what is written: it proves that the writer is still alive.
"""
