"""
Interact with the terminal: messages, tables, reports, records as lines, ``--watch``, exit codes and signals.

The commands and ``cli.app`` use this package. Only results go to standard output. Messages and progress go to standard
error. Lines and records are read and printed without blocking the event loop.
"""
