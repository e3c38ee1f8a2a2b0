"""
Describe what a group keeps in ZooKeeper: paths, the values in the znodes and their bytes, transactions as values.

``group``, ``members``, the Spark source and the tools for operators use it.
It decides nothing: its callers choose which znode is written, and when.
"""
