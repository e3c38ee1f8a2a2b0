"""
Interact with the terminal: messages, tables, progress bars, ``--watch``, exit codes and signals.

The commands use it.
Results go to standard output, everything else to standard error.
"""
