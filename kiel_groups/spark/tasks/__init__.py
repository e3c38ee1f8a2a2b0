"""
Plan tasks, and run them on Spark's workers: read ranges of offsets as Arrow batches, and write rows to topics.

Batches and streams plan the tasks, and ``spark.source`` and its factory the writes; Spark's workers run them.
A task reads exactly its ranges or fails, unless ``failOnDataLoss`` is false: then it may skip lost messages.
"""
