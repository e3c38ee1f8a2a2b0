"""
Define the commands, a module each, named as they are typed.

``cli.app`` imports a module when its command is called.
A command parses, calls one of the packages above, and prints; what it needs for that is imported within its function.
"""
