"""
Adapt kazoo, and the machine it runs on: the client, its threads and its transactions, clocks and randomness.

``coordination.session`` builds sessions on it; ``runtime`` is what the simulator replaces.
It knows znodes as paths and bytes only, and nothing of groups.
"""
