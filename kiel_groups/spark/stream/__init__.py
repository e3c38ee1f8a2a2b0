"""
Drive a stream on Spark's driver: bound each micro-batch, plan its tasks, and commit it afterwards.

``spark.source`` gives the reader to Spark. With the option ``membership``, a member of a group selects partitions.
No offset of a group moves before Spark has completed the batch.
"""
