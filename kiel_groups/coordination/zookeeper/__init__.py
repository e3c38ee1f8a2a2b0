"""
Adapt kazoo and the runtime: the client, its threads and its transactions, clocks and randomness.

``coordination.session`` builds sessions on this package; the simulator replaces ``runtime``.
The package treats znodes as paths and bytes, and knows nothing of groups.
"""
