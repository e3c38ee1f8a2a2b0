"""
Keep the configuration, the statuses, the source offsets and the claims of a worker group in ZooKeeper.

Workers read and write them on their own session; tools read them through ``worker_group_view``.
The stores decide nothing: they do not run work, and a write without its claim is refused.
"""
