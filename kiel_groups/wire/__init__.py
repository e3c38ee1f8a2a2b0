"""
Encode requests and decode answers of the Kafka protocol of 0.8: bytes in, values out, and back.

The clients and the Spark source use this package; so do the fake and the faulty brokers of tests.
The code is pure: it opens no connection, and it does not depend on groups.
"""
