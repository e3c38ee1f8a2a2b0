"""
Drive a stream on Spark's driver: where each micro-batch ends, its tasks, and what is done with it afterwards.

``spark.source`` hands it to Spark. With the option ``membership`` a member of the group decides what it reads.
It moves no offset of a group before Spark has completed the batch.
"""
