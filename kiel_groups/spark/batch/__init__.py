"""
Read a batch: the ranges between two places of some topics, and the tasks that read them.

``spark.source`` hands it to Spark, which calls it on the driver.
It commits nothing to a group.
"""
