"""
Load groups for operators: their znodes from ZooKeeper, and the ends of their logs from the brokers.

The commands ``groups`` and ``describe`` call it; its calls block.
It changes nothing.
"""
