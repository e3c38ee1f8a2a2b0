"""
Decide for a group, purely: who leads, what the leader plans, what a member claims, fetches and commits.

The drivers of ``coordination`` and the consumers of ``clients`` perform what these modules decide.
Nothing in here reads a clock, draws a random number, or speaks to a server; those values come in as arguments.
"""
