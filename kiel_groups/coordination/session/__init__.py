"""
Run one ZooKeeper session on the event loop: requests, heartbeat and lease, watchdog, fenced writes, and its close.

The drivers of members and leaders use one session each; a lost session is never used again.
The package does not decide what is written: it proves that the writer is still alive.
"""
