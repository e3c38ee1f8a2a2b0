"""
Administer and inspect a cluster and its groups through ZooKeeper, blocking: the tools behind the command line.

The commands of ``cli``, the embedded cluster, ``service`` and the Spark jobs call it, from any thread.
It is no member of a group and holds no claim: what it changes in a group, the members notice by themselves.
"""
