"""
Fetch the assigned partitions in the background into a buffer bounded in bytes, and queue partitions with records.

``delivery`` takes batches from this buffer. This package neither delivers records to the application nor commits
offsets. The caller of this package decides about position resets.
"""
