"""
Administer and inspect a cluster and its groups through ZooKeeper, blocking: the tools behind the command line.

The commands of ``cli``, the embedded cluster, ``service`` and the Spark jobs call this package, from any thread.
The package joins no group and claims no partition; members notice its changes to their group through ZooKeeper.
"""
