"""
Describe a group's znodes in ZooKeeper: their paths, the encoding of their data, and the transactions on them.

The packages ``group`` and ``members``, the Spark source and the tools for operators use these modules. The callers
decide which znode is written, and when.
"""
