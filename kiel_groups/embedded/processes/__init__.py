"""
Run child processes that die with their parent: ports, folders, locks, and the base class of all servers.

``embedded.servers`` and ``embedded.clusters`` build on this package.
The package signals only processes that it has started.
"""
