"""
Simulated groups of workers: herders, claims, stores and runners on simulated time, which simulated servers coordinate.

``tests.sim`` plays their seeds with ``--groups workers``. Connectors count, and what they deliver is in memory.
"""
