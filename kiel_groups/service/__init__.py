"""
Load groups for operators: from ZooKeeper and the brokers, or, if brokers coordinate them, from the brokers alone.

The commands ``groups``, ``describe`` and ``lag``, also with ``--watch``, call it; its calls block.
It changes nothing, neither in ZooKeeper nor at a broker.
"""
