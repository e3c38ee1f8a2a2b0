"""
Talk to brokers: connections, metadata with leaders, retry delays, and requests for offsets.

Fetching, delivery, the clients, the Spark source, ``service`` and the command line send their requests through it.
It retries requests that change nothing; repeating one that may have taken effect is left to the caller.
"""
