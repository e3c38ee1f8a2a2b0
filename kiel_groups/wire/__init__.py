"""
Encode requests and decode responses of the Kafka protocol of 0.8, and of group coordinators from 0.9 on.

The clients, Spark, the fault proxies, ``constants``, ``kiel-groups topics`` and the fake brokers of tests use this
package. Its code only converts between bytes and values. It opens no connection, and does not depend on ``group``.
"""
