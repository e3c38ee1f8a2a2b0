"""
Run whole clusters of ZooKeeper and brokers: by name, in the background, or on data that is kept.

``kiel-groups cluster`` and its completion, the demo and the tests use them.
No server outlives the supervisor of its cluster, for whatever reason that ends.
"""
