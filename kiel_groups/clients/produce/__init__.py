"""
Send records: partitioners, batches per partition, retries in order, and the outcome of each record.

``clients.producer`` and the tools that write topics use it.
Each record gets exactly one outcome: stored, failed, or unknown.
"""
