"""
Support the public methods of all clients: check arguments, start futures, identify callers, and handle Ctrl-C.

The clients and their packages use this package, and so do ``sync`` and ``spark.member``.
The package opens no connection and handles no records.
"""
