"""
Give commands the groups and topics of a cluster, whether ZooKeeper or the brokers are asked.

The commands about groups and topics use it.
It decides nothing, and prints nothing.
"""
