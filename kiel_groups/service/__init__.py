"""
Load groups for operators: their znodes from ZooKeeper and the ends of their logs from the brokers, put together.

The commands ``groups`` and ``describe`` call it, blocking.
It changes nothing.
"""
