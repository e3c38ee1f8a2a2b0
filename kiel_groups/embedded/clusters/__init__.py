"""
Run whole clusters of ZooKeeper and brokers: by name, in the background, or on data that is kept.

``kiel-groups cluster``, the demo and the tests start these clusters.
A cluster ends when its supervisor ends, for whatever reason.
"""
