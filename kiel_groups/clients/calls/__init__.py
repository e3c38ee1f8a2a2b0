"""
Support the public methods of all clients: arguments, futures that start at the call, who called, Ctrl-C, lost loops.

``grouped``, ``single`` and ``producer`` and every package below ``clients`` use it.
It opens no connection and knows no record.
"""
