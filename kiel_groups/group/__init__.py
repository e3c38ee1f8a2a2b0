"""
Decide for a group, purely: which candidate leads, what the leader plans, what a member claims, fetches and commits.

The drivers of ``coordination`` and the consumers of ``clients`` perform what these modules decide.
No module here reads a clock, draws a random number, or talks to a server; such values are passed in as arguments.
"""
