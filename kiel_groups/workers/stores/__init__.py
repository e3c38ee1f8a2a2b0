"""
Keep the configuration, the statuses, the source offsets and the claims of a worker group in ZooKeeper.

Workers read and write the stores on their own session. Tools read the stores through ``worker_group_view``. The stores
do not run work. A status or a source offset is written only while the worker has claimed the work.
"""
