"""
Run child processes that die with their parent: ports, folders, locks, and what all servers have in common.

``embedded.servers`` and ``embedded.clusters`` build on it.
It signals only processes that it has started.
"""
