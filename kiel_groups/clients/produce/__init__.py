"""
Send records: partitioners, batches per partition, retries in order, and the outcome of each record.

``clients.producer`` uses this package; applications, the demo and the Spark writer import its partitioners.
The package keeps the order within a partition, and gives each record one outcome: stored, failed, or unknown.
"""
