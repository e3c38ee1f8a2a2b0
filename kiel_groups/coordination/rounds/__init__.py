"""
Coordinate a group of programs through ZooKeeper: members join rounds, and the leader publishes their assignments.

``clients.generic`` uses it as the coordinator of its members. It performs what ``group.rounds`` decides, on the
sessions and with the election of the members that consume partitions. It does not know what assignments mean.
"""
