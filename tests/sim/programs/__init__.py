"""
Simulated groups of programs: generic members on simulated time, which a simulated ZooKeeper ensemble coordinates.

``tests.sim`` plays their seeds with ``--groups programs``. The programs share a number of items, and fetch no records.
"""
