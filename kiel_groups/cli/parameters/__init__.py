"""
Define arguments and options: shared options, the environment and the file, servers, completion of names.

The commands use it, and ``cli.app`` for the environment and the file.
It imports nothing slow, so that ``kiel-groups --help`` is fast.
"""
