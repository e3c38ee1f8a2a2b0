"""
Define the values that the parts of a worker share: ids of work, configurations, assignments and statuses.

All packages of ``kiel_groups.workers`` use them, as do the stores that keep them in ZooKeeper.
These modules decide nothing, and know neither the bytes nor the znodes in which the values are kept.
"""
