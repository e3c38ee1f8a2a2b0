"""
Define the commands, each in a module of its name.

``cli.app`` imports a module when its command is called.
A command parses its options, calls other packages and prints the result; it decides nothing for a group.
"""
