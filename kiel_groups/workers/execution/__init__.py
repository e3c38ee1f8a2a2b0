"""
Run the assigned work of a worker: claim, start, stop and restart connectors and tasks, and report their statuses.

Programs and the command line create a ``Worker``. The ``Worker`` has the ZooKeeper sessions and the membership.
``workers.membership`` assigns work, and the package ``runners`` calls plugins.
"""
