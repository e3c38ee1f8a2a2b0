"""
Adapt kazoo and the runtime: the client, its threads and its transactions, clocks and randomness.

``coordination`` builds on it; clients and Spark use its clock, ``admin`` its hosts; ``testing`` replaces its runtime.
It treats znodes as paths and bytes, and knows nothing of groups.
"""
