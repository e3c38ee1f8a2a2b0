"""
Run the work that a worker is assigned, and join its parts: coordination, stores, plugins and the REST interface.

Programs and the command ``workers run`` start a ``Worker``.
This package does not decide what a worker runs: the leader of the group does.
"""
