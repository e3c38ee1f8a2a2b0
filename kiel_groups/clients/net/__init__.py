"""
Talk to brokers: connections, metadata with leaders, retry delays, and requests for offsets.

The fetcher, the producer's sender, the consumers and the Spark source share these modules.
This package retries requests that change nothing; repeating a request that may have taken effect is left to the caller.
"""
