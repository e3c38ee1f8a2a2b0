"""
Send records: partitioners, batches per partition, retries in order, and the outcome of each record.

``clients.producer`` drives it; applications, the demo and the Spark writer import its partitioners.
It never changes the order within a partition, and gives each record one outcome: stored, failed, or unknown.
"""
