"""
Support the public methods of all clients: arguments, eagerly started futures, callers, Ctrl-C, loops that were left.

``grouped``, ``single``, ``producer`` and every package below ``clients`` use it.
This package opens no connection and handles no records.
"""
