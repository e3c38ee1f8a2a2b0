"""
Run whole clusters: ZooKeeper and brokers together, by name and in the background, on data that is kept.

``kiel-groups cluster``, the demo and the tests start them.
A cluster ends with its supervisor, whatever ends that.
"""
