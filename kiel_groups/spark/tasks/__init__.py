"""
Run on Spark's workers: read ranges of offsets as Arrow batches, and write rows to topics.

The drivers pickle these tasks; a worker unpacks them without the driver's state.
A task reads exactly its ranges, or fails; it never skips an offset that the log should have.
"""
