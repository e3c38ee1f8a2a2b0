"""
Run child processes that die with their parent: ports, folders, locks, and the base class of all servers.

All other packages of ``embedded`` build on it; the demo runs its consumers with it.
It signals only processes that it has started.
"""
