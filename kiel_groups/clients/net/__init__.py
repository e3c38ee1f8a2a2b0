"""
Talk to brokers: connections, metadata with leaders, retry delays, and requests for offsets.

Fetching, delivery, the clients, members, Spark, ``ops`` and the command line send their requests through this package.
This package retries read requests, and commits of offsets. The caller decides whether to repeat any other request.
"""
