"""
Run one ZooKeeper session on the event loop: requests, heartbeat and lease, watchdog, fenced writes, close.

The drivers of members and leaders use one session each; a lost session is never used again.
The package does not decide what to write; it proves that the writing member is still alive.
"""
