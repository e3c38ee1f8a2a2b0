"""
Inspect and administer a cluster and its groups: readers of ZooKeeper and of brokers, and the actions of operators.

The command line, workers, Spark jobs and embedded clusters use it.
The functions block, and set no watch.
"""
