"""
Administer and inspect a cluster and its groups through ZooKeeper, blocking: the tools behind the command line.

The command line, ``service``, the demo, the embedded servers and the Spark source call it, from any thread.
It joins no group and claims no partition; members notice its changes to their group through ZooKeeper.
"""
