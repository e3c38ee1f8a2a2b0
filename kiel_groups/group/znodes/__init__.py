"""
Describe what a group keeps in ZooKeeper: paths, the values in the znodes and their bytes, transactions as values.

The other packages of ``group``, the drivers of ``coordination``, and the readers of ``ops`` and ``admin`` use it.
This package decides nothing: its callers choose which znode is written, and when.
"""
