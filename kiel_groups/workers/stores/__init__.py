"""
Keep the configuration, the statuses and the source offsets of a worker group in ZooKeeper.

Workers read and write them on their own session; tools read them through ``worker_group_view``.
The stores decide nothing: they neither claim work nor run it, and a write without its claim is refused.
"""
