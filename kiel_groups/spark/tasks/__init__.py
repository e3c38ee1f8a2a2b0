"""
Plan tasks, and run them on Spark's workers: read ranges of offsets as Arrow batches, and write rows to topics.

The driver plans and pickles the tasks; a worker unpickles them without the driver's state.
A task reads exactly its ranges or fails, unless ``failOnDataLoss`` is false: then it may skip lost messages.
"""
