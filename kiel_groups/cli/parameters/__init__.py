"""
Define arguments and options that commands share, and get their values.

The commands use this package, and ``cli.app`` uses it to read environment variables and the file of ``--config``. Its
modules import nothing slow, so that ``kiel-groups --help`` is fast.
"""
