"""
Adapt kazoo and the runtime: the client, its threads and its transactions, clocks and randomness.

``coordination`` builds on it; clients and Spark create its runtime, ``testing`` another one; ``admin`` uses its hosts.
It treats znodes as paths and bytes, and knows nothing of groups.
"""
