"""
Interact with the terminal: messages, tables, reports, records as lines, ``--watch``, exit codes and signals.

The commands and ``cli.app`` use it. Only results go to standard output, everything else to standard error.
Records are read and printed without blocking the event loop, and a line that was not stored is reported by its number.
"""
