"""
Define the commands of ``kiel-groups``. A module has the name of its command.

``cli.app`` imports a module when its command is called.
A command parses its options, calls other packages and prints the result. Decisions about groups are in those packages.
"""
