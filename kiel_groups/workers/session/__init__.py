"""
Keep a worker's session in ZooKeeper, by which it owns work and writes to the stores, whatever coordinates its group.

The runtime starts it, and is notified of each session that is opened or lost. A lost session is replaced by another
one, with another worker id; nothing is carried over. The package does not decide what a worker owns.
"""
