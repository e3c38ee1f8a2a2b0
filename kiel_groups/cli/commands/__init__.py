"""
Define the commands, each in a module of its name.

``cli.app`` imports a module when its command is called.
A command parses its options, calls another package and prints the result; its function imports what it needs.
"""
