"""
Run the assigned work of a worker: claim it, start and stop it, restart it by policy, and report its statuses.

Programs and the command line create a ``Worker``, and pass it the sessions and the membership of its process.
The package neither assigns work nor calls plugins: ``workers.membership`` does one, and runners do the other.
"""
