"""
Decide for a group, without I/O: which candidate leads, what the leader plans, what a member claims and commits.

The packages ``members``, ``clients`` and ``spark`` carry out these decisions. Workers and operators' tools use the
package ``znodes``. No module here reads a clock, draws a random number, or talks to a server: the caller passes the
time, the random values and the servers' answers as arguments.
"""
