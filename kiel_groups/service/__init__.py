"""
Load groups for operators: their znodes from ZooKeeper, and the ends of their logs from the brokers.

The commands ``groups`` and ``describe``, also with ``--watch``, call it; its calls block.
It changes nothing, neither in ZooKeeper nor at a broker.
"""
