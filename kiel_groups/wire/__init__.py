"""
Encode requests and decode answers of the Kafka protocol of 0.8, and of the coordinators of groups from 0.9 on.

The clients, Spark, the fault proxies, ``constants``, ``kiel-groups topics`` and the fake brokers of tests use it.
The code is pure: bytes in, values out, and back. It opens no connection, and it does not depend on ``group``.
"""
