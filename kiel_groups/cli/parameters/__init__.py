"""
Define what arguments and options mean: shared options, the environment and the file, starts, names to complete.

The commands use it.
It imports nothing that ``kiel-groups --help`` would have to wait for.
"""
