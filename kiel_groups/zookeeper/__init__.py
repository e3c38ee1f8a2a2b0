"""
Run one ZooKeeper session on the event loop: kazoo's client, requests, heartbeat and lease, fenced writes, close.

Members and workers use it. It knows neither groups nor partitions; ``runtime`` has the clocks, threads and clients that
the simulator replaces.
"""
