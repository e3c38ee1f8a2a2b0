"""
Run connectors and their tasks in a group of worker processes, which share them as consumers share partitions.

Programs and the command line start workers. Connectors import the interfaces that they implement from here.
This package does not read or write topics on its own: connectors do, with the clients of ``kiel_groups.clients``.
"""
