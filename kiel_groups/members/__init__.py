"""
Run a member of a group that ZooKeeper or brokers coordinate, as a consumer or as another kind of program.

Clients, workers and Spark's drivers use this package. The package ``kiel_groups.group`` makes the decisions. Members do
not deliver records. A member's consumer delivers them, behind the interface in ``partition_handler``.
"""
