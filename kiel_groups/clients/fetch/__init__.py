"""
Fetch the assigned partitions in the background into a buffer bounded in bytes, and queue partitions with records.

``delivery`` takes batches from this buffer. This package delivers no record to the application and commits nothing; its
caller decides about resets.
"""
