"""
Talk to brokers: connections, metadata with leaders, retry delays, and requests for offsets.

Fetching, delivery, the clients, members, Spark, ``ops`` and the command line send their requests through it. It retries
requests that change nothing; the caller decides whether to repeat a request that may have taken effect.
"""
