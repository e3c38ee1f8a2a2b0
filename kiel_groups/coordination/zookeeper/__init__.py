"""
Adapt kazoo and the runtime: the client, its threads and its transactions, clocks and randomness.

``coordination.session`` builds sessions on this package; the simulator replaces ``runtime``.
The package knows znodes as paths and bytes only, and knows nothing of groups.
"""
