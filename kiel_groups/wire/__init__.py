"""
Encode requests and decode answers of the Kafka protocol of 0.8: bytes in, values out, and back.

The clients, Spark, the fault proxies, ``constants``, ``kiel-groups topics`` and the fake brokers of tests use it.
The code is pure: it opens no connection, and it does not depend on groups.
"""
