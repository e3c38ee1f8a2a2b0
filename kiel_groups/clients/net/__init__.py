"""
Talk to brokers: connections, metadata with leaders, retry delays, and requests for offsets.

The fetcher, the producer's sender, the consumers and the Spark source share it.
It retries requests that change nothing; a request that may have been carried out is its caller's to repeat.
"""
