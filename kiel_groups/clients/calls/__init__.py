"""
Support the public methods of all clients: arguments, eagerly started futures, callers, Ctrl-C, loops that were left.

The clients and their packages use it, and so do ``sync`` and ``spark.member``.
It opens no connection and handles no records.
"""
