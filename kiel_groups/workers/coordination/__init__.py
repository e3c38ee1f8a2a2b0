"""
Coordinate the workers of a group: what each one joins with, what the leader assigns, and what a worker is notified of.

A worker passes ``WorkerHooks`` to its member of the group, and is the listener that starts and stops work.
This package starts no connector and no task, and takes no claims. It reads the configuration and never changes it.
"""
