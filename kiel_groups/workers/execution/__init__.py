"""
Run the assigned work of a worker: claim it, start and stop it, restart it by policy, and report its statuses.

Programs and the command line create a ``Worker``, which has the ZooKeeper sessions and the membership.
This package neither assigns work, as ``workers.membership`` does, nor calls plugins, as runners do.
"""
