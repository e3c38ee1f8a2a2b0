"""
Decide for a group, purely: which candidate leads, what the leader plans, what a member claims, fetches and commits.

``members``, ``clients`` and Spark's member perform its decisions; workers and operators' tools read its ``znodes``.
No module here reads a clock, draws a random number, or talks to a server; such values are passed in as arguments.
"""
