"""
Run one ZooKeeper session on the event loop: kazoo's client, requests, heartbeat and lease, fenced writes, close.

Members, workers, clients and operators' tools use this package. This package decides nothing about groups. ``runtime``
has the clocks, threads and clients that the simulator replaces.
"""
