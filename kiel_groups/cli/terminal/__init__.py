"""
Interact with the terminal: messages, tables, progress bars, ``--watch``, exit codes and signals.

The commands, ``cli.app`` and ``cli.records`` use it.
It prints only results to standard output; everything else goes to standard error.
"""
